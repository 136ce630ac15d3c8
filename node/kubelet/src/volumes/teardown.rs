//! Removes a pod's directory: first every mount below it, then the files. A mount that cannot be unmounted is detached.
//! Files are removed only when nothing is mounted there any more, so that a volume's content on another file system is
//! never deleted by mistake.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};

use crate::error::{Error, Result};

/// Unmounts the devices of the pod's `local` volumes and its directories of servers: the administrator of a disk or a
/// server may need what no container uses.
pub fn release(pod_dir: &Path) -> Result<()> {
    let volumes = pod_dir.join("volumes");
    unmount(&volumes.join(super::LOCAL_VOLUME))?;
    unmount(&volumes.join(super::nfs::NFS_VOLUME))
}

/// Unmounts and removes the pod's directory.
pub fn remove(pod_dir: &Path) -> Result<()> {
    unmount(pod_dir)?;
    if !mounts_below(pod_dir)?.is_empty() {
        return Err(Error::pod(format!("volumes are still mounted below {}", pod_dir.display())));
    }
    match corten_files::remove_tree(pod_dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::file("remove", pod_dir)(error)),
        _ => Ok(()),
    }
}

/// Unmounts everything below a directory, the innermost first.
fn unmount(directory: &Path) -> Result<()> {
    let mut mounts = mounts_below(directory)?;
    mounts.sort_by_key(|path| std::cmp::Reverse(path.as_os_str().len()));
    for path in &mounts {
        umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|errno| Error::file("unmount", path)(errno.into()))?;
    }
    Ok(())
}

/// Returns the mount points below a directory, from the kernel's list.
pub fn mounts_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let table = Path::new("/proc/self/mountinfo");
    let text = fs::read_to_string(table).map_err(Error::file("read", table))?;
    let fields = text.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(fields.map(unescape).filter(|path| path.starts_with(directory) && path != directory).collect())
}

/// Decodes a field of the mount table, which has octal escapes for spaces and the like.
fn unescape(field: &str) -> PathBuf {
    let mut text = String::new();
    let mut rest = field;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|octal| u8::from_str_radix(octal, 8).ok());
        text.push(code.map_or('\\', char::from));
        rest = rest.get(if code.is_some() { at + 4 } else { at + 1 }..).unwrap_or_default();
    }
    text.push_str(rest);
    PathBuf::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_mount_points_are_read() {
        assert_eq!(unescape(r"/a\040b\134c"), PathBuf::from(r"/a b\c"));
        assert_eq!(unescape("/plain"), PathBuf::from("/plain"));
    }

    #[test]
    fn a_directory_without_mounts_is_removed_and_absence_is_fine() {
        let root = tempfile::tempdir().unwrap();
        let pod = root.path().join("pod");
        fs::create_dir_all(pod.join("volumes/x")).unwrap();
        remove(&pod).unwrap();
        assert!(!pod.exists());
        remove(&pod).unwrap();
    }
}
