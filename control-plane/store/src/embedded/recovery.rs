//! Opens a directory: the lock, the format, the checkpoint, and the log after it.
//!
//! The rule for loss: frames are numbered without gaps, and a frame is written only after the one before it was synced.
//! So an unreadable frame is the torn end of the log if no valid frame with a higher number exists anywhere after it:
//! it was never acknowledged, and it is cleared. If such a frame exists, the unreadable one was acknowledged, and
//! opening fails with [`Error::Corrupt`] instead of losing it. Damage to the very last frame cannot be distinguished
//! from a torn write, as in any log. Missing segments are errors too. A damaged checkpoint is one only if neither the
//! checkpoint before it nor the beginning of the log can stand in for it.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::checkpoint;
use super::committer::Last;
use super::config::Config;
use super::frame::{self, Frame, Item, Logged};
use super::index::{self, Change, Index};
use super::lease::Leases;
use super::log::{Log, Tail};
use super::segment::{self, Segment, UNFINISHED, sync_dir};
use crate::{Batch, Entry, Error, NO_LEASE};

use bytes::Bytes;

/// The format of the directory that this release reads and writes.
const FORMAT: u32 = 1;
pub const FORMAT_FILE: &str = "FORMAT";
const FORMAT_NAME: &str = "corten-store";

/// A recovered store.
#[derive(Debug)]
pub struct Recovered {
    pub index: Index,
    pub leases: Leases,
    pub log: Log,
    pub last: Last,
    /// The lock on the directory, held as long as the file is open.
    pub lock: File,
}

pub fn recover(config: &Config) -> Result<Recovered, Error> {
    let dir = config.dir.as_path();
    let now = config.clock.now();
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| Error::io("create", dir, error))?;
    let lock = lock(dir)?;
    let files = list(dir)?;
    check_format(&lock, dir, files.is_empty())?;
    files.remove_unfinished()?;
    let (mut replay, covered) = load_newest(&files, now)?;
    let kept_from = files.kept_from(covered.path.as_deref());
    let log = replay.read_log(dir, &files.segments, &covered, kept_from, config.segment_bytes)?;
    remove(files.obsolete_checkpoints());
    let last = Last { size: covered.checkpoint_size, segment: covered.segment };
    Ok(Recovered { leases: replay.leases(), index: replay.index, log, last, lock })
}

/// Loads the newest checkpoint that is intact. Damaged ones are renamed, once an older one or the log from its beginning
/// stands in for them: the log since then is complete.
fn load_newest(files: &Files, now: Duration) -> Result<(Replay, Covered), Error> {
    let mut damaged: Vec<(&PathBuf, Error)> = Vec::new();
    for path in files.checkpoints.iter().rev() {
        let mut replay = Replay::new(now);
        match replay.load_checkpoint(path) {
            Ok(covered) => {
                rename_damaged(&damaged)?;
                return Ok((replay, covered));
            }
            Err(error @ Error::Corrupt { .. }) => damaged.push((path, error)),
            Err(error) => return Err(error),
        }
    }
    let has_beginning = files.segments.first().and_then(|path| segment::index_of(path)) == Some(1);
    match damaged.first() {
        Some((_, error)) if !has_beginning => Err(error.clone()),
        _ => {
            rename_damaged(&damaged)?;
            Ok((Replay::new(now), Covered::default()))
        }
    }
}

fn rename_damaged(damaged: &[(&PathBuf, Error)]) -> Result<(), Error> {
    for (path, error) in damaged {
        tracing::warn!(%error, "a checkpoint is damaged; the log before it stands in, and nothing is lost");
        let renamed = PathBuf::from(format!("{}{}", path.display(), checkpoint::DAMAGED));
        fs::rename(path, renamed).map_err(|error| Error::io("rename", path, error))?;
    }
    Ok(())
}

