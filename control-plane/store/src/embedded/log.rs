//! The log: frames appended to segments, each synced before it counts.
//!
//! Invariant: if [`Log::append`] fails, the log is unchanged, or it is broken and takes nothing more. A failed sync
//! breaks it, because after one the kernel may have dropped the pages and a second sync would claim success; only
//! reading the files again shows their content.

use std::mem;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::frame;
use super::segment::{self, Segment};
use crate::Error;

/// The size of the first segment of a new store: small, so that the store opens at once.
const FIRST_SEGMENT: u64 = 1 << 20;

#[derive(Debug)]
pub struct Log {
    dir: PathBuf,
    segment_bytes: u64,
    active: Segment,
    /// The offset of the next frame in the active segment.
    offset: u64,
    /// The sequence of the last frame.
    sequence: u64,
    next: Next,
    /// The full segments, oldest first.
    full: Vec<PathBuf>,
    /// The bytes in frames since the last checkpoint.
    uncovered: u64,
    broken: Option<Arc<str>>,
}

/// The segment after the active one.
#[derive(Debug)]
enum Next {
    Unneeded,
    Preparing(JoinHandle<Result<Segment, Error>>),
    Ready(Segment),
}

/// The end of the log as recovery found it.
#[derive(Debug)]
pub struct Tail {
    pub active: Segment,
    pub offset: u64,
    pub sequence: u64,
    /// A segment without frames after the active one.
    pub next: Option<Segment>,
    pub full: Vec<PathBuf>,
    /// The bytes of the frames that no checkpoint covers.
    pub uncovered: u64,
}

impl Log {
    /// Makes a new log in an empty directory.
    pub fn create(dir: &Path, segment_bytes: u64) -> Result<Log, Error> {
        let active = Segment::create(dir, 1, segment_bytes.min(FIRST_SEGMENT))?;
        let offset = segment::HEADER as u64;
        let tail = Tail { active, offset, sequence: 0, next: None, full: Vec::new(), uncovered: 0 };
        Ok(Log::resume(dir, segment_bytes, tail))
    }

    /// Continues a log at its end.
    pub fn resume(dir: &Path, segment_bytes: u64, tail: Tail) -> Log {
        Log {
            dir: dir.to_owned(),
            segment_bytes,
            active: tail.active,
            offset: tail.offset,
            sequence: tail.sequence,
            next: tail.next.map_or(Next::Unneeded, Next::Ready),
            full: tail.full,
            uncovered: tail.uncovered,
            broken: None,
        }
    }

    /// Returns the sequence of the last frame.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the number of the active segment.
    pub fn active_segment(&self) -> u64 {
        self.active.index
    }

    /// Returns the bytes in frames that no checkpoint covers.
    pub fn uncovered(&self) -> u64 {
        self.uncovered
    }

    /// Returns the segments that hold no frame after the last one, oldest first.
    pub fn full_segments(&self) -> &[PathBuf] {
        &self.full
    }

    /// Records that a checkpoint covers `bytes` of the frames, and that the `segments` oldest segments are removed.
    pub fn covered(&mut self, bytes: u64, segments: usize) {
        self.uncovered = self.uncovered.saturating_sub(bytes);
        self.full.drain(..segments.min(self.full.len()));
    }

    /// Seals `frame` and makes it durable.
    pub fn append(&mut self, frame: &mut Vec<u8>) -> Result<(), Error> {
        if let Some(reason) = &self.broken {
            return Err(Error::Broken { reason: reason.clone() });
        }
        let length = frame.len().next_multiple_of(8) as u64;
        if self.offset + length > self.active.size {
            self.roll(length).map_err(|error| self.without_space(error))?;
        }
        frame::seal(frame, self.active.salt, self.sequence + 1);
        if let Err(error) = self.active.file.write_all_at(frame, self.offset) {
            let error = Error::io("write to", &self.active.path, error);
            self.undo()?;
            return Err(self.without_space(error));
        }
        if let Err(error) = self.active.file.sync_data() {
            return Err(self.break_down(Error::io("sync", &self.active.path, error)));
        }
        self.sequence += 1;
        self.offset += length;
        self.uncovered += length;
        self.prepare();
        Ok(())
    }

    /// Waits for the background work.
    pub fn finish(&mut self) {
        if let Next::Preparing(job) = mem::replace(&mut self.next, Next::Unneeded) {
            // The next opening checks by itself whether the segment exists.
            let _ = job.join();
        }
    }

