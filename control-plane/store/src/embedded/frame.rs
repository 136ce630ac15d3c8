//! The bytes on disk: frames and their items. Pure encoding; no files.
//!
//! A frame is the unit of durability: one frame is written per group of commits and then synced, so after a crash at
//! most the last frame can be torn, and a torn frame was never acknowledged. Frames have a sequence number without
//! gaps, by which recovery proves that nothing is missing.
//!
//! ```text
//! magic u32 | payload length u32 | sequence u64 | crc32c u32 | zero u32 | payload | zeroes to 8
//! ```
//!
//! The checksum covers a salt of the file, the length, the sequence and the payload. The salt makes a frame valid in
//! its own file only: bytes of a log that a user stored as a value are not one. All numbers are little-endian.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;

use crate::{Entry, Event, EventKind, LeaseId, Revision};

const MAGIC: u32 = u32::from_le_bytes(*b"CtnF");
pub const HEADER: usize = 24;

/// Begins a frame with an empty header; items are appended, then [`seal`] finishes it.
pub fn begin(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(HEADER, 0);
}

/// Reports whether nothing was appended since [`begin`].
pub fn is_empty(buffer: &[u8]) -> bool {
    buffer.len() <= HEADER
}

/// Fills in the header and the padding.
pub fn seal(buffer: &mut Vec<u8>, salt: u64, sequence: u64) {
    let length = (buffer.len() - HEADER) as u32;
    buffer[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    buffer[4..8].copy_from_slice(&length.to_le_bytes());
    buffer[8..16].copy_from_slice(&sequence.to_le_bytes());
    let sum = checksum(salt, &buffer[4..16], &buffer[HEADER..]);
    buffer[16..20].copy_from_slice(&sum.to_le_bytes());
    buffer.resize(buffer.len().next_multiple_of(8), 0);
}

fn checksum(salt: u64, head: &[u8], payload: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&salt.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(sum, head), payload)
}

/// A frame found in a buffer.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub sequence: u64,
    pub payload: &'a [u8],
    /// The offset of the next frame.
    pub end: usize,
}

/// Returns the valid frame at `offset`, if there is one.
pub fn parse(buffer: &[u8], offset: usize, salt: u64) -> Option<Frame<'_>> {
    let head = Head::parse(buffer.get(offset..offset.checked_add(HEADER)?)?)?;
    let start = offset + HEADER;
    let payload = buffer.get(start..start.checked_add(head.length)?)?;
    let end = (start + head.length).next_multiple_of(8);
    head.matches(salt, payload).then_some(Frame { sequence: head.sequence, payload, end })
}

/// Returns the first valid frame at or after `offset`: used after damage, to distinguish a torn end from a hole in the
/// middle.
pub fn find(buffer: &[u8], offset: usize, salt: u64) -> Option<Frame<'_>> {
    let magic = MAGIC.to_le_bytes();
    (offset.next_multiple_of(8)..buffer.len())
        .step_by(8)
        .filter(|at| buffer[*at..].starts_with(&magic))
        .find_map(|at| parse(buffer, at, salt))
}

/// Reads the next frame of a file that is read from front to back, and returns its sequence.
pub fn read(file: &mut impl Read, salt: u64, payload: &mut Vec<u8>, limit: usize) -> Result<u64, String> {
    let failed = |error: std::io::Error| format!("a frame cannot be read: {error}");
    let mut header = [0; HEADER];
    file.read_exact(&mut header).map_err(failed)?;
    let head = Head::parse(&header).ok_or("a frame does not begin where it should")?;
    if head.length > limit {
        return Err(format!("a frame claims {} bytes", head.length));
    }
    payload.clear();
    payload.resize(head.length.next_multiple_of(8), 0);
    file.read_exact(payload).map_err(failed)?;
    payload.truncate(head.length);
    if !head.matches(salt, payload) {
        return Err("the checksum of a frame does not match".to_owned());
    }
    Ok(head.sequence)
}

struct Head {
    length: usize,
    sequence: u64,
    sum: u32,
    summed: [u8; 12],
}

