//! `emptyDir`: a directory that lives as long as the pod, on the node's disk or in memory.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use corten_api::k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use nix::mount::{MsFlags, mount};

use super::{Context, Mounted, ownership, volume_dir};
use crate::container::resources;
use crate::error::{Error, Result};

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
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).map_err(Error::file("chmod", &path))?;
        ownership::give_to_group(context.pod, &path)?;
    }
    Ok(Mounted::writable(path))
}

/// Mounts a tmpfs unless there is one already; true if it is new.
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

/// A directory on another file system than its parent is a mount point; every mount here is a tmpfs.
pub fn is_mount_point(path: &Path) -> Result<bool> {
    let own = fs::metadata(path).map_err(Error::file("stat", path))?;
    let parent = path.parent().unwrap_or(path);
    let parent = fs::metadata(parent).map_err(Error::file("stat", parent))?;
    Ok(own.dev() != parent.dev())
}
