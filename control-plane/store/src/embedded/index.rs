//! The data in memory: the current entries, the entries that they replaced, and the recent history.
//!
//! Two persistent maps make a snapshot free. `current` holds the existing entries. `past` holds, for every change since
//! the last compaction, the entry that the change replaced, under the key and the revision of the change: the value of
//! a key at revision R is the first past entry with a revision above R, or else the current one. So current reads are
//! fast, and compaction removes exactly the past entries of the batches that it drops from the history.
//!
//! Pure data: no locks, no files, no clock.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imbl::OrdMap;

use super::config::Retain;
use super::transaction::Changed;
use crate::{Batch, Entry, Error, Event, EventKind, LeaseId, NO_LEASE, Range, RangeResult, Revision};

/// The revision of an empty store.
const FIRST_REVISION: Revision = 1;

/// The bytes of an event of the history beside the value that it replaced: the event itself, and its entries in the
/// maps.
const EVENT_BYTES: u64 = 250;

/// A key and the revision at which an entry of it was replaced.
type Replaced = (Bytes, Revision);

/// The store at one revision, and its history since the last compaction. A clone is free.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub revision: Revision,
    pub compacted: Revision,
    current: OrdMap<Bytes, Arc<Entry>>,
    past: OrdMap<Replaced, Option<Arc<Entry>>>,
}

impl Snapshot {
    pub fn get(&self, key: &[u8]) -> Option<&Arc<Entry>> {
        self.current.get(key)
    }

    /// Returns the current entries in order.
    pub fn current(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.current.values()
    }

    /// Returns the entries at the compacted revision, in order: the base of the history.
    pub fn base(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.as_of(&Bytes::new(), &Bytes::new(), self.compacted)
    }

    /// Answers a range.
    pub fn range(&self, range: &Range) -> Result<RangeResult, Error> {
        let revision = range.revision.unwrap_or(self.revision);
        if revision > self.revision {
            return Err(Error::Future { requested: revision, current: self.revision });
        }
        if revision < self.compacted {
            return Err(Error::Compacted { compacted: self.compacted });
        }
        if !range.end.is_empty() && range.start >= range.end {
            return Ok(RangeResult { revision, entries: Vec::new(), more: false, count: 0 });
        }
        Ok(if revision == self.revision {
            let entries = self.current.range(bounds(&range.start, &range.end)).map(|(_, entry)| entry);
            collect(range, revision, entries)
        } else {
            collect(range, revision, self.as_of(&range.start, &range.end, revision))
        })
    }

    /// Answers a range at a revision that is the snapshot's with `changed` on top; `range.revision` is not read.
    pub fn range_over(&self, range: &Range, revision: Revision, changed: &Changed) -> RangeResult {
        if !range.end.is_empty() && range.start >= range.end {
            return RangeResult { revision, entries: Vec::new(), more: false, count: 0 };
        }
        let unchanged = self.current.range(bounds(&range.start, &range.end)).map(|(_, entry)| entry);
        let mut unchanged = unchanged.filter(|entry| !changed.contains_key(&entry.key)).peekable();
        let changed = changed.range::<Bytes, _>(bounds(&range.start, &range.end));
        let mut changed = changed.filter_map(|(_, entry)| entry.as_ref()).peekable();
        let merged = std::iter::from_fn(|| match (unchanged.peek(), changed.peek()) {
            (Some(left), Some(right)) if left.key < right.key => unchanged.next(),
            (Some(_), None) => unchanged.next(),
            _ => changed.next(),
        });
        collect(range, revision, merged)
    }

    /// Returns the entries between two keys at a revision, in order.
    fn as_of<'a>(
        &'a self,
        start: &Bytes,
        end: &Bytes,
        revision: Revision,
    ) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
        let (past_start, past_end) = bounds(start, end);
        let past_bounds = (past_start.map(|key| (key, 0)), past_end.map(|key| (key, 0)));
        let current = self.current.range(bounds(start, end));
        let past = self.past.range(past_bounds);
        AsOf { revision, current: current.peekable(), past: past.peekable() }
    }
}