impl Head {
    fn parse(header: &[u8]) -> Option<Head> {
        let mut reader = Reader { bytes: header };
        if reader.u32()? != MAGIC {
            return None;
        }
        let summed: [u8; 12] = header.get(4..16)?.try_into().ok()?;
        Some(Head { length: reader.u32()? as usize, sequence: reader.u64()?, sum: reader.u32()?, summed })
    }

    fn matches(&self, salt: u64, payload: &[u8]) -> bool {
        checksum(salt, &self.summed, payload) == self.sum
    }
}

const COMMIT: u8 = 1;
const COMPACT: u8 = 2;
const GRANT: u8 = 3;
const REVOKE: u8 = 4;
const ENTRY: u8 = 5;
const END: u8 = 6;

const PUT: u8 = 1;
const DELETE: u8 = 2;

/// One item of a frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    Commit {
        revision: Revision,
        changes: Vec<(&'a [u8], Logged<'a>)>,
    },
    Compact(Revision),
    Grant(LeaseId, Duration),
    Revoke(LeaseId),
    /// An entry of a checkpoint's base.
    Entry(Entry),
    /// The end of a checkpoint, with the number of items before it.
    End(u64),
}

/// A change as the log holds it. The replaced entry follows from the state at that point.
#[derive(Debug, PartialEq, Eq)]
pub enum Logged<'a> {
    Put { value: &'a [u8], lease: LeaseId },
    Delete,
}

/// Returns an upper bound of the bytes that a put of this size takes in a frame.
pub const fn put_size(key: usize, value: usize) -> usize {
    key + value + 32
}

pub fn push_commit(buffer: &mut Vec<u8>, revision: Revision, events: &[Event]) {
    buffer.push(COMMIT);
    buffer.extend_from_slice(&revision.to_le_bytes());
    buffer.extend_from_slice(&(events.len() as u32).to_le_bytes());
    for event in events {
        match event.kind {
            EventKind::Put => {
                buffer.push(PUT);
                buffer.extend_from_slice(&event.entry.lease.to_le_bytes());
                push_bytes(buffer, &event.entry.key);
                push_bytes(buffer, &event.entry.value);
            }
            EventKind::Delete => {
                buffer.push(DELETE);
                push_bytes(buffer, &event.entry.key);
            }
        }
    }
}

pub fn push_compact(buffer: &mut Vec<u8>, revision: Revision) {
    buffer.push(COMPACT);
    buffer.extend_from_slice(&revision.to_le_bytes());
}

pub fn push_grant(buffer: &mut Vec<u8>, id: LeaseId, ttl: Duration) {
    buffer.push(GRANT);
    buffer.extend_from_slice(&id.to_le_bytes());
    buffer.extend_from_slice(&u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).to_le_bytes());
}

pub fn push_revoke(buffer: &mut Vec<u8>, id: LeaseId) {
    buffer.push(REVOKE);
    buffer.extend_from_slice(&id.to_le_bytes());
}

pub fn push_entry(buffer: &mut Vec<u8>, entry: &Entry) {
    buffer.push(ENTRY);
    for number in [entry.create_revision, entry.mod_revision, entry.version] {
        buffer.extend_from_slice(&number.to_le_bytes());
    }
    buffer.extend_from_slice(&entry.lease.to_le_bytes());
    push_bytes(buffer, &entry.key);
    push_bytes(buffer, &entry.value);
}

pub fn push_end(buffer: &mut Vec<u8>, items: u64) {
    buffer.push(END);
    buffer.extend_from_slice(&items.to_le_bytes());
}

fn push_bytes(buffer: &mut Vec<u8>, bytes: &[u8]) {
    buffer.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    buffer.extend_from_slice(bytes);
}

