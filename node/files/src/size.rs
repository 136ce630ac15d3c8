//! The disk usage of a directory tree. Pods pay for it, so a tree cannot hide by its depth, by links or by being moved.

use std::collections::HashSet;
use std::ops::AddAssign;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};

use crate::walk::walk;

/// Bytes on disk, and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub bytes: u64,
    pub inodes: u64,
}

impl Size {
    fn of(stat: &Stat) -> Size {
        // The kernel counts blocks of 512 bytes, whatever those of the file system are.
        Size { bytes: stat.st_blocks.unsigned_abs().saturating_mul(512), inodes: 1 }
    }
}

impl AddAssign for Size {
    fn add_assign(&mut self, other: Size) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

/// Counts a file, or a directory and everything below it on the same file system, each inode once. Files that vanish
/// during the walk, or cannot be read, do not count.
pub fn size_of(path: &Path) -> Size {
    let Ok(root) = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) else { return Size::default() };
    let mut size = Size::of(&root);
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open(path, flags, Mode::empty()) else { return size };
    let mut linked = HashSet::new();
    let _ = walk(directory, |entry| {
        if let Ok(entry) = entry
            && entry.stat.st_dev == root.st_dev
            && is_new(&entry.stat, &mut linked)
        {
            size += Size::of(&entry.stat);
        }
        Ok(())
    });
    size
}

/// Reports whether the file was not counted before: a file with two names is one file.
fn is_new(stat: &Stat, linked: &mut HashSet<u64>) -> bool {
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    is_directory || stat.st_nlink <= 1 || linked.insert(stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::nest;

    #[test]
    fn files_are_counted_once_and_links_are_not_followed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let empty = size_of(root.path());
        assert_eq!(empty.inodes, 1);
        std::fs::create_dir(root.path().join("d")).expect("a directory");
        std::fs::write(root.path().join("d/f"), vec![1; 8192]).expect("a file");
        std::fs::hard_link(root.path().join("d/f"), root.path().join("again")).expect("a link");
        std::os::unix::fs::symlink("/usr", root.path().join("far")).expect("a link");
        let size = size_of(root.path());
        assert_eq!(size.inodes, 4, "the root, d, one file and the link itself");
        assert!(size.bytes >= 8192 && size.bytes < empty.bytes + 64 * 1024, "{size:?}");
        assert_eq!(size_of(&root.path().join("d/f")).inodes, 1);
        assert_eq!(size_of(&root.path().join("far")).inodes, 1);
        assert_eq!(size_of(&root.path().join("none")), Size::default());
    }

    #[test]
    fn a_tree_beyond_the_length_of_a_path_is_counted() {
        let root = tempfile::tempdir().expect("a temporary directory");
        nest(root.path(), 4_000);
        assert_eq!(size_of(root.path()).inodes, 8_001);
        crate::remove_tree(root.path()).expect("removed");
    }
}
