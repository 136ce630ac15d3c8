//! The free space of a file system for downloads and unpacked layers.
//!
//! A small blob can expand to any size. Every writer of an image takes space here before it writes, and is refused
//! while the node still has a reserve: an image must never fill the disk that the cluster's own data is on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::StatVfs;

/// The reserve in bytes, or a tenth of the file system where that is less.
const RESERVED_BYTES: u64 = 1 << 30;
/// The reserve in inodes, or a tenth of the file system's where that is less.
const RESERVED_INODES: u64 = 100_000;
/// The number of bytes, or of entries' worth of bytes, after which the free space is read again.
const STEP: u64 = 16 << 20;
/// The least cost of an entry: a block of a small file, or an inode.
const ENTRY_COST: u64 = 4096;

/// A counter of writes to a file system that refuses those that would take the reserve.
pub(super) struct Room {
    directory: OwnedFd,
    /// The bytes that may be written before the free space is read again.
    granted: u64,
}

impl Room {
    /// Makes a room of the file system of an open directory.
    pub fn on(directory: impl AsFd) -> io::Result<Self> {
        Ok(Self { directory: directory.as_fd().try_clone_to_owned()?, granted: 0 })
    }

    /// Refuses a file that will not fit, before its first byte is written.
    pub fn fits(&self, bytes: u64) -> io::Result<()> {
        let left = left(&rustix::fs::fstatvfs(&self.directory)?);
        if left.bytes < bytes { Err(full("bytes", left.bytes)) } else { Ok(()) }
    }

    /// Takes space for one entry, whatever it holds.
    pub fn entry(&mut self) -> io::Result<()> {
        self.take(ENTRY_COST)
    }

    /// Takes space for this many bytes, before they are written.
    pub fn take(&mut self, bytes: u64) -> io::Result<()> {
        if bytes > self.granted {
            let wanted = bytes.max(STEP);
            let status = rustix::fs::fstatvfs(&self.directory)?;
            let left = left(&status);
            if left.bytes < wanted {
                return Err(full("bytes", left.bytes));
            }
            if left.inodes < STEP / ENTRY_COST {
                return Err(full("inodes", left.inodes));
            }
            self.granted = wanted;
        }
        self.granted -= bytes;
        Ok(())
    }
}

fn full(unit: &str, left: u64) -> io::Error {
    let message = format!("no room left: beyond its reserve the disk has {left} {unit}");
    io::Error::new(io::ErrorKind::StorageFull, message)
}

struct Left {
    bytes: u64,
    inodes: u64,
}

/// Returns the free space beyond the reserve. A file system that does not count inodes has any number of them.
fn left(status: &StatVfs) -> Left {
    let total = status.f_blocks.saturating_mul(status.f_frsize);
    let free = status.f_bavail.saturating_mul(status.f_frsize);
    let inodes = match status.f_files {
        0 => u64::MAX,
        files => status.f_favail.saturating_sub(RESERVED_INODES.min(files / 10)),
    };
    Left { bytes: free.saturating_sub(RESERVED_BYTES.min(total / 10)), inodes }
}

/// A reader that fails when there is no space for the bytes.
pub(super) struct Roomy<'a, R> {
    pub inner: R,
    pub room: &'a mut Room,
}

impl<R: io::Read> io::Read for Roomy<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.room.take(read as u64)?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(free: u64, free_inodes: u64) -> StatVfs {
        StatVfs {
            f_bsize: 4096,
            f_frsize: 4096,
            f_blocks: (100 << 30) / 4096,
            f_bfree: free / 4096,
            f_bavail: free / 4096,
            f_files: 10_000_000,
            f_ffree: free_inodes,
            f_favail: free_inodes,
            f_fsid: 0,
            f_flag: rustix::fs::StatVfsMountFlags::empty(),
            f_namemax: 255,
        }
    }

    #[test]
    fn the_reserve_is_kept() {
        let plenty = left(&status(50 << 30, 5_000_000));
        assert_eq!(plenty.bytes, 49 << 30);
        assert_eq!(plenty.inodes, 4_900_000);
        let none = left(&status(1 << 30, 50_000));
        assert_eq!(none.bytes, 0);
        assert_eq!(none.inodes, 0);
        let uncounted = StatVfs { f_files: 0, f_favail: 0, ..status(50 << 30, 0) };
        assert_eq!(left(&uncounted).inodes, u64::MAX);
    }

    #[test]
    fn more_than_the_disk_has_is_refused_before_it_is_written() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let directory = std::fs::File::open(folder.path()).expect("open");
        let mut room = Room::on(&directory).expect("room");
        room.entry().expect("an entry fits");
        for error in [room.take(1 << 60), room.fits(1 << 60)] {
            assert_eq!(error.expect_err("an exbibyte does not").kind(), io::ErrorKind::StorageFull);
        }
    }
}
