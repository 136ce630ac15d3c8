//! Volumes of this node: formatted and mounted once, published for each pod, measured and grown.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use corten_storage_plugin::access::Access;
use corten_storage_plugin::error::{During, Error, Result};
use corten_storage_plugin::file_system::FileSystem;
use corten_storage_plugin::mounts::{self, Mount};
use corten_storage_plugin::targets::{create_target, remove_target};
use corten_storage_plugin::tools;
use corten_storage_plugin::usage::{self, Usage};

use crate::devices::{Device, Roots};

/// The part of a device that is empty before it is formatted. It has the signatures of all that a device can hold.
const HEAD: u64 = 1 << 20;
/// The exit code of blkid if a device has no signature.
const NO_SIGNATURE: i32 = 2;
/// The unit of the sizes of file systems.
const BLOCK: u64 = 4096;

/// The paths of a publication.
pub struct Paths<'a> {
    pub staging: &'a Path,
    pub target: &'a Path,
}

/// Mounts the file system of a device, which is made first if the device is empty.
pub fn stage(device: &Device, staging: &Path, access: &Access) -> Result<()> {
    if let Some(mount) = mounts::at(staging)? {
        check(device, &mount)?;
        return grow_if_permitted(device, staging);
    }
    let file_system = file_system(device, access)?;
    std::fs::create_dir_all(staging).during(|| format!("create {}", staging.display()))?;
    let options = [file_system.own_options(), access.options.clone()].concat();
    let mount = || mounts::mount_device(&device.path, staging, file_system.name(), &options);
    mount()?;
    match grow(device, staging) {
        // The kernel lets only some grow what is mounted.
        Err(Error::Precondition(_)) => {
            mounts::unmount(staging)?;
            file_system.grow_unmounted(&device.path)?;
            mount()
        }
        grown => grown,
    }
}

/// Returns the file system of a device, and makes it on an empty one.
fn file_system(device: &Device, access: &Access) -> Result<FileSystem> {
    let path = device.path.display();
    let open = || File::open(&device.path).during(|| format!("open {path}"));
    let found = match FileSystem::recognize(&open()?) {
        Some(found) => found,
        None if is_empty(device, open()?)? => {
            let wanted = access.file_system.unwrap_or(FileSystem::Ext4);
            wanted.make(&device.path)?;
            wanted
        }
        None => {
            let sentence = format!("{path} holds data that are neither ext4 nor xfs, and is not formatted");
            return Err(Error::Precondition(sentence));
        }
    };
    match access.file_system.is_some_and(|wanted| wanted != found) {
        true => Err(Error::Precondition(format!("{path} has the file system {}", found.name()))),
        false => Ok(found),
    }
}

/// Reports whether a device has nothing on it: new volumes are zeros. What a killed mkfs left has no signature.
fn is_empty(device: &Device, file: File) -> Result<bool> {
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head).during(|| format!("read {}", device.path.display()))?;
    if head.iter().all(|byte| *byte == 0) {
        return Ok(true);
    }
    let Some(program) = tools::find("blkid") else { return Ok(false) };
    let outcome = tools::run(&program, &["-p".as_ref(), device.path.as_os_str()])?;
    Ok(outcome.code == Some(NO_SIGNATURE))
}

/// Grows the mounted file system of a device that is larger.
fn grow(device: &Device, mounted: &Path) -> Result<()> {
    let file = File::open(&device.path).during(|| format!("open {}", device.path.display()))?;
    let Some(file_system) = FileSystem::recognize(&file) else { return Ok(()) };
    let bytes = device.bytes()? / BLOCK * BLOCK;
    if file_system.bytes(&file)? >= bytes {
        return Ok(());
    }
    let directory = File::open(mounted).during(|| format!("open {}", mounted.display()))?;
    file_system.grow_mounted(&device.path, &directory, bytes)
}

/// Grows a file system that an earlier call mounted. Where the kernel forbids it, the next staging does it.
fn grow_if_permitted(device: &Device, mounted: &Path) -> Result<()> {
    match grow(device, mounted) {
        Err(Error::Precondition(_)) => Ok(()),
        grown => grown,
    }
}

/// Checks that a mount shows a device.
fn check(device: &Device, mount: &Mount) -> Result<()> {
    match device.is_at(mount) {
        true => Ok(()),
        false => Err(Error::Precondition(format!("{} shows another volume", mount.target.display()))),
    }
}

/// Shows a staged volume, or its device, at the path of a pod.
pub fn publish(device: &Device, paths: &Paths<'_>, access: &Access) -> Result<()> {
    let source = match access.block {
        true => device.path.as_path(),
        false => {
            let staged = mounts::at(paths.staging)?;
            let missing = || Error::Precondition(format!("nothing is mounted at {}", paths.staging.display()));
            check(device, &staged.ok_or_else(missing)?)?;
            paths.staging
        }
    };
    if let Some(mount) = mounts::at(paths.target)? {
        return check(device, &mount);
    }
    if access.single && is_published(device, paths.staging)? {
        return Err(Error::Precondition(format!("{} is published for another pod", device.path.display())));
    }
    create_target(paths.target, access.block)?;
    let bound = mounts::bind(source, paths.target, access.read_only);
    if bound.is_err() {
        let _ = remove_target(paths.target);
    }
    bound
}

/// Reports whether a device is published at any path. Other roots of its file system are the subpaths of containers.
fn is_published(device: &Device, staging: &Path) -> Result<bool> {
    let staging = mounts::real(staging);
    let is_whole = |mount: &Mount| mount.root == Path::new("/") || !mount.target.is_dir();
    let mut others = mounts::all()?.into_iter().filter(|mount| mount.target != staging && is_whole(mount));
    Ok(others.any(|mount| device.is_at(&mount)))
}

/// Removes a publication.
pub fn unpublish(target: &Path) -> Result<()> {
    mounts::unmount(target)?;
    remove_target(target)
}

/// Returns the device of a volume that a path shows.
///
/// Calls after the publication do not name the attachment's device: only NVMe devices can be compared with the volume.
pub fn shown(roots: &Roots, volume: &str, path: &Path) -> Result<Device> {
    let missing = || Error::NotFound(format!("volume {volume} is not mounted at {}", path.display()));
    let mount = mounts::at(path)?.ok_or_else(missing)?;
    let device = roots.shown_at(&mount)?.ok_or_else(missing)?;
    match roots.by_serial(volume)? {
        Some(whole) if !device.is_part_of(&whole) => Err(missing()),
        _ => Ok(device),
    }
}

/// Returns the use of a device at a path.
pub fn usage(device: &Device, path: &Path) -> Result<Usage> {
    match path.is_dir() {
        true => usage::of_file_system(path),
        false => Ok(usage::of_device(device.bytes()?)),
    }
}

/// Grows the file system at a path to the size of its device; returns the size.
pub fn expand(device: &Device, path: &Path) -> Result<u64> {
    if path.is_dir() {
        grow(device, path)?;
    }
    device.bytes()
}
