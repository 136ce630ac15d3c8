//! Everything in a store, apart from its engine.

use std::collections::BTreeMap;
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
}