/// Locks a directory for this process.
pub fn lock(dir: &Path) -> Result<File, Error> {
    let path = dir.join(FORMAT_FILE);
    let failed = |error| Error::io("lock", &path, error);
    let file = File::options().read(true).append(true).create(true).mode(0o600).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Locked { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Returns the line of the format that this release writes.
pub fn format_line() -> String {
    format!("{FORMAT_NAME} {FORMAT}\n")
}

/// Opens the file of the format.
pub fn open_format(dir: &Path) -> Result<File, Error> {
    let path = dir.join(FORMAT_FILE);
    File::open(&path).map_err(|error| Error::io("read", &path, error))
}

/// Reads the format, or writes it into a new directory.
pub fn check_format(mut file: &File, dir: &Path, is_new: bool) -> Result<(), Error> {
    let path = dir.join(FORMAT_FILE);
    let ours = format_line();
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| Error::io("read", &path, error))?;
    let number = text.strip_suffix('\n').and_then(|line| line.strip_prefix(FORMAT_NAME));
    let format = number.and_then(|number| number.trim_start().parse::<u32>().ok());
    match format {
        Some(found) if found > FORMAT => Err(Error::NewerFormat { dir: dir.to_owned(), found, known: FORMAT }),
        Some(_) => Ok(()),
        // A new directory, or one whose creation was interrupted at this point.
        None if is_new && ours.starts_with(&text) => {
            let written = file
                .set_len(0)
                .and_then(|()| file.write_all(ours.as_bytes()))
                .and_then(|()| file.sync_all())
                .and_then(|()| sync_dir(dir));
            written.map_err(|error| Error::io("write", &path, error))
        }
        None => Err(Error::corrupt(&path, "the format of the store is not named")),
    }
}

/// The files of a store, each list in order.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub segments: Vec<PathBuf>,
    pub checkpoints: Vec<PathBuf>,
    unfinished: Vec<PathBuf>,
}

impl Files {
    fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.checkpoints.is_empty()
    }

    fn remove_unfinished(&self) -> Result<(), Error> {
        for path in &self.unfinished {
            fs::remove_file(path).map_err(|error| Error::io("remove", path, error))?;
        }
        Ok(())
    }

    /// Returns all checkpoints but the newest two.
    fn obsolete_checkpoints(&self) -> &[PathBuf] {
        &self.checkpoints[..self.checkpoints.len().saturating_sub(2)]
    }

    /// Returns the first segment that is kept: that at which the log after the checkpoint before `newest` begins; 0,
    /// hence all, if there is none.
    fn kept_from(&self, newest: Option<&Path>) -> u64 {
        let newest = newest.and_then(checkpoint::sequence_of);
        let is_older = |path: &&PathBuf| checkpoint::sequence_of(path) < newest;
        let older = self.checkpoints.iter().rev().find(is_older);
        older.and_then(|path| checkpoint::head(path).ok()).map_or(0, |head| head.segment)
    }
}

pub(super) fn list(dir: &Path) -> Result<Files, Error> {
    let failed = |error| Error::io("list", dir, error);
    let mut files = Files::default();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if segment::index_of(&path).is_some() {
            files.segments.push(path);
        } else if checkpoint::sequence_of(&path).is_some() {
            files.checkpoints.push(path);
        } else if path.to_string_lossy().ends_with(UNFINISHED) {
            files.unfinished.push(path);
        }
    }
    files.segments.sort_unstable_by_key(|path| segment::index_of(path));
    files.checkpoints.sort_unstable_by_key(|path| checkpoint::sequence_of(path));
    Ok(files)
}

/// The part of the log that the checkpoint covers.
#[derive(Debug, Default)]
struct Covered {
    /// The last covered frame.
    sequence: u64,
    /// The segment that was active; it must still exist. 0 without a checkpoint.
    segment: u64,
    checkpoint_size: u64,
    path: Option<PathBuf>,
}

/// The state while it is rebuilt.
struct Replay {
    index: Index,
    /// The base of a checkpoint, collected before the index is made of it.
    base: Vec<Entry>,
    granted: std::collections::BTreeMap<crate::LeaseId, Duration>,
    now: Duration,
}

impl Replay {
    fn new(now: Duration) -> Replay {
        Replay { index: Index::new(0, []), base: Vec::new(), granted: Default::default(), now }
    }