/// Returns the bounds of a range: `start` inclusive, `end` exclusive; an empty `end` means that there is none.
fn bounds(start: &Bytes, end: &Bytes) -> (Bound<Bytes>, Bound<Bytes>) {
    let end = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(end.clone()) };
    (Bound::Included(start.clone()), end)
}

fn collect<'a>(range: &Range, revision: Revision, entries: impl Iterator<Item = &'a Arc<Entry>>) -> RangeResult {
    let mut result = RangeResult { revision, entries: Vec::new(), more: false, count: 0 };
    for entry in entries {
        result.count += 1;
        if range.count_only {
            continue;
        }
        if range.limit > 0 && result.entries.len() == range.limit {
            result.more = true;
            continue;
        }
        let mut entry = Entry::clone(entry);
        if range.keys_only {
            entry.value = Bytes::new();
        }
        result.entries.push(entry);
    }
    result
}

/// An iterator that merges the current entries with the past ones into the entries at `revision`.
struct AsOf<'a, C, P>
where
    C: Iterator<Item = (&'a Bytes, &'a Arc<Entry>)>,
    P: Iterator<Item = (&'a Replaced, &'a Option<Arc<Entry>>)>,
{
    revision: Revision,
    current: Peekable<C>,
    past: Peekable<P>,
}

impl<'a, C, P> Iterator for AsOf<'a, C, P>
where
    C: Iterator<Item = (&'a Bytes, &'a Arc<Entry>)>,
    P: Iterator<Item = (&'a Replaced, &'a Option<Arc<Entry>>)>,
{
    type Item = &'a Arc<Entry>;

    fn next(&mut self) -> Option<&'a Arc<Entry>> {
        loop {
            let Some((past_key, _)) = self.past.peek().map(|(replaced, _)| *replaced) else {
                return self.current.next().map(|(_, entry)| entry);
            };
            if self.current.peek().is_some_and(|(key, _)| *key < past_key) {
                return self.current.next().map(|(_, entry)| entry);
            }
            // All entries of this key are consumed before deciding.
            let now = self.current.next_if(|(key, _)| *key == past_key).map(|(_, entry)| entry);
            let mut then = None;
            while let Some(((_, replaced), entry)) = self.past.next_if(|((key, _), _)| key == past_key) {
                if *replaced > self.revision && then.is_none() {
                    then = Some(entry.as_ref());
                }
            }
            if let Some(entry) = then.unwrap_or(now) {
                return Some(entry);
            }
        }
    }
}

/// A change of a key.
pub enum Change {
    Put { value: Bytes, lease: LeaseId },
    Delete,
}

/// Returns the event of a change to the entry `previous`; `None` if nothing would change.
pub fn event(previous: Option<&Arc<Entry>>, key: Bytes, change: Change, revision: Revision) -> Option<Event> {
    // The key's first buffer is kept for as long as the key exists.
    let key = previous.map_or(key, |previous| previous.key.clone());
    let (kind, entry) = match change {
        Change::Put { value, lease } => {
            let (create_revision, version) = previous.map_or((revision, 1), |p| (p.create_revision, p.version + 1));
            (EventKind::Put, Entry { key, value, create_revision, mod_revision: revision, version, lease })
        }
        Change::Delete => {
            previous?;
            let tombstone = Entry {
                key,
                value: Bytes::new(),
                create_revision: 0,
                mod_revision: revision,
                version: 0,
                lease: NO_LEASE,
            };
            (EventKind::Delete, tombstone)
        }
    };
    Some(Event { kind, entry: Arc::new(entry), previous: previous.cloned() })
}

/// The current snapshot, and the batches since the last compaction for watches that begin earlier.
#[derive(Debug)]
pub struct Index {
    snapshot: Snapshot,
    history: VecDeque<Kept>,
    /// The bytes that `history` takes.
    history_bytes: u64,
    /// The bytes of the current values.
    current_bytes: u64,
}

#[derive(Debug)]
struct Kept {
    batch: Batch,
    /// The time at which it was applied.
    at: Duration,
    /// The bytes that it takes.
    bytes: u64,
}