/// Returns the items of a payload, in order; `None` in place of an invalid item.
pub fn items(payload: &[u8]) -> impl Iterator<Item = Option<Item<'_>>> {
    let mut reader = Reader { bytes: payload };
    std::iter::from_fn(move || {
        if reader.bytes.is_empty() {
            return None;
        }
        let item = reader.item();
        if item.is_none() {
            reader.bytes = &[];
        }
        Some(item)
    })
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.take(8)?.try_into().ok().map(i64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    fn item(&mut self) -> Option<Item<'a>> {
        Some(match self.u8()? {
            COMMIT => self.commit()?,
            COMPACT => Item::Compact(self.u64()?),
            GRANT => Item::Grant(self.i64()?, Duration::from_millis(self.u64()?)),
            REVOKE => Item::Revoke(self.i64()?),
            ENTRY => Item::Entry(self.entry()?),
            END => Item::End(self.u64()?),
            _ => return None,
        })
    }

    fn commit(&mut self) -> Option<Item<'a>> {
        let revision = self.u64()?;
        let count = self.u32()?;
        let mut changes = Vec::new();
        for _ in 0..count {
            changes.push(match self.u8()? {
                PUT => {
                    let lease = self.i64()?;
                    (self.bytes()?, Logged::Put { lease, value: self.bytes()? })
                }
                DELETE => (self.bytes()?, Logged::Delete),
                _ => return None,
            });
        }
        Some(Item::Commit { revision, changes })
    }

    fn entry(&mut self) -> Option<Entry> {
        Some(Entry {
            create_revision: self.u64()?,
            mod_revision: self.u64()?,
            version: self.u64()?,
            lease: self.i64()?,
            key: Bytes::copy_from_slice(self.bytes()?),
            value: Bytes::copy_from_slice(self.bytes()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(salt: u64, sequence: u64) -> Vec<u8> {
        let mut buffer = Vec::new();
        begin(&mut buffer);
        push_compact(&mut buffer, 7);
        push_grant(&mut buffer, -3, Duration::from_secs(9));
        push_revoke(&mut buffer, 4);
        seal(&mut buffer, salt, sequence);
        buffer
    }

    #[test]
    fn a_frame_has_the_items_that_were_put_in() {
        let buffer = sample(11, 5);
        let frame = parse(&buffer, 0, 11).unwrap();
        assert_eq!((frame.sequence, frame.end), (5, buffer.len()));
        let items: Vec<_> = items(frame.payload).map(Option::unwrap).collect();
        let expected = [Item::Compact(7), Item::Grant(-3, Duration::from_secs(9)), Item::Revoke(4)];
        assert_eq!(items, expected);
    }

    #[test]
    fn a_changed_bit_anywhere_is_noticed() {
        let good = sample(11, 5);
        // The four bytes after the checksum and the padding at the end are unused.
        let length = u32::from_le_bytes(good[4..8].try_into().unwrap()) as usize;
        let meaningful = (0..20).chain(HEADER..HEADER + length);
        for byte in meaningful {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[byte] ^= 1 << bit;
                assert_eq!(parse(&bad, 0, 11), None, "byte {byte} bit {bit}");
            }
        }
        assert_eq!(parse(&good, 0, 12), None, "another file's salt");
        for cut in 0..HEADER + length {
            assert_eq!(parse(&good[..cut], 0, 11), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_frame_is_found_behind_damage() {
        let mut buffer = vec![0; 64];
        buffer.extend_from_slice(&MAGIC.to_le_bytes());
        buffer.extend_from_slice(&[0xff; 36]);
        buffer.resize(buffer.len().next_multiple_of(8), 0);
        assert_eq!(find(&buffer, 0, 11), None);
        buffer.extend(sample(11, 5));
        assert_eq!(find(&buffer, 0, 11).map(|frame| frame.sequence), Some(5));
        assert_eq!(find(&buffer, 0, 12), None);
    }

    #[test]
    fn an_invalid_item_ends_the_items() {
        let mut payload = Vec::new();
        push_compact(&mut payload, 7);
        payload.push(99);
        payload.extend_from_slice(&[0; 20]);
        let items: Vec<_> = items(&payload).collect();
        assert_eq!(items, [Some(Item::Compact(7)), None]);
    }
}
