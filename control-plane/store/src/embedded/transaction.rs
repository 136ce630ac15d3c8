//! Transactions: code that the committer runs in its order, which reads the store and changes it at one revision.
//!
//! [`Store::commit`](crate::Store::commit) serves the API server, whose conditions concern one key each. A transaction
//! serves clients with any condition, such as those of etcd's API. It sees the requests before it, though they may not
//! be durable yet; hence its answer, too, is sent only after its group is synced.
//!
//! Invariant: a transaction runs on the committer's thread, so it computes and never waits.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::frame;
use super::group::Group;
use super::index::{self, Change, Snapshot};
use super::lease::Leases;
use crate::{Entry, Error, Event, EventKind, LeaseId, NO_LEASE, Range, RangeResult, Revision};

/// The most bytes of keys and values that one transaction may change.
const TRANSACTION_LIMIT: usize = 256 << 20;

/// The keys that were changed on top of a snapshot, with their entries; `None` for a deleted key.
pub type Changed = BTreeMap<Bytes, Option<Arc<Entry>>>;

/// The delivery of a transaction's answer once its group is durable, or of the error that prevented that.
pub type Deliver = Box<dyn FnOnce(Option<Error>) + Send>;

/// A queued transaction.
pub struct Transaction(Box<dyn FnOnce(&mut View<'_>) -> Deliver + Send>);

impl Transaction {
    /// Makes a transaction of code that returns the delivery of its answer.
    pub fn new(run: impl FnOnce(&mut View<'_>) -> Deliver + Send + 'static) -> Transaction {
        Transaction(Box::new(run))
    }

    pub fn run(self, view: &mut View<'_>) -> Deliver {
        (self.0)(view)
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Transaction")
    }
}

/// The store as a transaction sees it: the state before it, with its own changes on top.
pub struct View<'a> {
    group: &'a Group,
    snapshot: &'a Snapshot,
    leases: &'a Leases,
    own: Changed,
    events: Vec<Event>,
    bytes: usize,
}

impl<'a> View<'a> {
    pub(super) fn new(group: &'a Group, snapshot: &'a Snapshot, leases: &'a Leases) -> View<'a> {
        View { group, snapshot, leases, own: Changed::new(), events: Vec::new(), bytes: 0 }
    }

    pub(super) fn into_events(self) -> Vec<Event> {
        self.events
    }

    /// Returns the store's revision before the transaction.
    pub fn base_revision(&self) -> Revision {
        self.group.revision()
    }

    /// Returns the revision that the store has if the transaction ends here.
    pub fn revision(&self) -> Revision {
        self.base_revision() + u64::from(!self.events.is_empty())
    }

    pub fn get(&self, key: &[u8]) -> Option<&Arc<Entry>> {
        match self.own.get(key) {
            Some(entry) => entry.as_ref(),
            None => self.group.get(self.snapshot, key),
        }
    }

    /// Returns the keys of a range. A range without a revision sees the transaction's own changes.
    pub fn range(&self, range: &Range) -> Result<RangeResult, Error> {
        let Some(revision) = range.revision else {
            let mut changed = self.group.changed_within(range);
            changed.extend(self.own.iter().map(|(key, entry)| (key.clone(), entry.clone())));
            return Ok(self.snapshot.range_over(range, self.revision(), &changed));
        };
        if revision > self.base_revision() {
            return Err(Error::Future { requested: revision, current: self.base_revision() });
        }
        if revision < self.group.compacted() {
            return Err(Error::Compacted { compacted: self.group.compacted() });
        }
        if revision <= self.snapshot.revision {
            return self.snapshot.range(range);
        }
        Ok(self.snapshot.range_over(range, revision, &self.group.changed_until(revision)))
    }

    /// Puts a key, and returns the entry that it replaces. A transaction changes each key once.
    pub fn put(&mut self, key: Bytes, value: Bytes, lease: LeaseId) -> Result<Option<Arc<Entry>>, Error> {
        if key.is_empty() {
            return Err(Error::EmptyKey);
        }
        if lease != NO_LEASE && !self.group.is_alive(self.leases, lease) {
            return Err(Error::LeaseNotFound(lease));
        }
        self.change(key, Change::Put { value, lease })
    }

    /// Deletes a key, and returns its entry; `None` if there is none.
    pub fn delete(&mut self, key: Bytes) -> Result<Option<Arc<Entry>>, Error> {
        match self.get(&key) {
            None => Ok(None),
            Some(_) => self.change(key, Change::Delete),
        }
    }

    /// Drops all changes of the transaction.
    pub fn discard(&mut self) {
        self.own.clear();
        self.events.clear();
        self.bytes = 0;
    }

    fn change(&mut self, key: Bytes, change: Change) -> Result<Option<Arc<Entry>>, Error> {
        if self.own.contains_key(&key) {
            return Err(Error::DuplicateKey);
        }
        let value = if let Change::Put { value, .. } = &change { value.len() } else { 0 };
        self.bytes += frame::put_size(key.len(), value);
        if self.bytes > TRANSACTION_LIMIT {
            return Err(Error::TooLarge { bytes: self.bytes, limit: TRANSACTION_LIMIT });
        }
        let revision = self.base_revision() + 1;
        let previous = self.group.get(self.snapshot, &key);
        let Some(event) = index::event(previous, key, change, revision) else { return Ok(None) };
        let after = (event.kind == EventKind::Put).then(|| Arc::clone(&event.entry));
        let previous = event.previous.clone();
        self.own.insert(event.entry.key.clone(), after);
        self.events.push(event);
        Ok(previous)
    }
}
