//! A revisioned key-value store with etcd's semantics; it knows bytes, not Kubernetes.
//!
//! The API server keeps every object here and takes its `resourceVersion` from here. This file is
//! the contract: the types and the [`Store`] trait that the API server codes against. Engines live
//! in their own folders; [`embedded`] is the one for a single control-plane machine.
//!
//! What every engine promises:
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
//! It must never look inside a key or a value, and never answer from state that is not durable.

mod error;
mod health;
mod watch;

pub mod embedded;
#[doc(hidden)]
pub mod fuzz;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;

pub use embedded::{Clock, Config, Embedded, MonotonicClock, Retain};
pub use error::Error;
pub use health::Health;
pub use watch::Watch;

/// A point in the store's history.
pub type Revision = u64;

/// The name of a lease; 0 is "no lease".
pub type LeaseId = i64;

/// The absence of a lease on a key.
pub const NO_LEASE: LeaseId = 0;

/// A key, its value, and where in history the value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Bytes,
    pub value: Bytes,
    /// The revision at which the key came to be (again, if it was deleted in between).
    pub create_revision: Revision,
    /// The revision of the last change.
    pub mod_revision: Revision,
    /// 1 at creation, one more with each change.
    pub version: u64,
    /// The lease the key lives by, or [`NO_LEASE`].
    pub lease: LeaseId,
}

/// Which keys to read, and at which revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first key, inclusive.
    pub start: Bytes,
    /// The end, exclusive. Empty means that there is no end.
    pub end: Bytes,
    /// The most entries to return; 0 is all of them.
    pub limit: usize,
    /// `None` reads the last committed revision.
    pub revision: Option<Revision>,
    /// Return the count alone.
    pub count_only: bool,
    /// Return entries with empty values.
    pub keys_only: bool,
}

impl Range {
    /// The keys from `start` up to but not including `end`.
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Range {
        Range { start: start.into(), end: end.into(), limit: 0, revision: None, count_only: false, keys_only: false }
    }

    /// The keys that begin with `prefix`; an empty prefix means every key.
    pub fn prefix(prefix: &[u8]) -> Range {
        Range::new(Bytes::copy_from_slice(prefix), prefix_end(prefix))
    }

    /// One key.
    pub fn key(key: &[u8]) -> Range {
        let mut end = Vec::with_capacity(key.len() + 1);
        end.extend_from_slice(key);
        end.push(0);
        Range::new(Bytes::copy_from_slice(key), end)
    }

    /// The same range, beginning at `start` instead: how the next page of a list is asked for.
    pub fn from(mut self, start: impl Into<Bytes>) -> Range {
        self.start = start.into();
        self
    }

    /// The same range with at most `limit` entries.
    pub fn limit(mut self, limit: usize) -> Range {
        self.limit = limit;
        self
    }

    /// The same range as it was at `revision`.
    pub fn at(mut self, revision: Revision) -> Range {
        self.revision = Some(revision);
        self
    }

    /// The count of the same range, without its entries.
    pub fn count_only(mut self) -> Range {
        self.count_only = true;
        self
    }

    /// The keys of the same range, without their values.
    pub fn keys_only(mut self) -> Range {
        self.keys_only = true;
        self
    }
}

/// The first key after every key that begins with `prefix`; empty if there is none.
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
    /// The revision that was read.
    pub revision: Revision,
    /// The entries in order of their keys.
    pub entries: Vec<Entry>,
    /// Whether the limit left some out.
    pub more: bool,
    /// How many keys the whole range held at that revision, whatever the limit.
    pub count: u64,
}

/// What must hold of a key for an operation on it to happen.
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
    /// A put without a lease.
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

/// How a commit ended. All its operations happened at one revision, or none did.
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
        /// The entry of that operation's key, as it stands.
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

/// The changes of one revision. Empty events are a progress notification: the watcher has seen
/// everything up to and including `revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub revision: Revision,
    pub events: Arc<[Event]>,
}

/// A lease as [`Store::time_to_live`] reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    /// The time that each [`Store::keep_alive`] buys.
    pub ttl: Duration,
    /// The time left before the lease and its keys go.
    pub remaining: Duration,
    /// The keys that live by the lease, in order.
    pub keys: Vec<Bytes>,
}

/// A store with etcd's semantics. The promises are those of the crate's documentation.
pub trait Store: Send + Sync + 'static {
    /// The last committed revision.
    fn revision(&self) -> Revision;

    /// The revision before which history is gone: 0 as long as all of it is there.
    fn compacted(&self) -> Revision;

    /// The bytes that the store takes on disk.
    fn size(&self) -> u64;

    /// The bytes that are free on the store's disk; `None` if that cannot be read.
    fn free(&self) -> Option<u64>;

    /// Whether the store takes writes, as the last of them found it.
    fn health(&self) -> Health;

    /// Resolves with the reason once the store is broken, which it stays until it is opened again.
    fn broken(&self) -> BoxFuture<'static, Arc<str>>;

    /// One key, with the revision at which it was read.
    fn get(&self, key: &[u8]) -> BoxFuture<'_, Result<(Revision, Option<Entry>), Error>>;

    /// The keys of a range. Fails with [`Error::Compacted`] or [`Error::Future`] if the asked
    /// revision is before [`Store::compacted`] or after [`Store::revision`].
    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult, Error>>;

    /// All operations, or none; durable once this resolves. A commit names each key once.
    ///
    /// An error other than a refusal of the request itself (`DuplicateKey`, `EmptyKey`, `TooLarge`,
    /// `LeaseNotFound`) leaves nothing behind that a reader could see; after [`Error::Broken`] the
    /// outcome is known only once the store is opened again.
    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Outcome, Error>>;

    /// Every change of keys with this prefix at revision `from` or later, which may be in the
    /// future; 0 stands for the next commit. Fails with [`Error::Compacted`] if `from` is not after
    /// [`Store::compacted`].
    fn watch(&self, prefix: &[u8], from: Revision) -> BoxFuture<'_, Result<Watch, Error>>;

    /// Sends a progress notification to the watches of exactly this prefix, unless they were
    /// already told of this revision. Returns the revision that they will have reached.
    fn progress(&self, prefix: &[u8]) -> BoxFuture<'_, Result<Revision, Error>>;

    /// Forgets the history before `revision`; the state at `revision` stays readable. Fails with
    /// [`Error::Compacted`] if that was done before, with [`Error::Future`] for a revision to come.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), Error>>;

    /// Makes a lease. Without an id (0) the store chooses one.
    fn grant(&self, ttl: Duration, id: LeaseId) -> BoxFuture<'_, Result<LeaseId, Error>>;

    /// Ends a lease and deletes its keys, at one revision. Returns the store's revision after it.
    fn revoke(&self, id: LeaseId) -> BoxFuture<'_, Result<Revision, Error>>;

    /// Gives a lease its full time to live again, which is returned.
    fn keep_alive(&self, id: LeaseId) -> BoxFuture<'_, Result<Duration, Error>>;

    /// What is left of a lease, and its keys.
    fn time_to_live(&self, id: LeaseId) -> BoxFuture<'_, Result<Lease, Error>>;
}
