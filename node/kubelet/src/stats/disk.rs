//! What lies on disk: the room of file systems, and the size of folders. Counting a folder is slow, so a count is
//! used again for a while; it never follows a link and never crosses into another file system.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::types::{FsStats, Time};

/// How long a count is good for: upstream's period of volume statistics.
const COUNT_AGE: Duration = Duration::from_secs(60);

/// Bytes and inodes below a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub bytes: u64,
    pub inodes: u64,
}

impl std::ops::AddAssign for Size {
    fn add_assign(&mut self, other: Size) {
        self.bytes += other.bytes;
        self.inodes += other.inodes;
    }
}

/// Folders that were counted lately.
#[derive(Debug, Default)]
pub struct Counts {
    by_path: Mutex<HashMap<PathBuf, (Instant, Size)>>,
}

impl Counts {
    /// The size of the folder, at most a minute old. Blocks while it counts.
    pub fn of(&self, folder: &Path) -> Size {
        let known = self.lock().get(folder).filter(|(at, _)| at.elapsed() < COUNT_AGE).map(|(_, size)| *size);
        known.unwrap_or_else(|| {
            let size = count(folder);
            self.lock().insert(folder.to_path_buf(), (Instant::now(), size));
            size
        })
    }

    /// Forgets what nobody asked for in a while.
    pub fn forget_old(&self) {
        self.lock().retain(|_, (at, _)| at.elapsed() < 2 * COUNT_AGE);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, (Instant, Size)>> {
        self.by_path.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the folder itself and all below it; what vanishes meanwhile does not count.
pub fn count(folder: &Path) -> Size {
    let Ok(root) = std::fs::symlink_metadata(folder) else { return Size::default() };
    let mut size = Size { bytes: root.blocks() * 512, inodes: 1 };
    let mut folders = if root.is_dir() { vec![folder.to_path_buf()] } else { Vec::new() };
    let mut linked = std::collections::HashSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            // A file with two names is one file.
            if metadata.dev() != root.dev()
                || (metadata.nlink() > 1 && metadata.is_file() && !linked.insert(metadata.ino()))
            {
                continue;
            }
            size += Size { bytes: metadata.blocks() * 512, inodes: 1 };
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    size
}

/// The room of the file system that the path is on, or will be on.
pub fn file_system(path: &Path, time: Time) -> Option<FsStats> {
    let stat = path.ancestors().find_map(|path| rustix::fs::statvfs(path).ok())?;
    let block = stat.f_frsize;
    Some(FsStats {
        time,
        available_bytes: Some(stat.f_bavail.saturating_mul(block)),
        capacity_bytes: Some(stat.f_blocks.saturating_mul(block)),
        used_bytes: Some(stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(block)),
        // A file system without inodes says that it has none at all.
        inodes_free: Some(stat.f_ffree).filter(|_| stat.f_files > 0),
        inodes: Some(stat.f_files).filter(|inodes| *inodes > 0),
        inodes_used: Some(stat.f_files.saturating_sub(stat.f_ffree)).filter(|_| stat.f_files > 0),
        room_bytes: Some(
            (stat.f_blocks.saturating_sub(stat.f_bfree)).saturating_add(stat.f_bavail).saturating_mul(block),
        ),
    })
}

/// What is used of the file system that a path is on, and what could be used of it at all, in bytes.
pub fn room(path: &Path) -> Option<(u64, u64)> {
    let stats = file_system(path, Time::from_nanoseconds(0))?;
    Some((stats.used_bytes?, stats.room_bytes?))
}

/// The room of a file system, of which something in particular takes this size.
pub fn part_of(room: &FsStats, size: Size) -> FsStats {
    FsStats { used_bytes: Some(size.bytes), inodes_used: Some(size.inodes), ..room.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_once_and_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let empty = count(root.path());
        assert_eq!(empty.inodes, 1);
        std::fs::create_dir(root.path().join("d")).unwrap();
        std::fs::write(root.path().join("d/f"), vec![1; 8192]).unwrap();
        std::fs::hard_link(root.path().join("d/f"), root.path().join("again")).unwrap();
        std::os::unix::fs::symlink("/usr", root.path().join("far")).unwrap();
        let size = count(root.path());
        assert_eq!(size.inodes, 4, "the root, d, one file and the link itself");
        assert!(size.bytes >= 8192 && size.bytes < empty.bytes + 64 * 1024, "{size:?}");
        assert_eq!(count(&root.path().join("none")), Size::default());
    }

    #[test]
    fn every_path_is_on_a_file_system() {
        let time = Time::from_nanoseconds(0);
        let stats = file_system(Path::new("/no/such/place"), time).unwrap();
        assert!(stats.capacity_bytes >= stats.used_bytes);
    }
}
