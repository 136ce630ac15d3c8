//! The key sets in which requests missed the keys of their tokens. They are fetched again soon.
//!
//! A set is kept once, whatever clients send.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct UnknownKeys {
    sets: Mutex<BTreeSet<Arc<str>>>,
    changed: Notify,
}

impl UnknownKeys {
    /// Adds a set that lacks a key.
    pub(crate) fn add(&self, set: &Arc<str>) {
        if self.sets().insert(Arc::clone(set)) {
            self.changed.notify_one();
        }
    }

    /// Waits until there is a set, and takes all of them.
    pub(crate) async fn take(&self) -> BTreeSet<Arc<str>> {
        loop {
            let sets = std::mem::take(&mut *self.sets());
            if !sets.is_empty() {
                return sets;
            }
            self.changed.notified().await;
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.sets().is_empty()
    }

    fn sets(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
