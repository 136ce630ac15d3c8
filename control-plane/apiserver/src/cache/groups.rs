//! The watchers of a resource, in groups that are woken apart from each other.
//!
//! A thousand watchers that are woken at once stand in the way of whoever asks for something meanwhile, and the last of
//! them waits for all before it. Whoever comes joins the next group in turn, so that the groups stay equal. When each is
//! woken is for the pacer to say.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use corten_store::Revision;
use tokio::sync::watch;
use tokio::time::Instant;

/// How many groups there are.
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
    /// When they were last woken; only the feed writes it.
    woken: Mutex<Option<Instant>>,
    /// Whether their turn is still to come; only the feed writes it.
    waits: AtomicBool,
}

impl Default for Group {
    fn default() -> Group {
        Group { changed: watch::Sender::new(0), woken: Mutex::default(), waits: AtomicBool::new(false) }
    }
}

impl Groups {
    /// Tells when the resource changes.
    pub fn join(&self) -> watch::Receiver<Revision> {
        self.groups[self.joined.fetch_add(1, Ordering::Relaxed) % GROUPS].changed.subscribe()
    }

    /// How many watchers there are.
    pub fn watchers(&self) -> usize {
        self.groups.iter().map(|group| group.changed.receiver_count()).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }

    pub fn get(&self, number: usize) -> &Group {
        &self.groups[number % GROUPS]
    }

    /// Wakes everybody, for what concerns everybody.
    pub fn wake_all(&self, revision: Revision) {
        for group in &self.groups {
            group.changed.send_replace(revision);
        }
    }
}

impl Group {
    /// Whether there is somebody to be woken whose turn is not yet known.
    pub fn is_idle(&self) -> bool {
        self.changed.receiver_count() > 0 && !self.waits.load(Ordering::Relaxed)
    }

    /// When it was last woken.
    pub fn woken(&self) -> Option<Instant> {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its turn will come.
    pub fn wait(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    pub fn wake(&self, revision: Revision, now: Instant) {
        self.waits.store(false, Ordering::Relaxed);
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        self.changed.send_replace(revision);
    }
}
