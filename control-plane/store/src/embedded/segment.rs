//! One file of the log: a header, then frames, then zeroes to its end.
//!
//! A segment is filled with zeroes and synced under a temporary name before its first frame, so a file with a segment's
//! name is always complete. A commit then only overwrites allocated blocks: its sync flushes data and no metadata, and
//! it cannot run out of space.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::Error;

const MAGIC: &[u8; 8] = b"CORTENLG";
/// The size of the header; frames begin here.
pub const HEADER: usize = 32;
const SUFFIX: &str = ".log";
/// The suffix of every incomplete file; such files are removed when the store opens.
pub const UNFINISHED: &str = ".tmp";
/// The step in which big files are synced: the sync of a commit waits for all other pending writes to the disk, so
/// these must stay small.
pub const SYNC_BYTES: u64 = 1 << 20;
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

#[derive(Debug)]
pub struct Segment {
    /// The number of the segment; there are no gaps.
    pub index: u64,
    pub path: PathBuf,
    pub file: File,
    pub salt: u64,
    /// The size of the file.
    pub size: u64,
}

impl Segment {
    /// Makes a segment of `size` bytes, which is on disk under its name when this returns.
    pub fn create(dir: &Path, index: u64, size: u64) -> Result<Segment, Error> {
        let path = dir.join(format!("{index:020}{SUFFIX}"));
        let unfinished = dir.join(format!("{index:020}{SUFFIX}{UNFINISHED}"));
        let salt = salt();
        let written = write_new(&unfinished, &header(index, salt), size)
            .and_then(|file| fs::rename(&unfinished, &path).map(|()| file))
            .and_then(|file| sync_dir(dir).map(|()| file));
        match written {
            Ok(file) => Ok(Segment { index, path, file, salt, size }),
            Err(error) => {
                // An incomplete file only takes space; the next opening removes it.
                let _ = fs::remove_file(&unfinished);
                Err(Error::io("create the log segment", &path, error))
            }
        }
    }

    /// Opens an existing segment and reads it.
    pub fn open(path: PathBuf) -> Result<(Segment, Vec<u8>), Error> {
        let failed = |error| Error::io("open the log segment", &path, error);
        let file = File::options().read(true).write(true).open(&path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        let Some((index, salt)) = parse_header(&bytes) else {
            return Err(Error::corrupt(&path, "the header of the log segment is damaged"));
        };
        if index_of(&path) != Some(index) {
            return Err(Error::corrupt(&path, format!("the log segment is number {index}")));
        }
        Ok((Segment { index, path, file, salt, size }, bytes))
    }

    /// Extends the segment with zeroes.
    pub fn grow(&mut self, size: u64) -> Result<(), Error> {
        let grown = zero(&self.file, self.size, size).and_then(|()| self.file.sync_all());
        grown.map_err(|error| Error::io("grow the log segment", &self.path, error))?;
        self.size = size;
        Ok(())
    }

    /// Overwrites everything from `offset` on with zeroes, durably.
    pub fn clear(&self, offset: u64) -> Result<(), Error> {
        let cleared = overwrite(&self.file, offset, self.size).and_then(|()| self.file.sync_data());
        cleared.map_err(|error| Error::io("clear the end of the log segment", &self.path, error))
    }
}

/// Returns the number in a segment's name; `None` for a file that is no segment.
pub fn index_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.parse().ok()
}

/// Returns a number that no other file of this store has. The authors of values must not be able to guess it; it need
/// not stay secret.
pub fn salt() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Returns the free bytes on the disk of a directory; `None` if that cannot be read.
pub fn free_space(dir: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Makes a file without a name: its name is removed at once, and after a crash when the store opens.
pub fn scratch(dir: &Path) -> Result<File, Error> {
    let path = dir.join(format!("{:016x}{UNFINISHED}", salt()));
    let made = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
    made.and_then(|file| fs::remove_file(&path).map(|()| file)).map_err(|error| Error::io("create", &path, error))
}

pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

pub(crate) fn header(index: u64, salt: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&index.to_le_bytes());
    header[16..24].copy_from_slice(&salt.to_le_bytes());
    let sum = crc32c::crc32c(&header[..24]);
    header[24..28].copy_from_slice(&sum.to_le_bytes());
    header
}

pub(super) fn parse_header(bytes: &[u8]) -> Option<(u64, u64)> {
    let bytes = bytes.get(..HEADER)?;
    let number = |at: usize| bytes[at..at + 8].try_into().ok().map(u64::from_le_bytes);
    let sum = crc32c::crc32c(&bytes[..24]);
    (bytes[..8] == MAGIC[..] && bytes[24..28] == sum.to_le_bytes()).then_some(())?;
    Some((number(8)?, number(16)?))
}

fn write_new(path: &Path, header: &[u8], size: u64) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    zero(&file, 0, size)?;
    file.write_all_at(header, 0)?;
    file.sync_all()?;
    Ok(file)
}

/// Appends zeroes to a file. Allocates the space first, so that a full disk is noticed before anything is written and
/// the blocks are contiguous.
fn zero(file: &File, from: u64, to: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    match fallocate(file, FallocateFlags::empty(), from, to.saturating_sub(from).max(1)) {
        // Some file systems cannot; writing allocates the space as well.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => overwrite(file, from, to),
        Err(errno) => Err(errno.into()),
    }
}

fn overwrite(file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let length = (to - at).min(ZEROES.len() as u64);
        file.write_all_at(&ZEROES[..length as usize], at)?;
        at += length;
        if at.is_multiple_of(SYNC_BYTES) {
            file.sync_data()?;
        }
    }
    Ok(())
}
