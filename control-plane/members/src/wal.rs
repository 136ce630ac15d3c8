//! The log of an etcd member, as far as a survivor needs it: all of its entries become committed.
//!
//! etcd that goes on alone (`--force-new-cluster`) drops the entries that its log does not say to be committed. The leader
//! acknowledges a write as soon as a majority has it in its log, and writes that it is committed only with the next entry.
//! A survivor that was killed would lose the last acknowledged write from its log. Worse, its database may have it already:
//! members that join later get the log alone, and differ from the survivor for ever. Whether an entry was acknowledged is not
//! known, and one that was not may take effect as well: a client that got no answer must expect both.
//!
//! The format is etcd's (`server/storage/wal`): segments of records, each with a length, padded to eight bytes, with a
//! CRC-32C over the data of all records of the segments.
//!
//! Invariant: the log is changed only by one record at its end. A log that is not read to a clean end stays as it is.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use prost::Message;

use crate::Error;

/// The largest segment that is read: etcd begins another one after 64 MiB.
const MOST_BYTES: u64 = 1 << 30;
/// The alignment of records.
const ALIGNMENT: usize = 8;
/// The bits of a frame's length; those above have the padding.
const LENGTH_BITS: u32 = 56;
/// The kinds of records.
const ENTRY: i64 = 2;
const STATE: i64 = 3;
const CHECKSUM: i64 = 4;

/// `walpb.Record`.
#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(int64, required, tag = "1")]
    kind: i64,
    #[prost(uint32, required, tag = "2")]
    checksum: u32,
    #[prost(bytes = "vec", optional, tag = "3")]
    data: Option<Vec<u8>>,
}

/// `raftpb.Entry`, without its data.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(uint64, required, tag = "3")]
    index: u64,
}

/// `raftpb.HardState`.
#[derive(Clone, PartialEq, Message)]
struct HardState {
    #[prost(uint64, required, tag = "1")]
    term: u64,
    #[prost(uint64, required, tag = "2")]
    vote: u64,
    #[prost(uint64, required, tag = "3")]
    commit: u64,
}

/// The end of a log.
#[derive(Debug, Default, PartialEq)]
struct End {
    state: HardState,
    /// The index of the last entry.
    last: u64,
    checksum: u32,
    /// The length of the records of the last segment.
    offset: usize,
}

/// Makes all entries of a member's log committed; returns how many were not. The member must not run.
pub fn commit_all(directory: &Path) -> Result<u64, Error> {
    let directory = directory.join("data/member/wal");
    let segments = segments(&directory)?;
    let Some(newest) = segments.last() else { return Ok(0) };
    let mut end = End::default();
    for segment in &segments {
        let read = read(segment)?;
        if let Err(reason) = end.follow(&read) {
            tracing::warn!(segment = %segment.display(), "the last entries of etcd's log are left to etcd: {reason}");
            return Ok(0);
        }
    }
    let missing = end.last.saturating_sub(end.state.commit);
    if missing > 0 {
        append(newest, &end)?;
    }
    Ok(missing)
}

/// Returns the segments in their order.
fn segments(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(directory).map_err(Error::file("read", directory))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut segments: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "wal")).collect();
    segments.sort_unstable();
    Ok(segments)
}

fn read(segment: &Path) -> Result<Vec<u8>, Error> {
    let length = std::fs::metadata(segment).map_err(Error::file("read", segment))?.len();
    if length > MOST_BYTES {
        return Err(Error::Damaged { path: segment.to_owned(), reason: "it is too large".to_owned() });
    }
    std::fs::read(segment).map_err(Error::file("read", segment))
}

/// Appends the record that says that all entries are committed.
fn append(segment: &Path, end: &End) -> Result<(), Error> {
    let file = OpenOptions::new().write(true).open(segment).map_err(Error::file("open", segment))?;
    let frame = end.committed();
    let write = |file: &File| {
        file.write_all_at(&frame, end.offset as u64)?;
        file.sync_all()
    };
    write(&file).map_err(Error::file("write", segment))
}

impl End {
    /// Takes over the records of the next segment; the error says why they are not all read.
    fn follow(&mut self, segment: &[u8]) -> Result<(), String> {
        self.offset = 0;
        while let Some(frame) = frame(&segment[self.offset..])? {
            let record = Record::decode(frame.record).map_err(|error| format!("a record is damaged: {error}"))?;
            self.take(&record)?;
            self.offset += frame.length;
        }
        Ok(())
    }

    fn take(&mut self, record: &Record) -> Result<(), String> {
        let data = record.data.as_deref().unwrap_or_default();
        if record.kind == CHECKSUM {
            // The first segment that is left may begin anywhere in the log.
            self.checksum = record.checksum;
            return Ok(());
        }
        self.checksum = crc32c::crc32c_append(self.checksum, data);
        if self.checksum != record.checksum {
            return Err("a checksum does not match".to_owned());
        }
        let damaged = |error: prost::DecodeError| format!("a record is damaged: {error}");
        match record.kind {
            // An entry takes the place of those with its index and above.
            ENTRY => self.last = Entry::decode(data).map_err(damaged)?.index,
            STATE => self.state = HardState::decode(data).map_err(damaged)?,
            _ => {}
        }
        Ok(())
    }

    /// Returns the frame of a state with which all entries are committed.
    fn committed(&self) -> Vec<u8> {
        let state = HardState { commit: self.last, ..self.state.clone() }.encode_to_vec();
        let checksum = crc32c::crc32c_append(self.checksum, &state);
        framed(&Record { kind: STATE, checksum, data: Some(state) })
    }
}

