//! Disk usage: the capacity of file systems, and the size of directories. Measuring a directory is slow, so its size is
//! cached.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use corten_files::Size;

use crate::summary::{FsStats, Time};

/// The time for which a size is cached: upstream's period of volume statistics.
const COUNT_AGE: Duration = Duration::from_secs(60);

/// The cached sizes of directories.
#[derive(Debug, Default)]
pub struct Counts {
    by_path: Mutex<HashMap<PathBuf, (Instant, Size)>>,
}

impl Counts {
    /// Returns the size of the directory, at most a minute old. Blocks while it measures.
    pub fn of(&self, folder: &Path) -> Size {
        let known = self.lock().get(folder).filter(|(at, _)| at.elapsed() < COUNT_AGE).map(|(_, size)| *size);
        known.unwrap_or_else(|| {
            let size = corten_files::size_of(folder);
            self.lock().insert(folder.to_path_buf(), (Instant::now(), size));
            size
        })
    }

    /// Removes sizes that were not read for a while.
    pub fn forget_old(&self) {
        self.lock().retain(|_, (at, _)| at.elapsed() < 2 * COUNT_AGE);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, (Instant, Size)>> {
        self.by_path.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the capacity of the path's file system; the path need not exist yet.
pub fn file_system(path: &Path, time: Time) -> Option<FsStats> {
    let stat = path.ancestors().find_map(|path| rustix::fs::statvfs(path).ok())?;
    let block = stat.f_frsize;
    Some(FsStats {
        time,
        available_bytes: Some(stat.f_bavail.saturating_mul(block)),
        capacity_bytes: Some(stat.f_blocks.saturating_mul(block)),
        used_bytes: Some(stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(block)),
        // A file system without inodes reports zero of them.
        inodes_free: Some(stat.f_ffree).filter(|_| stat.f_files > 0),
        inodes: Some(stat.f_files).filter(|inodes| *inodes > 0),
        inodes_used: Some(stat.f_files.saturating_sub(stat.f_ffree)).filter(|_| stat.f_files > 0),
        room_bytes: Some(
            (stat.f_blocks.saturating_sub(stat.f_bfree)).saturating_add(stat.f_bavail).saturating_mul(block),
        ),
    })
}

/// Returns the used bytes and the usable bytes of a path's file system.
pub fn room(path: &Path) -> Option<(u64, u64)> {
    let stats = file_system(path, Time::from_nanoseconds(0))?;
    Some((stats.used_bytes?, stats.room_bytes?))
}

/// Returns the statistics of a file system with the usage of one directory in it.
pub fn part_of(room: &FsStats, size: Size) -> FsStats {
    FsStats { used_bytes: Some(size.bytes), inodes_used: Some(size.inodes), ..room.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_on_a_file_system() {
        let time = Time::from_nanoseconds(0);
        let stats = file_system(Path::new("/no/such/place"), time).unwrap();
        assert!(stats.capacity_bytes >= stats.used_bytes);
    }
}
