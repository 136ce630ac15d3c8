//! Who owns a volume: the pod's `fsGroup`, to which its files are given so that every container can use
//! them.
//!
//! Another pod may use the volume meanwhile and put links in the place of its files. So the tree is walked by descriptors:
//! no path is looked up twice, no link is followed, and no other file system is entered.

use std::ffi::CStr;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags};

use corten_api::k8s_openapi::api::core::v1::Pod;

use crate::error::{Error, Result};
use crate::pods::spec;

/// The group of the pod's volumes.
pub fn fs_group(pod: &Pod) -> Option<u32> {
    spec::spec(pod).security_context.as_ref()?.fs_group.and_then(|group| u32::try_from(group).ok())
}

/// The one user that all containers run as, if the spec says so. Ephemeral containers come later and do not count.
pub fn common_user(pod: &Pod) -> Option<u32> {
    let shared = spec::spec(pod).security_context.as_ref().and_then(|context| context.run_as_user);
    let mut users = spec::containers(pod)
        .filter(|declared| declared.role != spec::Role::Ephemeral)
        .map(|declared| declared.container.security_context.as_ref().and_then(|own| own.run_as_user).or(shared));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first).and_then(|user| u32::try_from(user).ok())
}

/// Gives the tree to the pod's group: readable and writable by it, and inherited by new files.
pub fn give_to_group(pod: &Pod, path: &Path) -> Result<()> {
    match fs_group(pod) {
        Some(group) if on_root_mismatch(pod) && is_given(path, group)? => Ok(()),
        Some(group) => give(path, group),
        None => Ok(()),
    }
}

/// Whether the pod trusts a root that has the right owner to stand for the whole tree.
fn on_root_mismatch(pod: &Pod) -> bool {
    let security = spec::spec(pod).security_context.as_ref();
    security.is_some_and(|security| security.fs_group_change_policy.as_deref() == Some("OnRootMismatch"))
}

fn is_given(path: &Path, group: u32) -> Result<bool> {
    let root = fs::metadata(path).map_err(Error::file("stat", path))?;
    Ok(root.gid() == group && root.mode() & 0o2770 == 0o2770)
}

/// Directories nested deeper than this are nobody's data: each holds a descriptor while the walk is below it.
const MAX_DEPTH: usize = 256;

fn give(path: &Path, group: u32) -> Result<()> {
    let named = |errno: rustix::io::Errno| Error::file("give to the pod's group", path)(errno.into());
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // The volume itself may be a link that whoever runs the node made.
    let root = rustix::fs::open(path, flags, Mode::empty()).map_err(named)?;
    give_place(&root, Gid::from_raw(group), 0).map_err(|error| match error {
        Given::Failed(errno) => named(errno),
        Given::TooDeep => Error::pod(format!("{} is nested deeper than {MAX_DEPTH} directories", path.display())),
    })
}

/// Why a tree cannot be given.
enum Given {
    Failed(rustix::io::Errno),
    TooDeep,
}

impl From<rustix::io::Errno> for Given {
    fn from(errno: rustix::io::Errno) -> Given {
        Given::Failed(errno)
    }
}

/// Gives what a descriptor of a place stands for, and all below it.
fn give_place(place: &OwnedFd, group: Gid, depth: usize) -> std::result::Result<(), Given> {
    rustix::fs::chownat(place, "", None, Some(group), AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)?;
    let found = rustix::fs::fstat(place)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    if kind == FileType::Symlink {
        return Ok(());
    }
    let inherited = if kind == FileType::Directory { 0o2110 } else { 0 };
    let mode = (found.st_mode | 0o660 | inherited) & 0o7777;
    // The kernel's own link to the place, which the volume's content cannot change.
    let link = format!("/proc/self/fd/{}", place.as_raw_fd());
    rustix::fs::chmod(link.as_str(), Mode::from_raw_mode(mode))?;
    if kind == FileType::Directory { give_children(place, group, depth + 1) } else { Ok(()) }
}

fn give_children(directory: &OwnedFd, group: Gid, depth: usize) -> std::result::Result<(), Given> {
    if depth > MAX_DEPTH {
        return Err(Given::TooDeep);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let listed = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    for entry in Dir::read_from(&listed)? {
        let entry = entry?;
        match open_child(&listed, entry.file_name()) {
            Some(child) => give_place(&child?, group, depth)?,
            None => continue,
        }
    }
    Ok(())
}

/// Opens an entry as a place; `None` for what is not part of the volume or has vanished.
fn open_child(directory: &OwnedFd, name: &CStr) -> Option<rustix::io::Result<OwnedFd>> {
    if name == c"." || name == c".." {
        return None;
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::XDEV) => None,
        opened => Some(opened),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn the_tree_is_given_and_what_links_lead_to_is_not() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: giving files away needs root");
        }
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("volume");
        let outside = root.path().join("outside");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(volume.join("a/b/file"), "").unwrap();
        fs::write(&outside, "").unwrap();
        fs::set_permissions(&outside, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&outside, volume.join("a/link")).unwrap();
        nix::unistd::mkfifo(&volume.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for (path, mode) in [("", 0o755), ("a/b", 0o755), ("a/b/file", 0o644), ("pipe", 0o700)] {
            fs::set_permissions(volume.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        give(&volume, 2000).unwrap();
        for (path, mode) in [("", 0o2775), ("a/b", 0o2775), ("a/b/file", 0o664), ("pipe", 0o760)] {
            let found = fs::metadata(volume.join(path)).unwrap();
            assert_eq!((found.gid(), found.mode() & 0o7777), (2000, mode), "{path}");
        }
        let found = fs::metadata(&outside).unwrap();
        assert_eq!((found.gid(), found.mode() & 0o7777), (0, 0o600));
        assert_eq!(fs::symlink_metadata(volume.join("a/link")).unwrap().gid(), 2000);
    }

    #[test]
    fn a_directory_that_turns_into_a_link_gives_nothing_away() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: giving files away needs root");
        }
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("volume");
        let outside = root.path().join("outside");
        fs::create_dir_all(volume.join("data")).unwrap();
        fs::create_dir(&outside).unwrap();
        for number in 0..50 {
            fs::write(volume.join(format!("data/{number}")), "").unwrap();
            fs::write(outside.join(number.to_string()), "").unwrap();
        }
        symlink(&outside, volume.join("link")).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let data = volume.join("data");
                let link = volume.join("link");
                while !stop.load(Ordering::Relaxed) {
                    let cwd = rustix::fs::CWD;
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(cwd, &data, cwd, &link, flags).unwrap();
                }
            });
            for _ in 0..200 {
                let _ = give(&volume, 2000);
            }
            stop.store(true, Ordering::Relaxed);
        });
        for entry in fs::read_dir(&outside).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().gid(), 0, "a file outside of the volume was given away");
        }
    }

    #[test]
    fn a_tree_without_end_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let deep: std::path::PathBuf = (0..=MAX_DEPTH).map(|_| "d").collect();
        fs::create_dir_all(root.path().join(deep)).unwrap();
        let group = nix::unistd::getegid().as_raw();
        assert!(give(root.path(), group).unwrap_err().to_string().contains("nested deeper than"));
    }
}
