//! The container's root: an overlay that exists only in the container's own mount namespace, so that it needs no
//! clean-up when all its processes have died.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::{Mode, OFlags};

use super::mount::{attach, copy, map_ids, path_of, set_attributes};
use super::terminal::is_null;
use super::{Failure, Step, target};
use crate::id_mapping::Mapping;
use crate::rooted::Rooted;
use crate::spec::Rootfs;

const ATTRIBUTE_READONLY: u64 = 0x1;

/// Maps the ids of the image's layers to the ids of a pod with a user namespace. The mapped layers cover the plain
/// ones, in the container's own mount namespace only.
pub(super) fn map_layers(rootfs: &Rootfs, users: Option<&OwnedFd>) -> Result<(), Failure> {
    let Some(users) = users else { return Ok(()) };
    let folder = std::fs::File::open(&rootfs.layers_folder).map(OwnedFd::from).step("open the layers")?;
    let tree = copy(&folder)?;
    map_ids(&tree, users).step("map the ids of the image's layers")?;
    attach(&tree, &folder)
}

/// Mounts the overlay of the layers and opens it.
pub(super) fn mount_overlay(rootfs: &Rootfs) -> Result<Rooted, Failure> {
    let layers = OpenLayers::open(&rootfs.layers_folder, &rootfs.lower)?;
    let writable = format!(",upperdir={},workdir={}", rootfs.upper.display(), rootfs.work.display());
    let flags = if rootfs.nodev { MsFlags::MS_NODEV } else { MsFlags::empty() };
    layers.mount(&rootfs.mount_point, flags, &writable).step("mount the root file system")?;
    Rooted::open(&rootfs.mount_point).step("open the root file system")
}

/// Layers that are open for a mount. Mount options hold 4096 bytes, too few for the names of 127 layers by their
/// digests: layers are named by the numbers of their descriptors, relative to a working directory that has these names.
pub(super) struct OpenLayers(Vec<OwnedFd>);

impl OpenLayers {
    /// Opens layers by their names relative to their folder, from the highest to the lowest.
    pub(super) fn open(folder: &Path, names: &[String]) -> Result<Self, Failure> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty()).step("open the layers")?;
        let opened = names.iter().map(|name| {
            rustix::fs::openat(&folder, name.as_str(), flags, Mode::empty()).step(format!("open the layer {name}"))
        });
        Ok(Self(opened.collect::<Result<_, _>>()?))
    }

    /// Mounts them at a mount point, with further options.
    pub(super) fn mount(&self, place: &Path, flags: MsFlags, further: &str) -> std::io::Result<()> {
        let numbers: Vec<String> = self.0.iter().map(|layer| layer.as_raw_fd().to_string()).collect();
        let options = format!("lowerdir={}{further}", numbers.join(":"));
        std::env::set_current_dir("/proc/self/fd")?;
        mount(Some("overlay"), place, Some("overlay"), flags, Some(options.as_str()))?;
        std::env::set_current_dir("/")
    }
}

pub(super) fn make_working_directory(root: &Rooted, cwd: &str, users: Option<Mapping>) -> Result<(), Failure> {
    let new = root.place(Path::new(cwd)).is_err();
    let made = root.directory(Path::new(cwd)).step(format!("make the working directory {cwd:?}"))?;
    if let Some(users) = users.filter(|_| new) {
        let owner = (rustix::fs::Uid::from_raw(users.uid), rustix::fs::Gid::from_raw(users.gid));
        rustix::fs::fchown(&made, Some(owner.0), Some(owner.1)).step("own the working directory")?;
    }
    Ok(())
}

/// Mounts folders onto themselves that stay writable when the root is made read-only. Skips a path of the kernel and
/// the root itself, if an image declares them.
pub(super) fn keep_writable(root: &Rooted, paths: &[String]) -> Result<(), Failure> {
    for path in paths {
        let place = root.directory_place(Path::new(path)).step(format!("make the volume {path:?}"))?;
        if target::is_kernels(&target::in_root(root, &place)?) {
            continue;
        }
        attach(&copy(&place)?, &place).step(format!("keep {path:?} writable"))?;
    }
    Ok(())
}

/// Masks paths that a container must not see, and makes paths read-only that it must not write. Skips a path that this
/// kernel does not have.
pub(super) fn hide(root: &Rooted, masked: &[String], readonly: &[String]) -> Result<(), Failure> {
    for path in masked {
        let Some(place) = existing(root, path)? else { continue };
        mask(root, &place).step(format!("mask {path:?}"))?;
    }
    for path in readonly {
        let Some(place) = existing(root, path)? else { continue };
        let tree = copy(&place)?;
        set_attributes(&tree, ATTRIBUTE_READONLY, libc::MS_PRIVATE, true)?;
        attach(&tree, &place).step(format!("make {path:?} read-only"))?;
    }
    Ok(())
}

/// Opens a path that must be hidden, if it exists. A path that cannot be opened is an error and not taken for a missing
/// one.
fn existing(root: &Rooted, path: &str) -> Result<Option<OwnedFd>, Failure> {
    match root.place(Path::new(path)) {
        Ok(place) => Ok(Some(place)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        Err(error) => Err(format!("hide {path:?}: {error}")),
    }
}

fn mask(root: &Rooted, place: &OwnedFd) -> Result<(), Failure> {
    let metadata = std::fs::metadata(path_of(place)).step("look")?;
    if metadata.is_dir() {
        let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        return mount(Some("tmpfs"), path_of(place).as_str(), Some("tmpfs"), flags, Some("size=0k")).step("cover");
    }
    let null = root.place(Path::new("dev/null")).step("open /dev/null")?;
    // A volume may be mounted on /dev: a link there to a file that the container must not write would open that file.
    if !is_null(&null)? {
        return Err("/dev/null is not the null device".into());
    }
    attach(&copy(&null)?, place)
}

/// Makes the overlay the root, and unmounts the node's file system.
pub(super) fn pivot(root: &Rooted) -> Result<(), Failure> {
    nix::unistd::fchdir(root.descriptor()).step("enter the root file system")?;
    nix::unistd::pivot_root(".", ".").step("pivot root")?;
    // The old root is now mounted on top of the new one, at the same mount point.
    umount2(".", MntFlags::MNT_DETACH).step("let go of the old root")?;
    std::env::set_current_dir("/").step("enter /")
}

/// Makes the root read-only if the spec asks for it. Runs last, because every step before may create mount points.
pub(super) fn seal(rootfs: &Rootfs) -> Result<(), Failure> {
    if !rootfs.readonly {
        return Ok(());
    }
    let nodev = if rootfs.nodev { MsFlags::MS_NODEV } else { MsFlags::empty() };
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | nodev;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).step("make the root read-only")
}
