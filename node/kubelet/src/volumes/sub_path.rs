//! `subPath`: one file or directory of a volume, bind-mounted to a path of its own before the container mounts it.
//!
//! The path comes from the user and the volume's content from a container. So the kernel resolves the path inside the
//! volume's root (`openat2`, beneath it), and the mount uses the open descriptor: no symbolic link can lead out, not
//! even one that a container swaps in at the same time.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::error::{Error, Result};

/// Binds `sub_path` of the volume to `target` and returns the target.
pub fn bind(volume: &Path, sub_path: &str, target: &Path) -> Result<PathBuf> {
    let inside = Path::new(sub_path);
    if !inside.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(Error::pod(format!("subPath {sub_path:?} must be a relative path without '..'")));
    }
    let source = open_or_create(volume, inside)?;
    let is_dir = rustix::fs::fstat(&source)
        .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
        .map_err(|errno| Error::file("stat", &volume.join(inside))(errno.into()))?;
    prepare_target(target, is_dir)?;
    let from = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(&from), target, None::<&str>, flags, None::<&str>)
        .map_err(|errno| Error::file("bind", target)(errno.into()))?;
    Ok(target.to_path_buf())
}

/// Opens the path beneath the volume. A missing part becomes a directory with the volume's own mode: a user who may
/// write to the volume may write to a part of it.
fn open_or_create(volume: &Path, inside: &Path) -> Result<OwnedFd> {
    let root = rustix::fs::open(volume, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::file("open", volume)(errno.into()))?;
    let beneath = |path: &Path| {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
    };
    let failed = |errno: rustix::io::Errno| Error::file("open", &volume.join(inside))(errno.into());
    match beneath(inside) {
        Err(rustix::io::Errno::NOENT) => {}
        other => return other.map_err(failed),
    }
    let mut path = PathBuf::new();
    let mut parent = beneath(Path::new(".")).map_err(failed)?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&parent).map_err(failed)?.st_mode & 0o7777);
    for part in inside.components() {
        path.push(part);
        let made = rustix::fs::mkdirat(&parent, Path::new(&part), mode);
        parent = match made {
            Ok(()) | Err(rustix::io::Errno::EXIST) => beneath(&path).map_err(failed)?,
            Err(errno) => return Err(failed(errno)),
        };
        if made.is_ok() {
            // The kernel's own link to the directory: its mode is set without the umask.
            let link = format!("/proc/self/fd/{}", parent.as_raw_fd());
            rustix::fs::chmod(link.as_str(), mode).map_err(failed)?;
        }
    }
    Ok(parent)
}

fn prepare_target(target: &Path, is_dir: bool) -> Result<()> {
    // The mount of an earlier attempt is replaced: the container must see the current volume.
    let _ = umount2(target, MntFlags::MNT_DETACH);
    let parent = target.parent().unwrap_or(target);
    fs::create_dir_all(parent).map_err(Error::file("create", parent))?;
    if fs::symlink_metadata(target).is_ok_and(|metadata| metadata.is_dir() != is_dir) {
        let removed = if is_dir { fs::remove_file(target) } else { fs::remove_dir(target) };
        removed.map_err(Error::file("remove", target))?;
    }
    if is_dir {
        return fs::create_dir_all(target).map_err(Error::file("create", target));
    }
    fs::OpenOptions::new().create(true).append(true).open(target).map(drop).map_err(Error::file("create", target))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_link_that_is_swapped_in_never_leads_out() {
        let volume = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let data = volume.path().join("data");
        let link = volume.path().join("link");
        fs::create_dir(&data).unwrap();
        std::os::unix::fs::symlink(outside.path(), &link).unwrap();
        let stop = AtomicBool::new(false);
        let (inside, escaped) = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    let cwd = rustix::fs::CWD;
                    rustix::fs::renameat_with(cwd, &data, cwd, &link, flags).unwrap();
                }
            });
            // The link may stay for as long as the other thread does not run, so the test ends after some attempts met
            // the directory.
            let mut inside = 0;
            let mut escaped = None;
            for attempt in 0..300_000 {
                let path = format!("data/new-{attempt}/deep");
                let Ok(found) = open_or_create(volume.path(), Path::new(&path)) else {
                    std::thread::yield_now();
                    continue;
                };
                let place = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap_or_default();
                escaped = Some(place).filter(|place| !place.starts_with(volume.path()));
                inside += 1;
                if escaped.is_some() || (inside >= 20 && attempt >= 3000) {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            (inside, escaped)
        });
        assert_eq!(escaped, None, "it is not in the volume");
        assert!(inside > 0, "no attempt met the directory");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "something was made outside of the volume");
    }

    #[test]
    fn new_directories_have_the_mode_of_the_volume() {
        let volume = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        fs::create_dir(volume.path().join("old")).unwrap();
        let old = mode(&volume.path().join("old"));
        fs::set_permissions(volume.path(), fs::Permissions::from_mode(0o2777)).unwrap();
        open_or_create(volume.path(), Path::new("old/new/deep")).unwrap();
        for (path, expected) in [("old", old), ("old/new", 0o2777), ("old/new/deep", 0o2777)] {
            assert_eq!(mode(&volume.path().join(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_path_that_climbs_is_refused() {
        let volume = tempfile::tempdir().unwrap();
        for path in ["../up", "/etc", "a/../../b"] {
            let error = bind(volume.path(), path, &volume.path().join("target")).unwrap_err();
            assert!(error.to_string().contains("must be a relative path without '..'"), "{error}");
        }
    }
}
