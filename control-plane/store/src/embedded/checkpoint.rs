//! Checkpoints: the entire store in one file, so that the log before it can be removed.
//!
//! A checkpoint holds the entries at the compacted revision, in order, then the leases, then the history since, as a
//! log would: opening it replays the history, so watches and reads at old revisions work across a restart. A separate
//! thread writes it from a snapshot, under a temporary name, and renames it once it is synced: a file with a
//! checkpoint's name is always complete, and one with an invalid checksum is damaged, never an interrupted write.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::frame::{self, Item};
use super::index::Snapshot;
use super::segment::{self, SYNC_BYTES, UNFINISHED, sync_dir};
use crate::{Batch, Error, LeaseId, Revision};

const MAGIC: &[u8; 8] = b"CORTENCP";
pub(super) const HEADER: usize = 56;
const SUFFIX: &str = ".checkpoint";
/// The suffix of a checkpoint that was found damaged when another one could be used.
pub const DAMAGED: &str = ".damaged";
/// The size at which a frame is closed; one item may make a frame bigger.
const FRAME_BYTES: usize = 256 << 10;
/// The size that no frame reaches.
const FRAME_LIMIT: usize = 1 << 30;

/// The content of a checkpoint.
#[derive(Debug)]
pub struct Source {
    pub snapshot: Snapshot,
    /// The batches since the snapshot's compacted revision.
    pub history: Vec<Batch>,
    pub leases: Vec<(LeaseId, Duration)>,
    /// The last frame of the log that the snapshot includes, and the segment that was active then.
    pub sequence: u64,
    pub segment: u64,
}

/// The header of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub sequence: u64,
    pub segment: u64,
    /// The revision of the entries.
    pub base: Revision,
    /// The revision after the history.
    pub revision: Revision,
    pub salt: u64,
}

/// Writes a checkpoint and returns its size; `None` if `cancel` was set in the meantime.
pub fn write(dir: &Path, source: &Source, cancel: &AtomicBool) -> Result<Option<u64>, Error> {
    let path = path_of(dir, source.sequence);
    let unfinished = PathBuf::from(format!("{}{UNFINISHED}", path.display()));
    let written = write_file(&unfinished, source, cancel).and_then(|size| {
        if size.is_some() {
            fs::rename(&unfinished, &path)?;
            sync_dir(dir)?;
        }
        Ok(size)
    });
    if !matches!(written, Ok(Some(_))) {
        // An incomplete file only takes space; the next opening removes it.
        let _ = fs::remove_file(&unfinished);
    }
    written.map_err(|error| Error::io("write the checkpoint", &path, error))
}

fn write_file(path: &Path, source: &Source, cancel: &AtomicBool) -> io::Result<Option<u64>> {
    let head = Head {
        sequence: source.sequence,
        segment: source.segment,
        base: source.snapshot.compacted,
        revision: source.snapshot.revision,
        salt: segment::salt(),
    };
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(&encode_head(&head))?;
    let mut frames = Frames { file: &mut file, buffer: Vec::new(), salt: head.salt, frames: 0, items: 0, size: 0 };
    frame::begin(&mut frames.buffer);
    for entry in source.snapshot.base() {
        frames.push(|buffer| frame::push_entry(buffer, entry))?;
        if cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
    }
    for (id, ttl) in &source.leases {
        frames.push(|buffer| frame::push_grant(buffer, *id, *ttl))?;
    }
    for batch in &source.history {
        frames.push(|buffer| frame::push_commit(buffer, batch.revision, &batch.events))?;
        if cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
    }
    let size = frames.finish()?;
    file.sync_all()?;
    Ok(Some(HEADER as u64 + size))
}

/// Writes items, in frames of a suitable size.
struct Frames<'a> {
    file: &'a mut File,
    buffer: Vec<u8>,
    salt: u64,
    frames: u64,
    items: u64,
    size: u64,
}

