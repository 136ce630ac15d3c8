//! The buckets of etcd's database as the content of a store.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corten_etcd::mvccpb::KeyValue;
use prost::Message as _;

use super::bolt::{Bucket, Database, ReadAt};
use super::encode::StoredLease;
use super::records::{KEY_BUCKET, RecordKey};
use super::{Contents, Grant};
use crate::{Batch, Entry, Event, EventKind, NO_LEASE, Revision};

/// The longest time to live that etcd grants, in seconds.
const LONGEST_TTL: i64 = 9_000_000_000;

pub fn decode(database: &Database<impl ReadAt>) -> Result<Contents, String> {
    let keys = database.bucket(KEY_BUCKET)?.ok_or("it has no bucket \"key\": it is no database of etcd")?;
    let mut replay = Replay::new(compacted(database)?);
    database.for_each(&keys, |key, value| replay.record(key, value))?;
    replay.finish(leases(database)?)
}

/// Returns the compacted revision. A compaction that was scheduled and not finished counts: etcd would finish it.
fn compacted(database: &Database<impl ReadAt>) -> Result<Revision, String> {
    let Some(meta) = database.bucket(b"meta")? else { return Ok(0) };
    let mut compacted = 0;
    database.for_each(&meta, |key, value| {
        if matches!(key, b"scheduledCompactRev" | b"finishedCompactRev") {
            let revision = RecordKey::parse(value).ok_or("the compacted revision is damaged")?.revision;
            compacted = compacted.max(revision);
        }
        Ok(())
    })?;
    Ok(compacted)
}

fn leases(database: &Database<impl ReadAt>) -> Result<Vec<Grant>, String> {
    let bucket = database.bucket(b"lease")?.unwrap_or(Bucket::Inline(Vec::new()));
    if matches!(&bucket, Bucket::Inline(page) if page.is_empty()) {
        return Ok(Vec::new());
    }
    let mut leases = Vec::new();
    database.for_each(&bucket, |_, value| {
        let lease = StoredLease::decode(value).map_err(|error| format!("a lease is damaged: {error}"))?;
        let seconds = lease.ttl.clamp(1, LONGEST_TTL).unsigned_abs();
        leases.push(Grant { id: lease.id, ttl: Duration::from_secs(seconds) });
        Ok(())
    })?;
    leases.sort_unstable_by_key(|lease| lease.id);
    leases.dedup_by_key(|lease| lease.id);
    Ok(leases)
}

/// The state while the records are replayed.
struct Replay {
    compacted: Revision,
    revision: Revision,
    current: BTreeMap<Bytes, Arc<Entry>>,
    /// The base of the history, once a record comes after it.
    base: Option<Vec<Arc<Entry>>>,
    history: Vec<Batch>,
    /// The changes of the revision that is being read.
    events: Vec<Event>,
    /// The keys of the revision that is being read.
    changed: HashSet<Bytes>,
}

impl Replay {
    fn new(compacted: Revision) -> Replay {
        Replay {
            compacted,
            revision: 0,
            current: BTreeMap::new(),
            base: None,
            history: Vec::new(),
            events: Vec::new(),
            changed: HashSet::new(),
        }
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let at = RecordKey::parse(key).ok_or("a key of the bucket \"key\" is no revision")?;
        let damaged = |what: &str| format!("the record of revision {}: {what}", at.revision);
        if at.revision != self.revision {
            self.close_revision();
            self.open_revision(at.revision);
        }
        // `etcdutl snapshot restore --bump-revision` leaves such a record.
        if value.is_empty() {
            return Ok(());
        }
        let record = KeyValue::decode(value).map_err(|error| damaged(&error.to_string()))?;
        if record.key.is_empty() {
            return Err(damaged("its key is empty"));
        }
        if !self.changed.insert(record.key.clone()) {
            return Err(damaged("its key is changed twice"));
        }
        let previous = self.current.get(&record.key).cloned();
        let (kind, entry) = if at.is_tombstone {
            (EventKind::Delete, tombstone(record.key, at.revision))
        } else {
            let entry = entry(record, at.revision).ok_or_else(|| damaged("its revisions make no sense"))?;
            (EventKind::Put, entry)
        };
        let entry = Arc::new(entry);
        match kind {
            EventKind::Put => self.current.insert(entry.key.clone(), Arc::clone(&entry)),
            EventKind::Delete => self.current.remove(&entry.key),
        };
        // A key that is deleted without having existed is a remnant of a compaction.
        if kind == EventKind::Put || previous.is_some() {
            self.events.push(Event { kind, entry, previous });
        }
        Ok(())
    }

    /// Begins a revision. After a gap, the history begins anew: etcd cannot answer for the revisions in the gap either.
    fn open_revision(&mut self, revision: Revision) {
        let is_next = self.base.is_some() && revision == self.revision + 1;
        if revision > self.compacted && !is_next {
            self.compacted = if revision == 2 { self.compacted } else { revision - 1 };
            self.base = Some(self.current.values().cloned().collect());
            self.history.clear();
        }
        self.revision = revision;
    }

    /// Ends a revision: what it changed is history, unless it is compacted.
    fn close_revision(&mut self) {
        let events = std::mem::take(&mut self.events);
        self.changed.clear();
        if self.base.is_none() {
            return;
        }
        if events.is_empty() {
            // Nothing changed, so the state is that of a compaction to this revision.
            self.compacted = self.revision;
            self.base = Some(self.current.values().cloned().collect());
            self.history.clear();
        } else {
            self.history.push(Batch { revision: self.revision, events: events.into() });
        }
    }

    fn finish(mut self, leases: Vec<Grant>) -> Result<Contents, String> {
        self.close_revision();
        let base = self.base.unwrap_or_else(|| self.current.into_values().collect());
        let revision = self.revision.max(self.compacted).max(1);
        let mut contents = Contents { revision, compacted: self.compacted, base, history: self.history, leases };
        if contents.history.is_empty() && contents.compacted > 0 {
            contents.compacted = contents.revision;
        }
        Ok(contents)
    }
}

fn entry(record: KeyValue, revision: Revision) -> Option<Entry> {
    let entry = Entry {
        create_revision: u64::try_from(record.create_revision).ok()?,
        mod_revision: u64::try_from(record.mod_revision).ok()?,
        version: u64::try_from(record.version).ok()?,
        lease: record.lease,
        key: record.key,
        value: record.value,
    };
    let is_valid = entry.mod_revision == revision && entry.create_revision <= revision && entry.version > 0;
    is_valid.then_some(entry)
}

fn tombstone(key: Bytes, revision: Revision) -> Entry {
    Entry { key, value: Bytes::new(), create_revision: 0, mod_revision: revision, version: 0, lease: NO_LEASE }
}