    fn load_checkpoint(&mut self, path: &Path) -> Result<Covered, Error> {
        let mut has_index = false;
        let (head, checkpoint_size) = checkpoint::load(path, |head, item| match item {
            Item::Entry(entry) if !has_index => {
                self.base.push(entry);
                Ok(())
            }
            Item::Entry(_) => Err("an entry comes after the history".to_owned()),
            item => {
                if !has_index {
                    self.index = Index::new(head.base, std::mem::take(&mut self.base));
                    has_index = true;
                }
                self.apply(item)
            }
        })?;
        if !has_index {
            self.index = Index::new(head.base, std::mem::take(&mut self.base));
        }
        if self.index.snapshot().revision != head.revision {
            return Err(Error::corrupt(path, "the checkpoint does not end at its own revision"));
        }
        let path = Some(path.to_owned());
        Ok(Covered { sequence: head.sequence, segment: head.segment, checkpoint_size, path })
    }

    /// Replays the frames that the checkpoint does not cover, and finds the end of the log.
    fn read_log(
        &mut self,
        dir: &Path,
        segments: &[PathBuf],
        covered: &Covered,
        kept_from: u64,
        segment_bytes: u64,
    ) -> Result<Log, Error> {
        if segments.is_empty() && covered.segment == 0 {
            return Log::create(dir, segment_bytes);
        }
        let needed = covered.segment.max(1);
        let (covered_segments, segments): (Vec<_>, Vec<_>) =
            segments.iter().partition(|path| segment::index_of(path).is_some_and(|index| index < needed));
        check_numbers(dir, &segments, needed)?;
        let (obsolete, kept): (Vec<_>, Vec<_>) = covered_segments
            .into_iter()
            .partition(|path| segment::index_of(path).is_some_and(|index| index < kept_from));
        remove(obsolete);
        let mut scan = Scan { sequence: covered.sequence, uncovered: 0, last: None, opened: Vec::new() };
        for path in segments {
            let (segment, bytes) = Segment::open(path.to_owned())?;
            scan.segment(segment, &bytes, self)?;
        }
        let mut tail = scan.tail()?;
        tail.full.splice(..0, kept.into_iter().cloned());
        Ok(Log::resume(dir, segment_bytes, tail))
    }

    fn frame(&mut self, path: &Path, frame: &Frame<'_>) -> Result<(), Error> {
        for item in frame::items(frame.payload) {
            let corrupt = |what: &str| Error::corrupt(path, format!("frame {}: {what}", frame.sequence));
            let item = item.ok_or_else(|| corrupt("an item makes no sense"))?;
            self.apply(item).map_err(|what| corrupt(&what))?;
        }
        Ok(())
    }

    fn apply(&mut self, item: Item<'_>) -> Result<(), String> {
        match item {
            Item::Commit { revision, changes } => {
                let current = self.index.snapshot();
                if revision != current.revision + 1 {
                    return Err(format!("revision {revision} follows revision {}", current.revision));
                }
                let mut events = Vec::with_capacity(changes.len());
                for (key, logged) in changes {
                    let change = match logged {
                        Logged::Put { value, lease } => Change::Put { value: Bytes::copy_from_slice(value), lease },
                        Logged::Delete => Change::Delete,
                    };
                    let event = index::event(current.get(key), Bytes::copy_from_slice(key), change, revision);
                    events.push(event.ok_or("a key is deleted that does not exist")?);
                }
                self.index.apply(Batch { revision, events: events.into() }, self.now);
            }
            Item::Compact(revision) if revision > self.index.snapshot().revision => {
                return Err(format!("revision {revision} is compacted before it happened"));
            }
            Item::Compact(revision) => {
                self.index.compact(revision);
                self.index.reclaim(usize::MAX);
            }
            Item::Grant(id, ttl) => {
                self.granted.insert(id, ttl);
            }
            Item::Revoke(id) => {
                self.granted.remove(&id);
            }
            Item::Entry(_) | Item::End(_) => return Err("an item of a checkpoint is in the log".to_owned()),
        }
        Ok(())
    }

