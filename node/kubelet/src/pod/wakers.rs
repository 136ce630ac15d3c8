//! The wakers of all pods with a worker, by uid: for what concerns pods and is not of one pod, such as the health of a
//! device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::waker::Waker;

#[derive(Clone, Default)]
pub struct Wakers {
    by_uid: Arc<Mutex<HashMap<String, Waker>>>,
}

impl Wakers {
    pub fn register(&self, uid: &str, waker: &Waker) {
        self.lock().insert(uid.to_owned(), waker.clone());
    }

    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Wakes the workers of these pods; a pod without one is skipped.
    pub fn wake<'a>(&self, uids: impl IntoIterator<Item = &'a String>) {
        let wakers = self.lock();
        uids.into_iter().filter_map(|uid| wakers.get(uid)).for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Waker>> {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