impl Index {
    /// Makes an index whose history begins after `compacted`, with the entries of that revision.
    pub fn new(compacted: Revision, entries: impl IntoIterator<Item = Entry>) -> Index {
        let current: OrdMap<Bytes, Arc<Entry>> =
            entries.into_iter().map(|entry| (entry.key.clone(), Arc::new(entry))).collect();
        let current_bytes = current.values().map(|entry| entry.value.len() as u64).sum();
        let revision = compacted.max(FIRST_REVISION);
        let snapshot = Snapshot { revision, compacted, current, past: OrdMap::new() };
        Index { snapshot, history: VecDeque::new(), history_bytes: 0, current_bytes }
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Applies the next revision. Invariant: its events were made from the current state.
    pub fn apply(&mut self, batch: Batch, now: Duration) {
        debug_assert_eq!(batch.revision, self.snapshot.revision + 1, "revisions have no gaps");
        let mut bytes = 0;
        for event in batch.events.iter() {
            let key = event.entry.key.clone();
            let replaced = match event.kind {
                EventKind::Put => self.snapshot.current.insert(key.clone(), Arc::clone(&event.entry)),
                EventKind::Delete => self.snapshot.current.remove(&key),
            };
            let replaced_bytes = replaced.as_ref().map_or(0, |entry| entry.value.len() as u64);
            self.current_bytes += event.entry.value.len() as u64;
            self.current_bytes -= replaced_bytes;
            bytes += EVENT_BYTES + replaced_bytes;
            self.snapshot.past.insert((key, batch.revision), replaced);
        }
        self.snapshot.revision = batch.revision;
        self.history_bytes += bytes;
        self.history.push_back(Kept { batch, at: now, bytes });
    }

    /// Returns the batches from `from` on. Fails if some of them are compacted.
    pub fn history(&self, from: Revision) -> Result<impl Iterator<Item = &Batch>, Error> {
        if from <= self.snapshot.compacted {
            return Err(Error::Compacted { compacted: self.snapshot.compacted });
        }
        let start = self.history.partition_point(|kept| kept.batch.revision < from);
        Ok(self.history.range(start..).map(|kept| &kept.batch))
    }

    /// Compacts the history before `revision`. [`Index::reclaim`] then frees it step by step.
    pub fn compact(&mut self, revision: Revision) {
        debug_assert!(revision <= self.snapshot.revision, "only what happened can be compacted");
        self.snapshot.compacted = self.snapshot.compacted.max(revision);
    }

    /// Reports whether [`Index::reclaim`] has something to do.
    pub fn is_reclaimable(&self) -> bool {
        self.history.front().is_some_and(|kept| kept.batch.revision <= self.snapshot.compacted)
    }

    /// Frees up to `limit` compacted revisions.
    pub fn reclaim(&mut self, limit: usize) {
        for _ in 0..limit {
            if !self.is_reclaimable() {
                return;
            }
            let Some(kept) = self.history.pop_front() else { return };
            self.history_bytes -= kept.bytes;
            for event in kept.batch.events.iter() {
                self.snapshot.past.remove(&(event.entry.key.clone(), kept.batch.revision));
            }
        }
    }

    /// Returns the revision to compact to so that the history fits `retain`, unless it fits already.
    pub fn excess(&self, retain: &Retain, now: Duration) -> Option<Revision> {
        let first = self.history.partition_point(|kept| kept.batch.revision <= self.snapshot.compacted);
        let mut revisions = (self.history.len() - first) as u64;
        let gone: u64 = self.history.range(..first).map(|kept| kept.bytes).sum();
        let mut bytes = self.history_bytes - gone;
        let most_bytes = (self.current_bytes / 2).max(retain.least_bytes).min(retain.most_bytes);
        let mut compact_to = None;
        for kept in self.history.range(first..) {
            let fits = revisions <= retain.revisions && bytes <= most_bytes;
            if fits && now.saturating_sub(kept.at) < retain.time {
                break;
            }
            revisions -= 1;
            bytes -= kept.bytes;
            compact_to = Some(kept.batch.revision);
        }
        compact_to
    }

    /// Returns the time at which the oldest history was applied; `None` without history.
    pub fn oldest(&self) -> Option<Duration> {
        self.history.front().map(|kept| kept.at)
    }
}
