//! Every damage of a directory, file by file.

use std::fs;
use std::path::Path;

use super::super::checkpoint;
use super::super::frame::{self, Item};
use super::super::recovery;
use super::super::segment;
use super::Finding;
use super::scan::{self, Part};
use crate::Error;

/// Returns the damages in the order of the files' names.
pub fn of(dir: &Path) -> Result<Vec<Finding>, Error> {
    let files = recovery::list(dir)?;
    let mut findings = Vec::new();
    format(dir, &mut findings)?;
    for path in &files.checkpoints {
        checkpoint(path, &mut findings)?;
    }
    let first = files.checkpoints.iter().filter_map(|path| checkpoint::head(path).ok()).map(|head| head.segment).min();
    let mut expected = first.unwrap_or(1).max(1);
    let mut last = None;
    for (position, path) in files.segments.iter().enumerate() {
        let index = segment::index_of(path).unwrap_or_default();
        if index > expected && position > 0 {
            findings.push(whole(path, 0, format!("segment {expected} before it is missing")));
        }
        expected = index + 1;
        last = segment(path, last, &mut findings)?;
    }
    Ok(findings)
}

fn whole(path: &Path, end: u64, what: impl Into<String>) -> Finding {
    Finding { file: path.to_owned(), offset: 0, end, what: what.into(), keys: Vec::new() }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|error| Error::io("read", path, error))
}

fn format(dir: &Path, findings: &mut Vec<Finding>) -> Result<(), Error> {
    let path = dir.join(recovery::FORMAT_FILE);
    let bytes = read(&path)?;
    if bytes != recovery::format_line().as_bytes() {
        let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        findings.push(whole(&path, bytes.len() as u64, format!("the format is {text:?}")));
    }
    Ok(())
}

/// Checks one segment; returns the sequence of the last record so far.
fn segment(path: &Path, mut last: Option<u64>, findings: &mut Vec<Finding>) -> Result<Option<u64>, Error> {
    let bytes = read(path)?;
    let header = segment::parse_header(&bytes);
    let is_named = header.is_some_and(|(index, _)| segment::index_of(path) == Some(index));
    let is_clean = bytes.get(28..segment::HEADER).is_some_and(|unused| unused.iter().all(|byte| *byte == 0));
    if !is_named || !is_clean {
        findings.push(whole(path, segment::HEADER as u64, "the header of the segment is damaged"));
    }
    let Some(salt) = salt(&bytes) else {
        let what = "no record of the segment can be read";
        findings.push(Finding { end: bytes.len() as u64, ..whole(path, 0, what) });
        return Ok(last);
    };
    for part in scan::parts(&bytes, segment::HEADER, salt) {
        match part {
            Part::Intact { sequence, payload, at } => {
                if last.is_some_and(|last| sequence > last + 1) && !is_reported(findings, path, at.start) {
                    let what = format!("records {} to {} are missing", last.unwrap_or_default() + 1, sequence - 1);
                    findings.push(Finding { offset: at.start as u64, end: at.start as u64, ..whole(path, 0, what) });
                }
                last = Some(last.map_or(sequence, |last| last.max(sequence)));
                if !scan::has_clean_gaps(&bytes, &at, payload) {
                    let what = format!("unused bytes of record {sequence} are not zero; the record is intact");
                    findings.push(Finding { offset: at.start as u64, end: at.end as u64, ..whole(path, 0, what) });
                }
            }
            Part::Damaged { at } => {
                let guess = scan::guess(&bytes[at.clone()]);
                let number = last.map_or_else(|| "the first record".to_owned(), |last| format!("record {}", last + 1));
                let what = match at.end == bytes.len() {
                    true => format!("the log ends in bytes that are no record: {number} is torn or damaged"),
                    false => format!("{number} is damaged"),
                };
                let file = path.to_owned();
                findings.push(Finding { file, offset: at.start as u64, end: at.end as u64, what, keys: guess.keys });
            }
        }
    }
    Ok(last)
}

/// Reports whether the damage before this offset of the file is a finding already.
fn is_reported(findings: &[Finding], path: &Path, offset: usize) -> bool {
    findings.iter().any(|finding| finding.file == path && finding.end == offset as u64 && finding.offset < finding.end)
}

/// Returns the salt of a segment or a checkpoint: that of its header, or, if the header is damaged, one that differs in
/// one bit and makes the first record valid.
pub fn salt(bytes: &[u8]) -> Option<u64> {
    salt_at(bytes, 16, segment::HEADER)
}

/// Returns the salt in a header whose records begin at `start`.
pub fn salt_at(bytes: &[u8], at: usize, start: usize) -> Option<u64> {
    let stored = bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)?;
    let is_right = |salt: &u64| {
        let mut parts = scan::parts(bytes, start, *salt).into_iter();
        parts.any(|part| matches!(part, Part::Intact { .. }))
    };
    let is_empty = bytes.get(start..).is_some_and(|rest| rest.iter().all(|byte| *byte == 0));
    if is_empty || is_right(&stored) {
        return Some(stored);
    }
    (0..64).map(|bit| stored ^ (1 << bit)).find(|salt| frame::parse(bytes, start, *salt).is_some())
}

fn checkpoint(path: &Path, findings: &mut Vec<Finding>) -> Result<(), Error> {
    let bytes = read(path)?;
    let header: Option<&[u8; checkpoint::HEADER]> =
        bytes.get(..checkpoint::HEADER).and_then(|head| head.try_into().ok());
    let head = header.and_then(checkpoint::parse_head);
    let is_named = head.is_some_and(|head| checkpoint::sequence_of(path) == Some(head.sequence));
    let is_clean = header.is_some_and(|header| header[52..].iter().all(|byte| *byte == 0));
    if !is_named || !is_clean {
        findings.push(whole(path, checkpoint::HEADER as u64, "the header of the checkpoint is damaged"));
    }
    let Some(salt) = salt_at(&bytes, 40, checkpoint::HEADER) else {
        findings.push(whole(path, bytes.len() as u64, "no record of the checkpoint can be read"));
        return Ok(());
    };
    let mut is_ended = false;
    for part in scan::parts(&bytes, checkpoint::HEADER, salt) {
        match part {
            Part::Intact { sequence, payload, at } => {
                is_ended |= frame::items(payload).flatten().any(|item| matches!(item, Item::End(_)));
                if !scan::has_clean_gaps(&bytes, &at, payload) {
                    let what = format!("unused bytes of record {sequence} are not zero; the record is intact");
                    findings.push(Finding { offset: at.start as u64, end: at.end as u64, ..whole(path, 0, what) });
                }
            }
            Part::Damaged { at } => {
                let keys = scan::guess(&bytes[at.clone()]).keys;
                let what = format!("a record with {} keys is damaged", keys.len());
                let file = path.to_owned();
                findings.push(Finding { file, offset: at.start as u64, end: at.end as u64, what, keys });
                is_ended |= at.end == bytes.len();
            }
        }
    }
    if !is_ended {
        findings.push(whole(path, bytes.len() as u64, "the checkpoint is cut off"));
    }
    Ok(())
}
