//! Everything in a store, apart from its engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Batch, Entry, EventKind, LeaseId, Revision};

/// The content of a store: a state, and the history since.
///
/// Invariant: the history has every revision after `compacted` up to `revision`, in order and without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    pub revision: Revision,
    /// The compacted revision; 0 if the history is complete.
    pub compacted: Revision,
    /// The entries at the compacted revision, in order of their keys.
    pub base: Vec<Arc<Entry>>,
    pub history: Vec<Batch>,
    /// The leases, in order of their ids.
    pub leases: Vec<Grant>,
}

/// A lease without its keys, which name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub id: LeaseId,
    pub ttl: Duration,
}

impl Contents {
    /// Returns the entries at the last revision.
    pub fn current(&self) -> BTreeMap<Bytes, Arc<Entry>> {
        let mut current: BTreeMap<Bytes, Arc<Entry>> =
            self.base.iter().map(|entry| (entry.key.clone(), Arc::clone(entry))).collect();
        for event in self.history.iter().flat_map(|batch| batch.events.iter()) {
            match event.kind {
                EventKind::Put => current.insert(event.entry.key.clone(), Arc::clone(&event.entry)),
                EventKind::Delete => current.remove(&event.entry.key),
            };
        }
        current
    }

    /// Returns the current state alone, at a revision that is `by` higher, with the keys that `keeps` accepts. Every
    /// earlier revision is compacted: a client that knows revisions which this state never had reads everything anew
    /// instead of waiting for them.
    pub fn raised(&self, by: Revision, keeps: impl Fn(&[u8]) -> bool) -> Contents {
        let current = self.current().into_values();
        let base: Vec<Arc<Entry>> = current.filter(|entry| keeps(&entry.key)).collect();
        let used: BTreeSet<LeaseId> = base.iter().map(|entry| entry.lease).collect();
        let revision = self.revision.saturating_add(by);
        let leases = self.leases.iter().filter(|lease| used.contains(&lease.id)).copied().collect();
        Contents { revision, compacted: revision, base, history: Vec::new(), leases }
    }
}