/// A record in a segment.
struct Frame<'a> {
    record: &'a [u8],
    /// Its bytes with length and padding.
    length: usize,
}

/// Returns the first record of the rest of a segment; none at the end, which is empty or begins with zeros.
fn frame(rest: &[u8]) -> Result<Option<Frame<'_>>, String> {
    let Some((length, rest)) = rest.split_first_chunk::<ALIGNMENT>() else { return Ok(None) };
    let field = u64::from_le_bytes(*length);
    if field == 0 {
        return Ok(None);
    }
    let torn = || "its last record is torn".to_owned();
    let size = usize::try_from(field & ((1 << LENGTH_BITS) - 1)).map_err(|_| torn())?;
    let padding = if field >> 63 == 1 { (field >> LENGTH_BITS) as usize & (ALIGNMENT - 1) } else { 0 };
    let record = rest.get(..size).ok_or_else(torn)?;
    rest.get(size..size + padding).ok_or_else(torn)?;
    Ok(Some(Frame { record, length: ALIGNMENT + size + padding }))
}

/// Returns a record with its length and padding.
fn framed(record: &Record) -> Vec<u8> {
    let record = record.encode_to_vec();
    let padding = record.len().next_multiple_of(ALIGNMENT) - record.len();
    let mut field = record.len() as u64;
    if padding > 0 {
        field |= (0x80 | padding as u64) << LENGTH_BITS;
    }
    let mut frame = field.to_le_bytes().to_vec();
    frame.extend(record);
    frame.resize(frame.len() + padding, 0);
    frame
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const METADATA: i64 = 1;

    /// Writes records as etcd does, with the checksum before them.
    fn segment(before: u32, records: &[(i64, Vec<u8>)]) -> (Vec<u8>, u32) {
        let mut checksum = before;
        let mut bytes = framed(&Record { kind: CHECKSUM, checksum, data: None });
        for (kind, data) in records {
            checksum = crc32c::crc32c_append(checksum, data);
            bytes.extend(framed(&Record { kind: *kind, checksum, data: Some(data.clone()) }));
        }
        (bytes, checksum)
    }

    fn entry(index: u64) -> (i64, Vec<u8>) {
        // Type, term and data of an entry are other fields.
        let mut bytes = vec![0x08, 0, 0x10, 4];
        bytes.extend(Entry { index }.encode_to_vec());
        bytes.extend([0x22, 2, b'h', b'i']);
        (ENTRY, bytes)
    }

    fn state(commit: u64) -> (i64, Vec<u8>) {
        (STATE, HardState { term: 4, vote: 9, commit }.encode_to_vec())
    }

    fn log(segments: &[&[u8]]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let wal = folder.path().join("data/member/wal");
        std::fs::create_dir_all(&wal).unwrap();
        for (number, segment) in segments.iter().enumerate() {
            let mut bytes = segment.to_vec();
            bytes.resize(4096, 0);
            std::fs::write(wal.join(format!("{number:016x}-{:016x}.wal", number * 7)), bytes).unwrap();
        }
        folder
    }

    #[test]
    fn entries_after_the_commit_index_become_committed() {
        let (first, checksum) = segment(0, &[(METADATA, vec![1, 2, 3]), state(1), entry(1), entry(2)]);
        let (second, _) = segment(checksum, &[(METADATA, vec![1, 2, 3]), state(2), entry(3), entry(4)]);
        let folder = log(&[&first, &second]);
        assert_eq!(commit_all(folder.path()).unwrap(), 2);
        let path = segments(&folder.path().join("data/member/wal")).unwrap().pop().unwrap();
        let mut end = End::default();
        end.follow(&read(&path).unwrap()).unwrap();
        assert_eq!(end.state, HardState { term: 4, vote: 9, commit: 4 });
        assert_eq!(commit_all(folder.path()).unwrap(), 0, "the second time there is nothing to do");
    }

    #[test]
    fn an_entry_takes_the_place_of_those_above_it() {
        let (bytes, _) = segment(0, &[state(1), entry(2), entry(3), entry(2)]);
        let folder = log(&[&bytes]);
        assert_eq!(commit_all(folder.path()).unwrap(), 1);
    }

    #[test]
    fn a_log_without_a_clean_end_stays_as_it_is() {
        let (whole, _) = segment(0, &[state(1), entry(2)]);
        let mut flipped = whole.clone();
        let data = whole.windows(2).position(|two| two == b"hi").unwrap();
        flipped[data] ^= 1;
        let torn = [&whole[..], &(1_u64 << 20).to_le_bytes()].concat();
        for bytes in [flipped, torn, vec![0xff; 64]] {
            let folder = log(&[&bytes]);
            let path = segments(&folder.path().join("data/member/wal")).unwrap().pop().unwrap();
            let before = std::fs::read(&path).unwrap();
            assert_eq!(commit_all(folder.path()).unwrap(), 0);
            assert_eq!(std::fs::read(&path).unwrap(), before);
        }
    }

    #[test]
    fn no_flipped_bit_makes_an_entry() {
        let (whole, _) = segment(0, &[state(1), entry(2), entry(3)]);
        let read = |bytes: &[u8]| {
            let mut end = End::default();
            end.follow(bytes).map(|()| end.last)
        };
        for position in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[position / 8] ^= 1 << (position % 8);
            assert!(read(&flipped).is_ok_and(|last| last <= 3) || read(&flipped).is_err(), "bit {position}");
        }
    }
}