    /// Continues in the next segment.
    fn roll(&mut self, length: u64) -> Result<(), Error> {
        let needed = segment::HEADER as u64 + length;
        if self.offset == segment::HEADER as u64 {
            // A segment is never left without frames: recovery expects at most one of them.
            return self.active.grow(needed);
        }
        let prepared = match mem::replace(&mut self.next, Next::Unneeded) {
            Next::Unneeded => None,
            Next::Ready(segment) => Some(segment),
            Next::Preparing(job) => job.join().ok().and_then(Result::ok),
        };
        let mut next = match prepared {
            Some(segment) => segment,
            // The preparation may have failed because the disk was full, and there may be space by now.
            None => Segment::create(&self.dir, self.active.index + 1, needed.max(self.segment_bytes))?,
        };
        if next.size < needed
            && let Err(error) = next.grow(needed)
        {
            self.next = Next::Ready(next);
            return Err(error);
        }
        let full = mem::replace(&mut self.active, next);
        self.full.push(full.path);
        self.offset = segment::HEADER as u64;
        Ok(())
    }

    /// Makes the next segment in the background once the active one is half full.
    fn prepare(&mut self) {
        if !matches!(self.next, Next::Unneeded) || self.offset < self.active.size / 2 {
            return;
        }
        let dir = self.dir.clone();
        let index = self.active.index + 1;
        let size = self.segment_bytes;
        let job = thread::Builder::new().name("store-segment".to_owned());
        // Without a thread the segment is made when it is needed.
        if let Ok(job) = job.spawn(move || Segment::create(&dir, index, size)) {
            self.next = Next::Preparing(job);
        }
    }

    /// Ensures that recovery will not find a frame that was written partially, or completely but not synced.
    fn undo(&mut self) -> Result<(), Error> {
        let erased = self.active.file.write_all_at(&[0; frame::HEADER], self.offset);
        erased
            .and_then(|()| self.active.file.sync_data())
            .map_err(|error| self.break_down(Error::io("undo a failed write to", &self.active.path, error)))
    }

    fn break_down(&mut self, error: Error) -> Error {
        let reason: Arc<str> = error.to_string().into();
        tracing::error!(%error, "the store takes no more writes");
        self.broken = Some(reason.clone());
        Error::Broken { reason }
    }

    fn without_space(&self, error: Error) -> Error {
        if error.is_no_space() { Error::Full { dir: self.dir.clone() } } else { error }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    fn frame(log: &Log) -> Vec<u8> {
        let mut buffer = Vec::new();
        frame::begin(&mut buffer);
        frame::push_compact(&mut buffer, log.sequence());
        buffer
    }

    #[test]
    fn an_undone_write_is_not_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::create(dir.path(), 4096).unwrap();
        log.append(&mut frame(&log)).unwrap();
        let mut lost = frame(&log);
        frame::seal(&mut lost, log.active.salt, 2);
        log.active.file.write_all_at(&lost, log.offset).unwrap();
        let found = |log: &Log| {
            let bytes = fs::read(&log.active.path).unwrap();
            frame::find(&bytes, log.offset as usize, log.active.salt).map(|frame| frame.sequence)
        };
        assert_eq!(found(&log), Some(2));
        log.undo().unwrap();
        assert_eq!(found(&log), None);
        log.append(&mut frame(&log)).unwrap();
        assert_eq!(log.sequence(), 2);
    }

    #[test]
    fn a_failed_sync_breaks_the_log_for_good() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::create(dir.path(), 4096).unwrap();
        // This device takes every write and cannot be synced.
        let unsynced = File::options().write(true).open("/dev/zero").unwrap();
        let intact = mem::replace(&mut log.active.file, unsynced);
        assert!(matches!(log.append(&mut frame(&log)), Err(Error::Broken { .. })));
        log.active.file = intact;
        assert!(matches!(log.append(&mut frame(&log)), Err(Error::Broken { .. })));
        assert_eq!(log.sequence(), 0);
    }

    #[test]
    fn a_log_that_cannot_undo_a_failed_write_takes_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::create(dir.path(), 4096).unwrap();
        let writable =
            mem::replace(&mut log.active.file, File::open(dir.path().join("00000000000000000001.log")).unwrap());
        assert!(matches!(log.append(&mut frame(&log)), Err(Error::Broken { .. })));
        log.active.file = writable;
        assert!(matches!(log.append(&mut frame(&log)), Err(Error::Broken { .. })));
        assert_eq!(log.sequence(), 0);
    }
}
