//! Removes a folder with everything below it, however a container shaped it.
//!
//! A container can nest folders tens of thousands deep, and a removal that recurses ends with the stack of the whole
//! server. This one never recurses: a folder that is not empty moves up to the top, so that the tree is flat when it is
//! read. It holds two descriptors, follows no link, and never enters another file system.

use std::ffi::CStr;
use std::io;
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

/// Removes the folder, and fails as `std::fs::remove_dir_all` does.
pub fn remove(folder: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::openat(CWD, folder, flags, Mode::empty())?;
    let mut moved = 0;
    loop {
        let names = names(&top)?;
        if names.is_empty() {
            return Ok(rustix::fs::unlinkat(CWD, folder, AtFlags::REMOVEDIR)?);
        }
        let mut progress = false;
        for name in names {
            progress |= take_apart(&top, &name, &mut moved)?;
        }
        if !progress {
            return Err(Errno::NOTEMPTY.into());
        }
    }
}

/// Removes one entry of the top, after its own folders moved beside it. False if nothing changed.
fn take_apart(top: &OwnedFd, name: &CStr, moved: &mut u64) -> io::Result<bool> {
    if unlink(top, name)? {
        return Ok(true);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
    let folder = rustix::fs::openat2(top, name, flags, Mode::empty(), resolve)?;
    let mut progress = false;
    for child in names(&folder)? {
        progress |= unlink(&folder, &child)? || move_up(&folder, &child, top, moved)?;
    }
    Ok(unlink(top, name)? || progress)
}

/// Unlinks a file or an empty folder; false for a folder that is not empty.
fn unlink(folder: &OwnedFd, name: &CStr) -> io::Result<bool> {
    let removed = match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR),
        other => other,
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Moves a folder to the top under a name that is free there. False if the top holds as many as it can.
fn move_up(folder: &OwnedFd, name: &CStr, top: &OwnedFd, moved: &mut u64) -> io::Result<bool> {
    loop {
        *moved += 1;
        let free = format!("{moved}.removed");
        match rustix::fs::renameat_with(folder, name, top, free.as_str(), RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(true),
            Err(Errno::EXIST) => {}
            Err(Errno::MLINK) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn names(folder: &OwnedFd) -> io::Result<Vec<std::ffi::CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nests folders as a container does it: one step at a time, so that no path is too long.
    fn nest(top: &Path, depth: usize) {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut folder = rustix::fs::open(top, flags, Mode::empty()).expect("the top");
        for _ in 0..depth {
            rustix::fs::mkdirat(&folder, "d", Mode::from_raw_mode(0o755)).expect("a folder");
            folder = rustix::fs::openat(&folder, "d", flags, Mode::empty()).expect("the folder");
        }
    }

    #[test]
    fn a_tree_deeper_than_the_stack_is_removed() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let folder = place.path().join("folder");
        std::fs::create_dir_all(folder.join("1.removed/x/y")).expect("a name that the removal takes");
        std::fs::write(folder.join("1.removed/x/file"), "").expect("a file");
        nest(&folder, 20_000);
        remove(&folder).expect("remove");
        assert!(!folder.exists());
        let gone = remove(&folder).expect_err("nothing to remove");
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let kept = place.path().join("kept");
        std::fs::create_dir_all(kept.join("inside")).expect("a folder outside");
        let folder = place.path().join("folder");
        std::fs::create_dir_all(folder.join("sub")).expect("a folder");
        std::os::unix::fs::symlink(&kept, folder.join("link")).expect("a link");
        std::os::unix::fs::symlink(&kept, folder.join("sub/link")).expect("a link");
        remove(&folder).expect("remove");
        assert!(kept.join("inside").exists());
        std::os::unix::fs::symlink(&kept, &folder).expect("a link in the folder's place");
        assert!(remove(&folder).is_err() && kept.join("inside").exists());
    }
}