    /// Returns the leases with their full time to live: no client could keep them alive while the store was closed.
    fn leases(&self) -> Leases {
        let mut leases = Leases::default();
        for (id, ttl) in &self.granted {
            leases.grant(*id, *ttl, self.now);
        }
        for entry in self.index.snapshot().current().filter(|entry| entry.lease != NO_LEASE) {
            leases.attach(entry.lease, &entry.key);
        }
        leases
    }
}

/// Checks that segments are numbered without gaps, from 1 or from the one that was active at the checkpoint; the
/// checkpoint covers all earlier ones.
fn check_numbers(dir: &Path, segments: &[&PathBuf], needed: u64) -> Result<(), Error> {
    let missing = |number: u64| Error::corrupt(dir, format!("log segment {number} is missing"));
    if segments.is_empty() {
        return Err(missing(needed));
    }
    for (path, expected) in segments.iter().zip(needed..) {
        if segment::index_of(path) != Some(expected) {
            return Err(missing(expected));
        }
    }
    Ok(())
}

/// Removes useless files. A file that stays only takes space until the next opening.
fn remove<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) {
    for path in paths {
        if let Err(error) = fs::remove_file(path) {
            tracing::warn!(path = %path.display(), %error, "cannot remove an obsolete file");
        }
    }
}

/// A scan of all segments.
struct Scan {
    /// The last frame in the state.
    sequence: u64,
    uncovered: u64,
    /// The index in `opened`, and the offset, after the last valid frame.
    last: Option<(usize, usize)>,
    opened: Vec<Opened>,
}

struct Opened {
    segment: Segment,
    /// The offset after the last valid frame, if there is something other than zeroes.
    dirty_after: Option<usize>,
}

impl Scan {
    /// Applies the frames of one segment.
    fn segment(&mut self, segment: Segment, bytes: &[u8], replay: &mut Replay) -> Result<(), Error> {
        let mut offset = segment::HEADER;
        while let Some(frame) =
            frame::parse(bytes, offset, segment.salt).or_else(|| frame::find(bytes, offset, segment.salt))
        {
            if frame.sequence > self.sequence + 1 {
                let what =
                    format!("frame {} is damaged, and frame {} after it is not", self.sequence + 1, frame.sequence);
                return Err(Error::corrupt(&segment.path, what));
            }
            if frame.sequence == self.sequence + 1 {
                replay.frame(&segment.path, &frame)?;
                self.sequence = frame.sequence;
                self.uncovered += (frame.end - offset) as u64;
            }
            offset = frame.end;
            self.last = Some((self.opened.len(), offset));
        }
        // A truncated file may lack the padding of its last frame.
        let rest = bytes.get(offset..).unwrap_or_default();
        let dirty_after = rest.iter().any(|byte| *byte != 0).then_some(offset);
        self.opened.push(Opened { segment, dirty_after });
        Ok(())
    }

    /// Clears the torn end, and returns the end of the log.
    fn tail(self) -> Result<Tail, Error> {
        let (place, offset) = self.last.unwrap_or((0, segment::HEADER));
        let mut full = Vec::new();
        let mut active = None;
        let mut next = None;
        for (number, opened) in self.opened.into_iter().enumerate() {
            if number < place {
                full.push(opened.segment.path);
                continue;
            }
            if let Some(offset) = opened.dirty_after {
                tracing::warn!(path = %opened.segment.path.display(), offset, "the log ends in a torn write; it was never acknowledged");
                opened.segment.clear(offset as u64)?;
            }
            if number == place {
                active = Some(opened.segment);
            } else if number == place + 1 {
                next = Some(opened.segment);
            } else {
                return Err(Error::corrupt(&opened.segment.path, "there is more than one log segment without frames"));
            }
        }
        let active = active.ok_or_else(|| Error::corrupt(Path::new("log"), "there is no log segment"))?;
        Ok(Tail { active, offset: offset as u64, sequence: self.sequence, next, full, uncovered: self.uncovered })
    }
}
