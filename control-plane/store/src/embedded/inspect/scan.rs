//! The records of a file, intact and damaged.

use std::ops::Range;

use bytes::Bytes;

use super::super::frame::{self, Item};

/// A part of a file that holds one record, or what is left of one or more.
#[derive(Debug)]
pub enum Part<'a> {
    Intact { sequence: u64, payload: &'a [u8], at: Range<usize> },
    Damaged { at: Range<usize> },
}

/// Splits the bytes from `offset` on into records. Zeroes at the end are no part.
pub fn parts(bytes: &[u8], mut offset: usize, salt: u64) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    while offset < bytes.len() {
        if let Some(frame) = frame::parse(bytes, offset, salt) {
            let end = frame.end.min(bytes.len());
            parts.push(Part::Intact { sequence: frame.sequence, payload: frame.payload, at: offset..end });
            offset = end;
            continue;
        }
        let next = next_start(bytes, offset + 8, salt).unwrap_or(bytes.len());
        if bytes[offset..next].iter().any(|byte| *byte != 0) || next < bytes.len() {
            parts.push(Part::Damaged { at: offset..next });
        }
        offset = next;
    }
    parts
}

/// Returns the offset of the next intact record.
fn next_start(bytes: &[u8], from: usize, salt: u64) -> Option<usize> {
    (from.next_multiple_of(8)..bytes.len()).step_by(8).find(|at| frame::parse(bytes, *at, salt).is_some())
}

/// Reports whether the bytes of an intact record that no checksum covers are as they were written: zeroes.
pub fn has_clean_gaps(bytes: &[u8], at: &Range<usize>, payload: &[u8]) -> bool {
    let unused = bytes.get(at.start + 20..at.start + frame::HEADER).unwrap_or_default();
    let padding = bytes.get(at.start + frame::HEADER + payload.len()..at.end).unwrap_or_default();
    unused.iter().chain(padding).all(|byte| *byte == 0)
}

/// The keys of a damaged record, as far as it can be read.
#[derive(Debug, Default)]
pub struct Guess {
    pub keys: Vec<Bytes>,
    /// Whether all of the record could be read, and nothing else can have been in it.
    pub is_complete: bool,
}

/// Reads a damaged part without regard to its checksum. It may hold several records; only the first is read.
pub fn guess(damaged: &[u8]) -> Guess {
    let mut guess = Guess::default();
    let Some(length) = damaged.get(4..8) else { return guess };
    let length = length.iter().rev().fold(0usize, |sum, byte| (sum << 8) | usize::from(*byte));
    let rest = damaged.get(frame::HEADER..).unwrap_or_default();
    let is_whole = frame::HEADER.checked_add(length).is_some_and(|end| end.next_multiple_of(8) == damaged.len());
    let payload = rest.get(..length).unwrap_or(rest);
    let mut is_read = true;
    for item in frame::items(payload) {
        match item {
            None => is_read = false,
            Some(Item::Commit { changes, .. }) => {
                guess.keys.extend(changes.iter().map(|(key, _)| Bytes::copy_from_slice(key)));
            }
            Some(Item::Entry(entry)) => guess.keys.push(entry.key),
            Some(_) => {}
        }
    }
    guess.is_complete = is_whole && is_read;
    guess
}
