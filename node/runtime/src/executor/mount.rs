//! Mounts of a container.
//!
//! Bind mounts are taken as detached trees, get their attributes while no process can reach them, and are attached to a
//! mount point that the kernel resolved inside of the root. So a read-only mount is never writable, and no link can
//! redirect one.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::mount::{MsFlags, mount};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::rootfs::OpenLayers;
use super::target::{self, Source};
use super::{Failure, Step};
use crate::rooted::Rooted;
use crate::spec::{Mount, MountSource, Propagation};

const ATTRIBUTE_READONLY: u64 = 0x1;
const ATTRIBUTE_NOSUID: u64 = 0x2;
const ATTRIBUTE_NODEV: u64 = 0x4;
const ATTRIBUTE_NOEXEC: u64 = 0x8;
const ATTRIBUTE_IDMAP: u64 = 0x10_0000;

/// The source of a bind mount, taken from the node.
pub(super) struct Taken {
    tree: OwnedFd,
    directory: bool,
}

/// Takes the sources of all bind mounts, while propagation with the node is still on.
pub(super) fn take_sources(mounts: &[Mount]) -> Result<Vec<Option<Taken>>, Failure> {
    mounts
        .iter()
        .map(|mount| match &mount.source {
            MountSource::Bind { path, .. } => take(path).map(Some),
            _ => Ok(None),
        })
        .collect()
}

fn take(path: &Path) -> Result<Taken, Failure> {
    let metadata = std::fs::metadata(path).step(format!("mount source {}", path.display()))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(rustix::fs::CWD, path, flags).step(format!("take mount source {}", path.display()))?;
    Ok(Taken { tree, directory: metadata.is_dir() })
}

/// Mounts all mounts, in order.
pub(super) fn mount_all(
    root: &Rooted,
    mounts: &[Mount],
    taken: Vec<Option<Taken>>,
    users: Option<&OwnedFd>,
) -> Result<(), Failure> {
    for (mount, taken) in mounts.iter().zip(taken) {
        if let (true, Some(taken), Some(users)) = (mount.mapped, &taken, users) {
            map_ids(&taken.tree, users).step(format!("map the ids of {:?}", mount.destination))?;
        }
        mount_one(root, mount, taken).step(format!("mount {:?}", mount.destination))?;
    }
    Ok(())
}

fn mount_one(root: &Rooted, mount: &Mount, taken: Option<Taken>) -> Result<(), Failure> {
    let destination = Path::new(&mount.destination);
    match (&mount.source, taken) {
        (MountSource::Bind { propagation, .. }, Some(taken)) => {
            set_attributes(&taken.tree, attributes(mount), propagation_flag(*propagation), mount.recursive_readonly)?;
            let place = if taken.directory { root.directory_place(destination) } else { root.file_place(destination) };
            let place = place.step("find the mount point")?;
            target::check(root, &place, Source::of_tree(&taken.tree)?)?;
            attach(&taken.tree, &place)
        }
        (MountSource::Filesystem { kind, options }, _) => {
            let place = root.directory_place(destination).step("find the mount point")?;
            let source = Source::of_filesystem(kind);
            target::check(root, &place, source)?;
            // A mount that masks and labels rely on must be at its own path, and not where a link of the image leads.
            if source != Source::Other && target::in_root(root, &place)? != destination {
                return Err("a link of the image is in its place".into());
            }
            mount_filesystem(&place, kind, options, mount)
        }
        (MountSource::Cgroups, _) => mount_cgroups(root, mount),
        (MountSource::Image { layers_folder, lower, sub_path }, _) => {
            let place = root.directory_place(destination).step("find the mount point")?;
            target::check(root, &place, Source::Other)?;
            mount_image(&place, layers_folder, lower, sub_path, mount)
        }
        (MountSource::Bind { .. }, None) => Err("its source was not taken".into()),
    }
}

fn attributes(mount: &Mount) -> u64 {
    let set = |on: bool, bit: u64| if on { bit } else { 0 };
    set(mount.readonly, ATTRIBUTE_READONLY)
        | set(mount.nosuid, ATTRIBUTE_NOSUID)
        | set(mount.nodev, ATTRIBUTE_NODEV)
        | set(mount.noexec, ATTRIBUTE_NOEXEC)
}

fn propagation_flag(propagation: Propagation) -> u64 {
    match propagation {
        Propagation::Private => libc::MS_PRIVATE,
        Propagation::HostToContainer => libc::MS_SLAVE,
        Propagation::Bidirectional => libc::MS_SHARED,
    }
}

/// Maps the ids of a detached tree's files by a user namespace. A file system that does not support that refuses.
pub(super) fn map_ids(tree: &OwnedFd, users: &OwnedFd) -> std::io::Result<()> {
    let number = u64::try_from(users.as_raw_fd()).unwrap_or_default();
    let change = MountAttributes { set: ATTRIBUTE_IDMAP, clear: 0, propagation: 0, user_namespace: number };
    change.make(tree, true)
}

#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

