//! Removes a directory tree whose names and depth were chosen by an image or by a pod.
//!
//! The standard library descends by recursion, so a tree of ten thousand nested directories overflows the stack and
//! kills the process. Here each directory is moved up into the root of the tree before it is emptied: stack, open files
//! and path lengths stay constant. Links are removed, never followed, and mounts are never entered.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// Removes a file, a link or a directory with everything in it.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    remove_at(CWD, path)
}

/// Removes a name in an open directory, as `remove_tree` does.
pub fn remove_at(parent: impl AsFd, name: impl Arg + Copy) -> io::Result<()> {
    match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        result => return Ok(result?),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
    Emptying { root: &root, prefix: uuid::Uuid::new_v4().simple().to_string(), moved: 0 }.run()?;
    Ok(rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)?)
}

struct Emptying<'a> {
    root: &'a OwnedFd,
    /// The prefix of moved directories; random, so that no name in the tree is the same.
    prefix: String,
    moved: u64,
}

impl Emptying<'_> {
    /// Repeats passes over the root until it is empty: moved directories appear there during a pass.
    fn run(mut self) -> io::Result<()> {
        loop {
            let mut found = false;
            for entry in Dir::read_from(self.root)? {
                let entry = entry?;
                if !is_dots(entry.file_name()) {
                    found = true;
                    self.remove(entry.file_name())?;
                }
            }
            if !found {
                return Ok(());
            }
        }
    }

    /// Removes an entry of the root; moves the directories in it into the root.
    fn remove(&mut self, name: &CStr) -> io::Result<()> {
        if unlink(self.root, name)? {
            return Ok(());
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let directory = rustix::fs::openat2(self.root, name, flags, Mode::empty(), inside)?;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            if !is_dots(entry.file_name()) && !unlink(&directory, entry.file_name())? {
                self.moved += 1;
                let moved_name = format!("{}-{}", self.prefix, self.moved);
                rustix::fs::renameat(&directory, entry.file_name(), self.root, moved_name)?;
            }
        }
        match rustix::fs::unlinkat(self.root, name, AtFlags::REMOVEDIR) {
            // A name was added during the pass; the next pass finds the directory again.
            Ok(()) | Err(Errno::NOTEMPTY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Removes a file or a link. Returns false for a directory: only an empty one is ever removed by its name, because the
/// kernel walks everything below a directory before it reports that it is not empty.
fn unlink(parent: &OwnedFd, name: &CStr) -> io::Result<bool> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::nest;

    #[test]
    fn a_deep_tree_is_removed_with_a_small_stack() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let root = folder.path().join("root");
        std::fs::create_dir(&root).expect("the root");
        nest(&root, 2_000);
        let small = std::thread::Builder::new().stack_size(64 << 10);
        small.spawn(move || remove_tree(&root)).expect("a thread").join().expect("no panic").expect("removed");
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 0);
    }

    #[test]
    fn links_are_removed_and_their_targets_stay() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let outside = folder.path().join("outside");
        std::fs::create_dir_all(outside.join("kept")).expect("a directory");
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).expect("directories");
        for path in ["link", "a/link", "a/b/link"] {
            std::os::unix::fs::symlink(&outside, root.join(path)).expect("a link");
        }
        remove_tree(&root).expect("removed");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&outside, &link).expect("a link");
        remove_tree(&link).expect("removed");
        assert!(outside.join("kept").is_dir() && !root.exists() && !link.is_symlink());
        assert_eq!(remove_tree(&root).expect_err("gone").kind(), io::ErrorKind::NotFound);
    }
}
