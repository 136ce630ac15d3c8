//! `emptyDir`: a directory that lives as long as the pod, on the node's disk or in memory.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use corten_api::k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use nix::mount::{MsFlags, mount};

use super::{Context, Mounted, fs_group, volume_dir};
use crate::error::{Error, Result};
use crate::pod::resources;

pub fn set_up(context: &Context<'_>, name: &str, source: &EmptyDirVolumeSource) -> Result<Mounted> {
    let path = volume_dir(context, "kubernetes.io~empty-dir", name);
    let missing = !path.exists();
    fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
    let new = match source.medium.as_deref().unwrap_or_default() {
        "" => missing,
        "Memory" => mount_tmpfs(&path, source.size_limit.as_ref().map(resources::value))?,
        other => return Err(Error::pod(format!("unknown storage medium {other:?}"))),
    };
    if new {
        open_to_all(&path)?;
        fs_group::give_to_group(context.pod, &path)?;
    }
    Ok(Mounted::writable(path))
}

/// Makes the directory writable for every user. A directory that is writable already keeps its other bits: the kernel
/// makes a tmpfs sticky.
fn open_to_all(path: &Path) -> Result<()> {
    let found = fs::metadata(path).map_err(Error::file("stat", path))?;
    if found.mode() & 0o777 == 0o777 {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).map_err(Error::file("chmod", path))
}

/// Mounts a tmpfs unless there is one already; returns whether it is new.
pub fn mount_tmpfs(path: &Path, size: Option<i64>) -> Result<bool> {
    if is_mount_point(path)? {
        return Ok(false);
    }
    let options = size.filter(|size| *size > 0).map(|size| format!("size={size}"));
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), path, Some("tmpfs"), flags, options.as_deref())
        .map_err(|errno| Error::file("mount a tmpfs on", path)(errno.into()))?;
    Ok(true)
}

/// Reports whether the directory is on another file system than its parent; every mount here is a tmpfs.
pub fn is_mount_point(path: &Path) -> Result<bool> {
    let own = fs::metadata(path).map_err(Error::file("stat", path))?;
    let parent = path.parent().unwrap_or(path);
    let parent = fs::metadata(parent).map_err(Error::file("stat", parent))?;
    Ok(own.dev() != parent.dev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_writable_and_a_writable_one_stays_sticky() {
        let root = tempfile::tempdir().unwrap();
        for (before, after) in [(0o755, 0o777), (0o1777, 0o1777), (0o1755, 0o777)] {
            fs::set_permissions(root.path(), fs::Permissions::from_mode(before)).unwrap();
            open_to_all(root.path()).unwrap();
            assert_eq!(fs::metadata(root.path()).unwrap().mode() & 0o7777, after, "{before:o}");
        }
    }
}