impl MountAttributes {
    fn make(&self, tree: &OwnedFd, recursive: bool) -> std::io::Result<()> {
        let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
        // SAFETY: the path is a constant, the structure lives across the call and its size is given.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                tree.as_raw_fd(),
                c"".as_ptr(),
                flags,
                &raw const *self,
                size_of::<MountAttributes>(),
            )
        };
        if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Sets attributes on a detached tree. Propagation always applies to the whole tree; attributes only if `recursive`,
/// because a read-only volume may hold writable mounts.
pub(super) fn set_attributes(tree: &OwnedFd, set: u64, propagation: u64, recursive: bool) -> Result<(), Failure> {
    let change = |set, propagation, recursive| {
        MountAttributes { set, clear: 0, propagation, user_namespace: 0 }.make(tree, recursive)
    };
    if propagation != 0 {
        change(0, propagation, true).step("set propagation")?;
    }
    if set != 0 {
        change(set, 0, recursive).step("set mount attributes")?;
    }
    Ok(())
}

pub(super) fn attach(tree: &OwnedFd, place: &OwnedFd) -> Result<(), Failure> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", place, "", flags).step("attach")
}

/// Makes a detached copy of the mount at a mount point.
pub(super) fn copy(place: &OwnedFd) -> Result<OwnedFd, Failure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(place, "", flags).step("copy a mount")
}

/// Returns the path of a descriptor for the calls that take none. The node's /proc is still mounted.
pub(super) fn path_of(place: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", place.as_fd().as_raw_fd())
}

pub(super) fn mount_filesystem(place: &OwnedFd, kind: &str, options: &str, wanted: &Mount) -> Result<(), Failure> {
    mount(Some(kind), path_of(place).as_str(), Some(kind), flags(wanted), Some(options)).step(format!("mount {kind}"))
}

fn flags(wanted: &Mount) -> MsFlags {
    let set = |on: bool, flag: MsFlags| if on { flag } else { MsFlags::empty() };
    set(wanted.readonly, MsFlags::MS_RDONLY)
        | set(wanted.nosuid, MsFlags::MS_NOSUID)
        | set(wanted.nodev, MsFlags::MS_NODEV)
        | set(wanted.noexec, MsFlags::MS_NOEXEC)
}

/// Mounts the cgroup hierarchies. On v2 the namespace makes a fresh mount show only the container's group. On v1 each
/// hierarchy's own group is bound, which shows the same.
fn mount_cgroups(root: &Rooted, wanted: &Mount) -> Result<(), Failure> {
    let destination = Path::new(&wanted.destination);
    let place = root.directory_place(destination).step("find the mount point")?;
    target::check(root, &place, Source::Cgroups)?;
    let memberships = std::fs::read_to_string("/proc/self/cgroup").step("read the own control groups")?;
    let groups: Vec<(&str, &str)> = memberships.lines().filter_map(v1_membership).collect();
    if groups.is_empty() {
        return mount_filesystem(&place, "cgroup2", "", wanted);
    }
    let tmpfs = Mount { readonly: false, ..wanted.clone() };
    mount_filesystem(&place, "tmpfs", "mode=755", &tmpfs)?;
    for (names, group) in groups {
        let folder = names.trim_start_matches("name=");
        let source = format!("/sys/fs/cgroup/{folder}{group}");
        let Ok(taken) = take(Path::new(&source)) else { continue };
        set_attributes(&taken.tree, attributes(wanted), libc::MS_PRIVATE, true)?;
        let place = root.directory_place(&destination.join(folder)).step("find the mount point")?;
        attach(&taken.tree, &place)?;
    }
    if wanted.readonly {
        let place = root.place(destination).step("find the mount point")?;
        let remount = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags(wanted);
        mount(None::<&str>, path_of(&place).as_str(), None::<&str>, remount, None::<&str>).step("make read-only")?;
    }
    Ok(())
}

/// Parses `4:memory:/kubepods/…`; returns the controllers and the group.
fn v1_membership(line: &str) -> Option<(&str, &str)> {
    let mut fields = line.splitn(3, ':');
    fields.next()?;
    let names = fields.next()?;
    let group = fields.next()?;
    (!names.is_empty()).then_some((names, group))
}

/// Mounts the layers of an image without a writable layer.
pub(super) fn mount_image(
    place: &OwnedFd,
    layers_folder: &Path,
    lower: &[String],
    sub_path: &str,
    wanted: &Mount,
) -> Result<(), Failure> {
    let layers = OpenLayers::open(layers_folder, lower)?;
    let readonly = Mount { readonly: true, ..wanted.clone() };
    layers.mount(Path::new(&path_of(place)), flags(&readonly), "").step("stack the image")?;
    if sub_path.is_empty() {
        return Ok(());
    }
    let mounted = std::fs::File::open(path_of(place)).step("open the image")?;
    let inside = Rooted::open(Path::new(&path_of(&mounted))).step("open the image")?;
    let part = inside.place(Path::new(sub_path)).step(format!("sub path {sub_path:?}"))?;
    let tree = copy(&part)?;
    attach(&tree, place)
}
