//! The history of a run: each request with the time of its begin and end, and each event of each watch.
//!
//! Times are nanoseconds since the start of the run, by one clock. Versions are resourceVersions: the store's revisions, which
//! order all writes.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Create,
    Update,
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Acknowledged, with the version that it made; the answer to a deletion has none.
    Done(Option<u64>),
    /// The server said that it did not take place.
    Refused,
    /// No answer, or one that leaves it open: it may take place or not, also later.
    Unknown,
}

/// A write. Values are unique: each names the write that made it.
#[derive(Clone, Debug)]
pub struct Write {
    pub key: String,
    pub kind: Kind,
    pub value: String,
    /// The version that the object must have; none for a create.
    pub expected: Option<u64>,
    pub began: u64,
    pub ended: u64,
    pub outcome: Outcome,
}

/// An object as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub version: u64,
    pub value: String,
}

#[derive(Clone, Debug)]
pub struct Read {
    pub key: String,
    pub began: u64,
    pub ended: u64,
    pub found: Option<Found>,
}

#[derive(Clone, Debug)]
pub struct Listing {
    pub began: u64,
    pub version: u64,
    pub items: BTreeMap<String, Found>,
    pub ended: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub version: u64,
    pub key: String,
    pub value: String,
    pub is_deletion: bool,
}

/// A watch over all its connections: it went on after its last version, however often it was broken.
#[derive(Clone, Debug)]
pub struct Watch {
    pub name: String,
    /// The version after which it began.
    pub from: u64,
    /// The version up to which it was told everything.
    pub until: u64,
    pub events: Vec<Event>,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub writes: Vec<Write>,
    pub reads: Vec<Read>,
    pub listings: Vec<Listing>,
    pub watches: Vec<Watch>,
}
