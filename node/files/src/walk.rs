//! Walks a directory tree whose names, links and depth are chosen by a pod, perhaps while the pod changes it.
//!
//! The walk uses descriptors: it follows no link and enters no mount, and a tree may be deeper than any path is long.
//! One directory is open at a time. The walk climbs by `..`, and checks that this is the directory that it came from;
//! if the pod has moved a directory, the walk descends from the root again as far as the tree is the same.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// A name in the tree, and its metadata when the walk visited it.
pub struct Entry<'a> {
    pub directory: BorrowedFd<'a>,
    pub name: &'a CStr,
    pub stat: Stat,
}

/// Calls `visit` for everything below a directory, each directory before its content. An unreadable entry is passed as
/// an error; the walk ends if `visit` returns one. Entries that vanish during the walk are skipped.
pub fn walk(root: impl AsFd, mut visit: impl FnMut(io::Result<Entry<'_>>) -> io::Result<()>) -> io::Result<()> {
    let mut current = open(root.as_fd(), c".")?;
    let mut levels = vec![Level::read(&current, CString::default(), &mut visit)?];
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.below.pop() {
            match open(current.as_fd(), &name) {
                Ok(child) => {
                    levels.push(Level::read(&child, name, &mut visit)?);
                    current = child;
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
                Err(errno) => visit(Err(errno.into()))?,
            }
        } else {
            levels.pop();
            if let Some(parent) = levels.last() {
                current = match climb(&current, parent) {
                    Some(parent) => parent,
                    None => descend(root.as_fd(), &mut levels)?,
                };
            }
        }
    }
    Ok(())
}

/// A directory that the walk is in, from the root down.
struct Level {
    name: CString,
    identity: (u64, u64),
    /// The directories in it that are still to be entered.
    below: Vec<CString>,
}

impl Level {
    fn read(
        directory: &OwnedFd,
        name: CString,
        visit: &mut impl FnMut(io::Result<Entry<'_>>) -> io::Result<()>,
    ) -> io::Result<Level> {
        let mut below = Vec::new();
        let mut entries = Dir::read_from(directory)?;
        while let Some(entry) = entries.read() {
            let entry = match entry {
                Ok(entry) => entry,
                // The rest of this directory cannot be read.
                Err(errno) => {
                    visit(Err(errno.into()))?;
                    break;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    visit(Ok(Entry { directory: directory.as_fd(), name, stat }))?;
                    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                        below.push(name.to_owned());
                    }
                }
                Err(Errno::NOENT) => {}
                Err(errno) => visit(Err(errno.into()))?,
            }
        }
        Ok(Level { name, identity: identity(directory)?, below })
    }
}

/// Opens a directory in another, unless it is a link or a mount.
fn open(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(parent, name, DIRECTORY, Mode::empty(), inside)
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn identity(directory: &OwnedFd) -> rustix::io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Opens the parent of a directory, if it is still the one that the walk came from.
fn climb(current: &OwnedFd, parent: &Level) -> Option<OwnedFd> {
    let above = rustix::fs::openat(current, c"..", DIRECTORY, Mode::empty()).ok()?;
    (identity(&above) == Ok(parent.identity)).then_some(above)
}

/// Descends from the root again, as far as the directories are those that the walk came through; drops the other
/// levels.
fn descend(root: BorrowedFd<'_>, levels: &mut Vec<Level>) -> io::Result<OwnedFd> {
    let mut current = open(root, c".")?;
    let mut depth = 1;
    while let Some(level) = levels.get(depth)
        && let Ok(child) = open(current.as_fd(), &level.name)
        && identity(&child) == Ok(level.identity)
    {
        current = child;
        depth += 1;
    }
    levels.truncate(depth);
    Ok(current)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::tests::nest;

    fn directory(path: &Path) -> OwnedFd {
        rustix::fs::open(path, DIRECTORY, Mode::empty()).expect("the directory")
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names = Vec::new();
        let taken = walk(directory(path), |entry| {
            names.push(entry?.name.to_string_lossy().into_owned());
            Ok(())
        });
        taken.expect("walked");
        names.sort();
        names
    }

    #[test]
    fn a_tree_beyond_the_length_of_a_path_is_walked_with_a_small_stack() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        nest(folder.path(), 4_000);
        let root = directory(folder.path());
        let small = std::thread::Builder::new().stack_size(64 << 10);
        let count = move || {
            let mut count = 0;
            walk(root, |entry| {
                entry?;
                count += 1;
                Ok(())
            })?;
            io::Result::Ok(count)
        };
        assert_eq!(small.spawn(count).expect("a thread").join().expect("no panic").expect("walked"), 8_000);
        crate::remove_tree(folder.path()).expect("removed");
    }

    #[test]
    fn links_are_visited_and_not_followed() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir_all(folder.path().join("root/a/b")).expect("directories");
        std::fs::create_dir_all(folder.path().join("root/c")).expect("a directory");
        std::fs::create_dir_all(folder.path().join("outside/hidden")).expect("directories");
        std::os::unix::fs::symlink("../../outside", folder.path().join("root/a/link")).expect("a link");
        std::os::unix::fs::symlink("..", folder.path().join("root/a/b/up")).expect("a link");
        assert_eq!(names(&folder.path().join("root")), ["a", "b", "c", "link", "up"]);
    }

    /// A pod moves the directory that the walk is in: the walk goes on with the rest of the tree.
    #[test]
    fn a_directory_that_moves_does_not_lead_out_of_the_tree() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("a/b/inner")).expect("directories");
        std::fs::create_dir_all(root.join("a/c")).expect("directories");
        std::fs::create_dir_all(folder.path().join("elsewhere/other")).expect("directories");
        let mut names = Vec::new();
        let taken = walk(directory(&root), |entry| {
            let name = entry?.name.to_string_lossy().into_owned();
            if name == "inner" {
                std::fs::rename(root.join("a/b"), folder.path().join("elsewhere/b")).expect("moved");
            }
            names.push(name);
            Ok(())
        });
        taken.expect("walked");
        names.sort();
        assert_eq!(names, ["a", "b", "c", "inner"]);
    }

    #[test]
    fn the_walk_ends_with_the_error_of_its_visitor() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir_all(folder.path().join("a/b")).expect("directories");
        let error = walk(directory(folder.path()), |_| Err(io::Error::other("enough"))).expect_err("an error");
        assert_eq!(error.to_string(), "enough");
    }
}
