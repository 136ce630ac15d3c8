//! A revisioned key-value store with etcd's semantics; it stores bytes and knows nothing of Kubernetes.
//!
//! The API server keeps every object here and takes its `resourceVersion` from here. This file is the contract: the
//! types and the [`Store`] trait that the API server uses. Engines live in their own folders: [`embedded`] for a single
//! control-plane machine, [`etcd`] for several API servers over one etcd cluster.
//!
//! The promises of every engine:
//!
//! - **Revisions.** The store has one counter. An empty store is at revision 1, and each commit that
//!   changes something raises it by exactly one; all changes of a commit carry that revision.
//! - **Durability.** A commit resolves only after its changes would survive a power cut. Nothing is
//!   visible to a reader or a watcher before that.
//! - **Snapshots.** A range sees the store at one revision, whole. Any revision that is not
//!   compacted away can be read.
//! - **Order.** A watch delivers every change of its prefix from its start revision on: none missed,
//!   none repeated, in order of revision, and the changes of one revision together.
//!
//! It must never interpret a key or a value, and never answer from state that is not durable.

mod error;
mod health;
mod watch;

pub mod embedded;
pub mod etcd;
#[doc(hidden)]
pub mod fuzz;
pub mod snapshot;
pub mod transfer;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;

pub use embedded::{
    Clock, CommitterPlace, Config, Embedded, Finding, Loss, MonotonicClock, Repaired, Retain, View, repair, verify,
};
pub use error::Error;
pub use health::Health;
pub use watch::Watch;

/// A revision of the store.
pub type Revision = u64;

/// The id of a lease; 0 is "no lease".
pub type LeaseId = i64;

/// The absence of a lease on a key.
pub const NO_LEASE: LeaseId = 0;

/// A key, its value, and their revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Bytes,
    pub value: Bytes,
    /// The revision at which the key was created (again, if it was deleted in between).
    pub create_revision: Revision,
    /// The revision of the last change.
    pub mod_revision: Revision,
    /// The number of changes since its creation; 1 at creation.
    pub version: u64,
    /// The lease of the key, or [`NO_LEASE`].
    pub lease: LeaseId,
}

/// The keys to read, and the revision to read them at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first key, inclusive.
    pub start: Bytes,
    /// The end, exclusive. Empty means that there is no end.
    pub end: Bytes,
    /// The most entries to return; 0 means all.
    pub limit: usize,
    /// The revision to read at; `None` reads the last committed revision.
    pub revision: Option<Revision>,
    /// Whether only the count is returned.
    pub count_only: bool,
    /// Whether entries are returned with empty values.
    pub keys_only: bool,
}

impl Range {
    /// Returns the keys from `start` up to but not including `end`.
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Range {
        Range { start: start.into(), end: end.into(), limit: 0, revision: None, count_only: false, keys_only: false }
    }

    /// Returns the keys that begin with `prefix`; an empty prefix means every key.
    pub fn prefix(prefix: &[u8]) -> Range {
        Range::new(Bytes::copy_from_slice(prefix), prefix_end(prefix))
    }

    /// Returns the range of one key.
    pub fn key(key: &[u8]) -> Range {
        let mut end = Vec::with_capacity(key.len() + 1);
        end.extend_from_slice(key);
        end.push(0);
        Range::new(Bytes::copy_from_slice(key), end)
    }

    /// Begins the range at `start` instead, for the next page of a list.
    pub fn from(mut self, start: impl Into<Bytes>) -> Range {
        self.start = start.into();
        self
    }

    /// Limits the range to `limit` entries.
    pub fn limit(mut self, limit: usize) -> Range {
        self.limit = limit;
        self
    }

    /// Reads the range at `revision`.
    pub fn at(mut self, revision: Revision) -> Range {
        self.revision = Some(revision);
        self
    }

    /// Reads the count of the range, without its entries.
    pub fn count_only(mut self) -> Range {
        self.count_only = true;
        self
    }

    /// Reads the keys of the range, without their values.
    pub fn keys_only(mut self) -> Range {
        self.keys_only = true;
        self
    }
}

/// Returns the first key after every key that begins with `prefix`; empty if there is none.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    match prefix.iter().rposition(|byte| *byte < 0xff) {
        None => Bytes::new(),
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            end.into()
        }
    }
}

/// The answer to a [`Range`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeResult {
    /// The revision of the read.
    pub revision: Revision,
    /// The entries in order of their keys.
    pub entries: Vec<Entry>,
    /// Whether the limit left out entries.
    pub more: bool,
    /// The number of keys in the entire range at that revision, regardless of the limit.
    pub count: u64,
}

/// The precondition of an operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Any,
    /// The key does not exist.
    Absent,
    /// The key exists and was last changed at this revision.
    ModRevision(Revision),
}

/// One change of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Put {
        key: Bytes,
        value: Bytes,
        lease: LeaseId,
        expect: Expect,
    },
    /// Deleting an absent key under [`Expect::Any`] changes nothing and is not an error.
    Delete {
        key: Bytes,
        expect: Expect,
    },
}

impl Op {
    /// Returns a put without a lease.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>, expect: Expect) -> Op {
        Op::Put { key: key.into(), value: value.into(), lease: NO_LEASE, expect }
    }

    pub fn delete(key: impl Into<Bytes>, expect: Expect) -> Op {
        Op::Delete { key: key.into(), expect }
    }

    pub fn key(&self) -> &Bytes {
        match self {
            Op::Put { key, .. } | Op::Delete { key, .. } => key,
        }
    }

    pub fn expect(&self) -> Expect {
        match self {
            Op::Put { expect, .. } | Op::Delete { expect, .. } => *expect,
        }
    }
}

