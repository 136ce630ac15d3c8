//! Snapshots of a resource whose lists are read in pages: every page comes from the state of the first.
//!
//! A snapshot shares its objects with the present state, so it costs the objects that have changed since. Few are kept,
//! for a short time; a later page, or one of a snapshot that made room, is read from the store at its revision.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corten_store::Revision;

use super::resource::Snapshot;

/// The most snapshots of a resource.
const MOST: usize = 4;
/// The time that the next page may take to be requested.
const IDLE: Duration = Duration::from_secs(30);

/// The snapshots of one resource.
#[derive(Default)]
pub struct Pins {
    pins: Mutex<VecDeque<Pin>>,
    /// Whether there may be snapshots, so that a change need not lock.
    any: AtomicBool,
}

struct Pin {
    snapshot: Snapshot,
    used: Instant,
    /// The key of the next page, and the number of objects from there on, if it is known.
    next: String,
    left: Option<u64>,
}

/// A snapshot for one more page.
pub struct Pinned {
    pub snapshot: Snapshot,
    /// The number of objects from the start of the page on, if it is known.
    pub left: Option<u64>,
}

impl Pins {
    /// Keeps a snapshot for the page that starts at `next`, with `left` objects from there on.
    pub fn keep(&self, snapshot: &Snapshot, next: String, left: Option<u64>, now: Instant) {
        let mut pins = self.lock();
        pins.retain(|pin| pin.snapshot.revision != snapshot.revision);
        if pins.len() == MOST {
            pins.pop_front();
        }
        pins.push_back(Pin { snapshot: snapshot.clone(), used: now, next, left });
        self.any.store(true, Ordering::Relaxed);
    }

    /// Returns the snapshot of a revision, for the page that starts at `start`.
    pub fn find(&self, revision: Revision, start: Option<&str>) -> Option<Pinned> {
        let pins = self.lock();
        let pin = pins.iter().find(|pin| pin.snapshot.revision == revision)?;
        let left = pin.left.filter(|_| Some(pin.next.as_str()) == start);
        Some(Pinned { snapshot: pin.snapshot.clone(), left })
    }

    /// Drops the snapshots that no client has used for a while. Each change calls this: without changes a snapshot
    /// costs nothing.
    pub fn expire(&self) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let mut pins = self.lock();
        pins.retain(|pin| now.saturating_duration_since(pin.used) < IDLE);
        self.any.store(!pins.is_empty(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Pin>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(revision: Revision) -> Snapshot {
        Snapshot { items: imbl::OrdMap::new(), revision }
    }

    #[test]
    fn a_page_finds_the_snapshot_of_its_revision_and_the_count_of_its_start() {
        let pins = Pins::default();
        let now = Instant::now();
        pins.keep(&snapshot(7), "b".into(), Some(3), now);
        assert_eq!(pins.find(7, Some("b")).map(|found| found.left), Some(Some(3)));
        assert_eq!(pins.find(7, Some("a")).map(|found| found.left), Some(None), "another start is counted anew");
        assert!(pins.find(8, Some("b")).is_none());
        pins.keep(&snapshot(7), "c".into(), Some(1), now);
        assert_eq!(pins.find(7, Some("c")).map(|found| found.left), Some(Some(1)));
        for revision in 8..12 {
            pins.keep(&snapshot(revision), "b".into(), None, now);
        }
        assert!(pins.find(7, Some("c")).is_none(), "the oldest makes room");
    }

    #[test]
    fn an_unused_snapshot_expires() {
        let pins = Pins::default();
        let Some(long_ago) = Instant::now().checked_sub(IDLE) else { return };
        pins.keep(&snapshot(7), "b".into(), None, long_ago);
        pins.keep(&snapshot(8), "b".into(), None, Instant::now());
        pins.expire();
        assert!(pins.find(7, None).is_none());
        assert!(pins.find(8, None).is_some());
    }
}
