//! The records of etcd's bucket `key`: every kept change of every key, under its revision.
//!
//! A record's key is the revision and the number of the change in it, with a mark for deletions; its value is a
//! `mvccpb.KeyValue`, which for a deletion has the key alone.

use std::collections::{HashMap, HashSet};

use corten_etcd::mvccpb::KeyValue;
use prost::Message as _;

use super::Contents;
use crate::{Entry, Event, EventKind, Revision};

/// The length of an encoded revision.
const REVISION_BYTES: usize = 17;
const SEPARATOR: u8 = b'_';
const TOMBSTONE: u8 = b't';

/// The name of the bucket, which is part of the hash.
pub const KEY_BUCKET: &[u8] = b"key";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKey {
    pub revision: Revision,
    /// The number of the change in its revision.
    pub sub: u64,
    pub is_tombstone: bool,
}

impl RecordKey {
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = encode_revision(self.revision, self.sub);
        if self.is_tombstone {
            bytes.push(TOMBSTONE);
        }
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Option<RecordKey> {
        let is_tombstone = match bytes.len().checked_sub(REVISION_BYTES)? {
            0 => false,
            1 => (bytes[REVISION_BYTES] == TOMBSTONE).then_some(true)?,
            _ => return None,
        };
        (bytes[8] == SEPARATOR).then_some(())?;
        let revision = u64::from_be_bytes(bytes[..8].try_into().ok()?);
        let sub = u64::from_be_bytes(bytes[9..REVISION_BYTES].try_into().ok()?);
        // Revisions are signed in etcd's API.
        i64::try_from(revision).ok()?;
        Some(RecordKey { revision, sub, is_tombstone })
    }
}

/// Encodes a revision, as record keys and the compacted revision have it.
pub fn encode_revision(revision: Revision, sub: u64) -> Vec<u8> {
    let mut bytes = revision.to_be_bytes().to_vec();
    bytes.push(SEPARATOR);
    bytes.extend_from_slice(&sub.to_be_bytes());
    bytes
}

/// Returns the records of a store, in order.
pub fn records(contents: &Contents) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    base_records(contents).map(|(key, entry)| (key.encode(), encode_entry(entry))).chain(history_records(contents))
}

/// Returns the entries of the base with their record keys. The entries of one revision are numbered anew: their original
/// numbers are not kept, and mean nothing.
fn base_records(contents: &Contents) -> impl Iterator<Item = (RecordKey, &Entry)> {
    let mut base: Vec<&Entry> = contents.base.iter().map(|entry| &**entry).collect();
    base.sort_unstable_by(|left, right| (left.mod_revision, &left.key).cmp(&(right.mod_revision, &right.key)));
    let mut last = RecordKey { revision: 0, sub: 0, is_tombstone: false };
    base.into_iter().map(move |entry| {
        let sub = if entry.mod_revision == last.revision { last.sub + 1 } else { 0 };
        last = RecordKey { revision: entry.mod_revision, sub, is_tombstone: false };
        (last, entry)
    })
}

fn history_records(contents: &Contents) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    contents.history.iter().flat_map(|batch| {
        batch.events.iter().zip(0..).map(|(event, sub)| {
            let is_tombstone = event.kind == EventKind::Delete;
            let key = RecordKey { revision: batch.revision, sub, is_tombstone };
            let value = if is_tombstone { encode_tombstone(&event.entry) } else { encode_entry(&event.entry) };
            (key.encode(), value)
        })
    })
}

/// Returns etcd's hash of the keys up to a revision: CRC-32C of the bucket's name and of the records that a compaction
/// to that revision would leave, together with all records since the last one.
pub fn hash(contents: &Contents, until: Revision) -> u32 {
    let history = contents.history.iter().take_while(|batch| batch.revision <= until);
    let events: Vec<&Event> = history.flat_map(|batch| batch.events.iter()).collect();
    let replaced: HashSet<&[u8]> = events.iter().map(|event| &*event.entry.key).collect();
    let kept = |entry: &Entry| !replaced.contains(&*entry.key);
    // Of a store without any key, etcd hashes all records.
    let last: HashMap<&[u8], EventKind> = events.iter().map(|event| (&*event.entry.key, event.kind)).collect();
    let is_empty = !contents.base.iter().any(|entry| kept(entry)) && !last.values().any(|kind| *kind == EventKind::Put);
    let base = base_records(contents).filter(|(_, entry)| is_empty || kept(entry));
    let base = base.map(|(key, entry)| (key.encode(), encode_entry(entry)));
    let history = history_records(contents).take(events.len());
    let sum = crc32c::crc32c(KEY_BUCKET);
    base.chain(history).fold(sum, |sum, (key, value)| crc32c::crc32c_append(crc32c::crc32c_append(sum, &key), &value))
}

fn encode_entry(entry: &Entry) -> Vec<u8> {
    let record = KeyValue {
        key: entry.key.clone(),
        create_revision: signed(entry.create_revision),
        mod_revision: signed(entry.mod_revision),
        version: signed(entry.version),
        value: entry.value.clone(),
        lease: entry.lease,
    };
    record.encode_to_vec()
}

fn encode_tombstone(entry: &Entry) -> Vec<u8> {
    KeyValue { key: entry.key.clone(), ..KeyValue::default() }.encode_to_vec()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