/// The outcome of a commit. All its operations happened at one revision, or none did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Committed {
        /// The commit's revision; the store's revision if nothing had to change.
        revision: Revision,
        /// Per operation, the entry that it replaced or deleted.
        previous: Vec<Option<Arc<Entry>>>,
    },
    Conflict {
        /// The first operation whose expectation did not hold.
        op: usize,
        /// The current entry of that operation's key.
        current: Option<Entry>,
        /// The store's revision at that moment.
        revision: Revision,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Put,
    Delete,
}

/// One change, as a watcher sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// The entry after the change. For a delete: the key and the revision of the deletion in
    /// `mod_revision`, with an empty value and zeroes elsewhere.
    pub entry: Arc<Entry>,
    /// The entry before the change; `None` for a creation.
    pub previous: Option<Arc<Entry>>,
}

/// The changes of one revision. A batch without events is a progress notification: the watcher has received everything
/// up to and including `revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub revision: Revision,
    pub events: Arc<[Event]>,
}

/// A lease as [`Store::time_to_live`] reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    /// The time to live that each [`Store::keep_alive`] restores.
    pub ttl: Duration,
    /// The time left before the lease expires and its keys are deleted.
    pub remaining: Duration,
    /// The keys of the lease, in order.
    pub keys: Vec<Bytes>,
}

/// A store with etcd's semantics. The promises are those of the crate's documentation.
pub trait Store: Send + Sync + 'static {
    /// Returns the last committed revision that this process knows: the last of all, unless the store is shared.
    fn revision(&self) -> Revision;

    /// Returns whether other processes write to the store, so that [`Store::revision`] and [`Store::compacted`] may be
    /// behind.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns the last revision that was committed, by any process, before this was called; or a later one.
    fn current(&self) -> BoxFuture<'_, Result<Revision, Error>> {
        std::future::ready(Ok(self.revision())).boxed()
    }

    /// Returns the revision before which history is compacted, as far as this process knows; 0 if nothing is compacted.
    fn compacted(&self) -> Revision;

    /// Returns the most operations that a commit may have.
    fn max_ops(&self) -> usize {
        usize::MAX
    }

    /// Returns the bytes that the store takes on disk.
    fn size(&self) -> u64;

    /// Returns the bytes that are free on the store's disk; `None` if that cannot be read.
    fn free(&self) -> Option<u64>;

    /// Follows whether the store takes writes, as of the last write.
    fn follow_health(&self) -> tokio::sync::watch::Receiver<Health>;

    /// Returns whether the store takes writes, as of the last write.
    fn health(&self) -> Health {
        self.follow_health().borrow().clone()
    }

    /// Resolves with the reason once the store is broken, which it stays until it is opened again.
    fn broken(&self) -> BoxFuture<'static, Arc<str>> {
        health::broken(self.follow_health()).boxed()
    }

    /// Returns the entry of one key, with the revision of the read.
    fn get(&self, key: &[u8]) -> BoxFuture<'_, Result<(Revision, Option<Entry>), Error>>;

    /// Returns the keys of a range. Fails with [`Error::Compacted`] or [`Error::Future`] if the requested revision is
    /// before [`Store::compacted`] or after [`Store::revision`].
    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult, Error>>;

    /// Commits all operations, or none; durable once this resolves. A commit names each key once.
    ///
    /// An error other than a refusal of the request itself (`DuplicateKey`, `EmptyKey`, `TooLarge`,
    /// `LeaseNotFound`) leaves nothing behind that a reader could see; after [`Error::Broken`] the
    /// outcome is known only once the store is opened again, and after [`Error::UnknownOutcome`] by reading.
    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Outcome, Error>>;

    /// Watches every change of keys with this prefix at revision `from` or later, which may be in the future; 0 means
    /// the next commit. Fails with [`Error::Compacted`] if `from` is not after [`Store::compacted`].
    fn watch(&self, prefix: &[u8], from: Revision) -> BoxFuture<'_, Result<Watch, Error>>;

    /// Sends a progress notification to the watches of exactly this prefix, unless they have received this revision
    /// already. Returns the revision that they will have reached.
    fn progress(&self, prefix: &[u8]) -> BoxFuture<'_, Result<Revision, Error>>;

    /// Compacts the history before `revision`; the state at `revision` stays readable. Fails with [`Error::Compacted`]
    /// if that was done before, with [`Error::Future`] for a future revision.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), Error>>;

    /// Grants a lease. Without an id (0) the store chooses one.
    fn grant(&self, ttl: Duration, id: LeaseId) -> BoxFuture<'_, Result<LeaseId, Error>>;

    /// Revokes a lease and deletes its keys, at one revision. Returns the store's revision after it.
    fn revoke(&self, id: LeaseId) -> BoxFuture<'_, Result<Revision, Error>>;

    /// Restores the full time to live of a lease, and returns it.
    fn keep_alive(&self, id: LeaseId) -> BoxFuture<'_, Result<Duration, Error>>;

    /// Returns the remaining time of a lease, and its keys.
    fn time_to_live(&self, id: LeaseId) -> BoxFuture<'_, Result<Lease, Error>>;
}