impl Frames<'_> {
    fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        encode(&mut self.buffer);
        self.items += 1;
        if self.buffer.len() >= FRAME_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.frames += 1;
        frame::seal(&mut self.buffer, self.salt, self.frames);
        self.file.write_all(&self.buffer)?;
        let before = self.size / SYNC_BYTES;
        self.size += self.buffer.len() as u64;
        if self.size / SYNC_BYTES > before {
            self.file.sync_data()?;
        }
        frame::begin(&mut self.buffer);
        Ok(())
    }

    fn finish(mut self) -> io::Result<u64> {
        frame::push_end(&mut self.buffer, self.items);
        self.flush()?;
        Ok(self.size)
    }
}

/// Reads the header of a checkpoint.
pub fn head(path: &Path) -> Result<Head, Error> {
    let failed = |error| Error::io("read the checkpoint", path, error);
    let mut header = [0; HEADER];
    File::open(path).and_then(|mut file| file.read_exact(&mut header)).map_err(failed)?;
    parse_head(&header).ok_or_else(|| Error::corrupt(path, "the header of the checkpoint is damaged"))
}

/// Reads a checkpoint from front to back and passes every item to `visit`, which may refuse it.
pub fn load(path: &Path, mut visit: impl FnMut(&Head, Item<'_>) -> Result<(), String>) -> Result<(Head, u64), Error> {
    let corrupt = |what: String| Error::corrupt(path, what);
    let failed = |error| Error::io("read the checkpoint", path, error);
    let file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let mut file = BufReader::with_capacity(FRAME_BYTES, file);
    let mut header = [0; HEADER];
    file.read_exact(&mut header).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => corrupt("the checkpoint is cut off".to_owned()),
        _ => failed(error),
    })?;
    let head = parse_head(&header).ok_or_else(|| corrupt("the header of the checkpoint is damaged".to_owned()))?;
    let mut payload = Vec::new();
    let mut frames = 0;
    let mut items = 0;
    loop {
        frames += 1;
        let sequence = frame::read(&mut file, head.salt, &mut payload, FRAME_LIMIT).map_err(corrupt)?;
        if sequence != frames {
            return Err(corrupt(format!("frame {sequence} stands where frame {frames} should")));
        }
        for item in frame::items(&payload) {
            match item.ok_or_else(|| corrupt("an item of the checkpoint makes no sense".to_owned()))? {
                Item::End(count) if count == items => return Ok((head, size)),
                Item::End(count) => return Err(corrupt(format!("it has {items} items instead of {count}"))),
                item => visit(&head, item).map_err(corrupt)?,
            }
            items += 1;
        }
    }
}

pub fn path_of(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("{sequence:020}{SUFFIX}"))
}

/// Returns the sequence in a checkpoint's name; `None` for a file that is no checkpoint.
pub fn sequence_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.parse().ok()
}

/// Returns the checkpoints in `dir` that are two or more before that of `sequence`, and those that were found damaged;
/// none if the directory cannot be read.
pub fn obsolete(dir: &Path, sequence: u64) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let (mut older, others): (Vec<PathBuf>, Vec<PathBuf>) =
        paths.partition(|path| sequence_of(path).is_some_and(|number| number < sequence));
    older.sort_unstable_by_key(|path| sequence_of(path));
    older.pop();
    older.extend(others.into_iter().filter(|path| path.to_string_lossy().ends_with(DAMAGED)));
    older
}

pub(super) fn encode_head(head: &Head) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0..8].copy_from_slice(MAGIC);
    let numbers = [head.sequence, head.segment, head.base, head.revision, head.salt];
    for (slot, number) in header[8..48].chunks_exact_mut(8).zip(numbers) {
        slot.copy_from_slice(&number.to_le_bytes());
    }
    let sum = crc32c::crc32c(&header[..48]);
    header[48..52].copy_from_slice(&sum.to_le_bytes());
    header
}

pub(super) fn parse_head(header: &[u8; HEADER]) -> Option<Head> {
    let sum = crc32c::crc32c(&header[..48]);
    (header[..8] == MAGIC[..] && header[48..52] == sum.to_le_bytes()).then_some(())?;
    let number = |at: usize| header[at..at + 8].try_into().ok().map(u64::from_le_bytes);
    Some(Head {
        sequence: number(8)?,
        segment: number(16)?,
        base: number(24)?,
        revision: number(32)?,
        salt: number(40)?,
    })
}
