//! Ownership of a volume: the pod's `fsGroup`, which owns the volume's files so that every container can use them.
//!
//! Another pod may use the volume at the same time and replace its files with links. So the tree is walked by
//! descriptors: no path is looked up twice, no link is followed, no other file system is entered, and no tree is too
//! deep.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_files::Entry;

use crate::error::{Error, Result};
use crate::pod::spec;

/// Returns the group of the pod's volumes.
pub fn fs_group(pod: &Pod) -> Option<u32> {
    spec::spec(pod).security_context.as_ref()?.fs_group.and_then(|group| u32::try_from(group).ok())
}

/// Returns the user that all containers run as, if the spec has one. Ephemeral containers start later and do not count.
pub fn common_user(pod: &Pod) -> Option<u32> {
    let shared = spec::spec(pod).security_context.as_ref().and_then(|context| context.run_as_user);
    let mut users = spec::containers(pod)
        .filter(|declared| declared.role != spec::Role::Ephemeral)
        .map(|declared| declared.container.security_context.as_ref().and_then(|own| own.run_as_user).or(shared));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first).and_then(|user| u32::try_from(user).ok())
}

/// Changes the group of the tree to the pod's fsGroup: the group can read and write, and new files inherit it.
pub fn give_to_group(pod: &Pod, path: &Path) -> Result<()> {
    match fs_group(pod) {
        Some(group) if on_root_mismatch(pod) && is_given(path, group)? => Ok(()),
        Some(group) => give(path, group),
        None => Ok(()),
    }
}

/// Reports whether the pod's policy is `OnRootMismatch`: a root with the right group stands for the tree.
fn on_root_mismatch(pod: &Pod) -> bool {
    let security = spec::spec(pod).security_context.as_ref();
    security.is_some_and(|security| security.fs_group_change_policy.as_deref() == Some("OnRootMismatch"))
}

fn is_given(path: &Path, group: u32) -> Result<bool> {
    let root = fs::metadata(path).map_err(Error::file("stat", path))?;
    Ok(root.gid() == group && root.mode() & 0o2770 == 0o2770)
}

/// Changes the content first and the volume's root last: a root with the group says that all below it has the group.
fn give(path: &Path, group: u32) -> Result<()> {
    let named = |error: io::Error| Error::file("give to the pod's group", path)(error);
    let group = Gid::from_raw(group);
    // The volume itself may be a link that the node's administrator made.
    let root = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|e| named(e.into()))?;
    let found = rustix::fs::fstat(&root).map_err(|e| named(e.into()))?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
        corten_files::walk(&root, |entry| give_entry(&entry?, group)).map_err(named)?;
    }
    give_file(&root, group).map_err(|errno| named(errno.into()))
}

/// Changes a directory entry, unless it has vanished or belongs to another file system.
fn give_entry(entry: &Entry<'_>, group: Gid) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(entry.directory, entry.name, flags, Mode::empty(), inside) {
        Err(Errno::NOENT | Errno::XDEV) => Ok(()),
        file => Ok(give_file(&file?, group)?),
    }
}

/// Changes the file of a descriptor.
fn give_file(file: &OwnedFd, group: Gid) -> rustix::io::Result<()> {
    rustix::fs::chownat(file, "", None, Some(group), AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)?;
    let found = rustix::fs::fstat(file)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    if kind == FileType::Symlink {
        return Ok(());
    }
    let inherited = if kind == FileType::Directory { 0o2110 } else { 0 };
    let mode = (found.st_mode | 0o660 | inherited) & 0o7777;
    // The kernel's own link to the file, which the volume's content cannot change.
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::chmod(link.as_str(), Mode::from_raw_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn the_tree_gets_the_group_and_targets_of_links_do_not() {
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
    fn a_tree_deeper_than_a_path_gets_the_group_with_a_small_stack() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("volume");
        fs::create_dir(&volume).unwrap();
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = rustix::fs::open(&volume, flags, Mode::empty()).unwrap();
        for _ in 0..3_000 {
            rustix::fs::mkdirat(&directory, "d", Mode::from_raw_mode(0o755)).unwrap();
            directory = rustix::fs::openat(&directory, "d", flags, Mode::empty()).unwrap();
        }
        let group = nix::unistd::getegid().as_raw();
        let given = volume.clone();
        let small = std::thread::Builder::new().stack_size(128 << 10);
        small.spawn(move || give(&given, group)).unwrap().join().unwrap().unwrap();
        assert_eq!(rustix::fs::fstat(&directory).unwrap().st_mode & 0o7777, 0o2775, "the deepest directory");
        corten_files::remove_tree(&volume).unwrap();
    }

    #[test]
    fn a_volume_of_one_file_gets_the_group() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        give(&file, nix::unistd::getegid().as_raw()).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o660);
    }
}
