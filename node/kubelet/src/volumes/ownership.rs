//! Who owns a volume: the pod's `fsGroup`, to which its files are given so that every container can use
//! them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

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

fn give(path: &Path, group: u32) -> Result<()> {
    let metadata = fs::symlink_metadata(path).map_err(Error::file("stat", path))?;
    lchown(path, None, Some(group)).map_err(Error::file("chown", path))?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let mut mode = metadata.mode() | 0o660;
    if metadata.is_dir() {
        mode |= 0o2110;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o7777)).map_err(Error::file("chmod", path))?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path).map_err(Error::file("read", path))?.flatten() {
            give(&entry.path(), group)?;
        }
    }
    Ok(())
}
