//! The watchers of a resource, in groups that are woken separately.
//!
//! A thousand watchers that are woken at once delay other requests, and the last of them waits for all before it. New
//! watchers join the groups in turn, so that the groups stay equal. The pacer decides when each group is woken.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use corten_store::Revision;
use tokio::sync::watch;
use tokio::time::Instant;

/// The number of groups.
pub const GROUPS: usize = 8;

/// All watchers of a resource.
#[derive(Default)]
pub struct Groups {
    groups: [Group; GROUPS],
    joined: AtomicUsize,
}

/// Watchers that are woken together.
pub struct Group {
    changed: watch::Sender<Revision>,
    /// The time when they were last woken; only the feed writes it.
    woken: Mutex<Option<Instant>>,
    /// Whether they wait for their turn; only the feed writes it.
    waits: AtomicBool,
}

impl Default for Group {
    fn default() -> Group {
        Group { changed: watch::Sender::new(0), woken: Mutex::default(), waits: AtomicBool::new(false) }
    }
}

impl Groups {
    /// Adds a watcher; returns the receiver that is notified when the resource changes.
    pub fn join(&self) -> watch::Receiver<Revision> {
        self.groups[self.joined.fetch_add(1, Ordering::Relaxed) % GROUPS].changed.subscribe()
    }

    /// Returns the number of watchers.
    pub fn watchers(&self) -> usize {
        self.groups.iter().map(|group| group.changed.receiver_count()).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }

    pub fn get(&self, number: usize) -> &Group {
        &self.groups[number % GROUPS]
    }

    /// Wakes all watchers.
    pub fn wake_all(&self, revision: Revision) {
        for group in &self.groups {
            group.changed.send_replace(revision);
        }
    }
}

impl Group {
    /// Returns whether the group has watchers and does not wait for its turn.
    pub fn is_idle(&self) -> bool {
        self.changed.receiver_count() > 0 && !self.waits.load(Ordering::Relaxed)
    }

    /// Returns the time when it was last woken.
    pub fn woken(&self) -> Option<Instant> {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the group as waiting for its turn.
    pub fn wait(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    pub fn wake(&self, revision: Revision, now: Instant) {
        self.waits.store(false, Ordering::Relaxed);
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        self.changed.send_replace(revision);
    }
}
