//! The volumes of this node: staged once, published for each pod, measured, grown and trimmed.

use std::fs::OpenOptions;
use std::path::Path;

use corten_storage_plugin::access::Access;
use corten_storage_plugin::error::{During, Error, Result};
use corten_storage_plugin::file_system::FileSystem;
use corten_storage_plugin::ioctls;
use corten_storage_plugin::mounts::{self, Mount};
use corten_storage_plugin::targets::{create_target, open_to_all, remove_target};
use corten_storage_plugin::usage::{self, Usage};
use tracing::warn;

use crate::freezing::mounted;
use crate::loop_device::{self, Attached, LoopDevice, Release};
use crate::record::{Content, Layout, Volume};
use crate::roles::{check_epoch, check_primary};
use crate::storage::Storage;
use crate::volumes::Wanted;

/// The paths of a publication.
pub struct Paths<'a> {
    pub staging: &'a Path,
    pub target: &'a Path,
}

/// The health of a volume.
pub struct Condition {
    pub abnormal: bool,
    pub message: String,
}

/// The free space of a pool below which its volumes are abnormal: a write may fail soon.
const LEAST_FREE: u64 = 64 << 20;

impl Storage {
    /// Returns the volume of a call to the node, by its id; the kubelet names ephemeral ones itself.
    pub fn node_volume(&self, id: &str) -> Result<Volume> {
        let catalog = self.catalog();
        let ephemeral = || catalog.volumes.values().find(|volume| volume.ephemeral && volume.name == id);
        let found = catalog.volumes.get(id).or_else(ephemeral).cloned();
        found.ok_or_else(|| Error::NotFound(format!("volume {id} does not exist")))
    }

    /// Makes a volume ready for the node's pods. `epoch` is the one that this node holds of a volume with a copy.
    pub fn stage(&self, id: &str, staging: &Path, access: &Access, epoch: Option<u64>) -> Result<()> {
        let _held = self.locks.hold([id.to_owned()])?;
        let volume = self.node_volume(id)?;
        check_epoch(&volume, epoch)?;
        check_access(&volume, access)?;
        match access.block {
            true => self.attach_block(volume).map(drop),
            false => self.mount(volume, staging, access),
        }
    }

    /// Attaches a volume as a block device, which stays until it is cleared.
    fn attach_block(&self, volume: Volume) -> Result<Attached> {
        if let Some(device) = self.device(&volume.id)? {
            return loop_device::keep(&device);
        }
        let raw = Volume { content: Content { raw: true, ..volume.content.clone() }, ..volume };
        self.update_volume(&raw)?;
        loop_device::attach(&self.data(&raw.id, &raw.content), &self.tag(&raw.id), Release::Explicit)
    }

    /// Mounts a volume's file system at a path, and makes or grows it first if that is due.
    fn mount(&self, volume: Volume, target: &Path, access: &Access) -> Result<()> {
        if let Some(mount) = mounts::at(target)? {
            return self.check_mount(&volume, &mount);
        }
        std::fs::create_dir_all(target).during(|| format!("create {}", target.display()))?;
        let data = self.data(&volume.id, &volume.content);
        if volume.content.layout == Layout::Directory {
            return mounts::bind(&data, target, access.read_only);
        }
        let attached = self.device(&volume.id)?;
        let (volume, file_system) = match &attached {
            Some(_) => self.with_file_system(volume)?,
            None => self.prepare_file_system(volume, access)?,
        };
        let attached = match &attached {
            Some(device) => loop_device::keep(device)?,
            None => loop_device::attach(&data, &self.tag(&volume.id), Release::Automatic)?,
        };
        let own = if access.read_only { vec!["ro".to_owned()] } else { Vec::new() };
        let options = [file_system.own_options(), own, access.options.clone()].concat();
        mounts::mount_device(&attached.device.path(), target, file_system.name(), &options)?;
        if !access.read_only {
            open_to_all(target)?;
        }
        if volume.content.file_system_bytes < volume.bytes && !access.read_only {
            self.grow_mounted(volume, &attached.device)?;
        }
        Ok(())
    }

    fn with_file_system(&self, volume: Volume) -> Result<(Volume, FileSystem)> {
        let file_system = volume.content.file_system;
        let file_system =
            file_system.ok_or_else(|| Error::Precondition(format!("volume {} is in use as a device", volume.id)))?;
        Ok((volume, file_system))
    }

    /// Makes the file system of a new volume, finds that of a clone, and grows it while it is not mounted.
    ///
    /// A volume without a recorded file system has none, whatever its file holds: the driver was killed while it was
    /// made. Data that may be a pod's are never overwritten.
    fn prepare_file_system(&self, volume: Volume, access: &Access) -> Result<(Volume, FileSystem)> {
        let data = self.data(&volume.id, &volume.content);
        let open =
            || OpenOptions::new().read(true).write(true).open(&data).during(|| format!("open {}", data.display()));
        let mut content = volume.content.clone();
        let file_system = match content.file_system {
            Some(known) => known,
            None if content.raw => FileSystem::recognize(&open()?).ok_or_else(|| {
                Error::Precondition(format!("volume {} holds data that are neither ext4 nor xfs", volume.id))
            })?,
            None => {
                let wanted = access.file_system.unwrap_or(volume.wanted_file_system);
                let file = open()?;
                let emptied = file.set_len(0).and_then(|()| file.set_len(volume.bytes));
                emptied.during(|| format!("empty {}", data.display()))?;
                wanted.make(&data)?;
                file.sync_all().during(|| format!("sync {}", data.display()))?;
                content.file_system_bytes = volume.bytes;
                wanted
            }
        };
        if access.file_system.is_some_and(|wanted| wanted != file_system) {
            return Err(Error::Invalid(format!("volume {} has the file system {}", volume.id, file_system.name())));
        }
        if content.file_system_bytes < volume.bytes && file_system == FileSystem::Ext4 {
            file_system.grow_unmounted(&data)?;
            content.file_system_bytes = volume.bytes;
        }
        let prepared = Volume { content: Content { file_system: Some(file_system), ..content }, ..volume.clone() };
        if prepared != volume {
            self.update_volume(&prepared)?;
        }
        Ok((prepared, file_system))
    }

    fn grow_mounted(&self, volume: Volume, device: &LoopDevice) -> Result<()> {
        let directory = mounted(device)?
            .ok_or_else(|| Error::Precondition(format!("volume {} is not mounted on this node", volume.id)))?;
        let (mut volume, file_system) = self.with_file_system(volume)?;
        file_system.grow_mounted(&self.data(&volume.id, &volume.content), &directory, volume.bytes)?;
        volume.content.file_system_bytes = volume.bytes;
        self.update_volume(&volume)
    }

    /// Checks that a mount shows this volume.
    fn check_mount(&self, volume: &Volume, mount: &Mount) -> Result<()> {
        let same = match volume.content.layout {
            Layout::File => self.device(&volume.id)?.is_some_and(|device| is_of(mount, &device)),
            Layout::Directory => mount.root.ends_with(Path::new("files").join(&volume.id)),
        };
        match same {
            true => Ok(()),
            false => Err(Error::Precondition(format!("{} shows another volume", mount.target.display()))),
        }
    }

    /// Undoes [`Storage::stage`].
    pub fn unstage(&self, id: &str, staging: &Path) -> Result<()> {
        let _held = self.locks.hold([id.to_owned()])?;
        mounts::unmount(staging)?;
        let Ok(volume) = self.node_volume(id) else { return Ok(()) };
        match self.device(id)? {
            Some(device) if volume.block => device.clear(),
            _ => Ok(()),
        }
    }

    /// Shows a staged volume at the path of a pod.
    pub fn publish(&self, id: &str, paths: &Paths<'_>, access: &Access) -> Result<()> {
        let _held = self.locks.hold([id.to_owned()])?;
        let volume = self.node_volume(id)?;
        check_primary(&volume)?;
        check_access(&volume, access)?;
        let source = match access.block {
            true => {
                let device = self.device(id)?;
                device.ok_or_else(|| Error::Precondition(format!("volume {id} is not staged")))?.path()
            }
            false => {
                let staged = mounts::at(paths.staging)?;
                let staged = staged.ok_or_else(|| Error::Precondition(format!("volume {id} is not staged")))?;
                self.check_mount(&volume, &staged)?;
                paths.staging.to_owned()
            }
        };
        if let Some(mount) = mounts::at(paths.target)? {
            return self.check_mount(&volume, &mount);
        }
        if access.single && self.is_published(&volume, paths.staging)? {
            return Err(Error::Precondition(format!("volume {id} is published for another pod")));
        }
        create_target(paths.target, access.block)?;
        let bound = mounts::bind(&source, paths.target, access.read_only);
        if bound.is_err() {
            let _ = remove_target(paths.target);
        }
        bound
    }

    /// Reports whether a volume is published at any path.
    fn is_published(&self, volume: &Volume, staging: &Path) -> Result<bool> {
        let staging = mounts::real(staging);
        // The other roots are the subpaths of containers.
        let whole = |mount: &Mount| mount.root == Path::new("/") || volume.block;
        let mounts = mounts::all()?.into_iter().filter(|mount| mount.target != staging && whole(mount));
        Ok(mounts.into_iter().any(|mount| self.check_mount(volume, &mount).is_ok()))
    }

    /// Creates and publishes a volume that exists for one pod.
    pub fn publish_ephemeral(&self, wanted: &Wanted, target: &Path, access: &Access) -> Result<()> {
        let volume = self.create_volume(wanted)?;
        let _held = self.locks.hold([volume.id.clone()])?;
        self.mount(self.node_volume(&volume.id)?, target, access)
    }

    /// Undoes [`Storage::publish`]; deletes an ephemeral volume.
    pub fn unpublish(&self, id: &str, target: &Path) -> Result<()> {
        let volume = self.node_volume(id).ok();
        let _held = self.locks.hold([volume.as_ref().map_or(id, |volume| &volume.id).to_owned()])?;
        mounts::unmount(target)?;
        remove_target(target)?;
        match volume {
            Some(volume) if volume.ephemeral && !self.is_in_use(&volume)? => self.remove_volume(&volume),
            _ => Ok(()),
        }
    }

    /// Returns the use of a volume at the path of a pod, or at its staging path.
    pub fn usage(&self, id: &str, path: &Path) -> Result<Usage> {
        let volume = self.node_volume(id)?;
        let missing = || Error::NotFound(format!("volume {id} is not at {}", path.display()));
        let mount = mounts::at(path)?.ok_or_else(missing)?;
        self.check_mount(&volume, &mount).map_err(|_| missing())?;
        if volume.block {
            return Ok(usage::of_device(volume.bytes));
        }
        usage::of_file_system(path)
    }

    /// Grows the device and the file system of a volume in use to the size that it has been given.
    pub fn expand_on_node(&self, id: &str, path: &Path) -> Result<u64> {
        let _held = self.locks.hold([id.to_owned()])?;
        let volume = self.node_volume(id)?;
        let mount = mounts::at(path)?;
        mount.ok_or_else(|| Error::NotFound(format!("volume {id} is not at {}", path.display())))?;
        let bytes = volume.bytes;
        let Some(device) = self.device(id)? else { return Ok(bytes) };
        device.refresh_size()?;
        if !volume.block && volume.content.file_system_bytes < bytes {
            self.grow_mounted(volume, &device)?;
        }
        Ok(bytes)
    }

    /// Returns the health of a volume.
    pub fn condition(&self, volume: &Volume) -> Condition {
        let abnormal = |message: String| Condition { abnormal: true, message };
        let data = self.data(&volume.id, &volume.content);
        if !data.exists() {
            return abnormal(format!("{} is missing", data.display()));
        }
        if let Ok(Some(device)) = self.device(&volume.id) {
            let errors = format!("/sys/fs/ext4/loop{}/errors_count", device.number);
            let count = std::fs::read_to_string(errors).unwrap_or_default();
            if !matches!(count.trim(), "" | "0") {
                return abnormal(format!("the file system has {} errors", count.trim()));
            }
        }
        match rustix::fs::statvfs(self.pool.files(volume.content.place)) {
            Err(error) => abnormal(format!("the pool cannot be read: {error}")),
            Ok(found) if found.f_bavail.saturating_mul(found.f_frsize) < LEAST_FREE => {
                abnormal("the pool of the node is full".to_owned())
            }
            Ok(_) => Condition { abnormal: false, message: healthy(volume.content.layout).to_owned() },
        }
    }

    /// Gives the free blocks of all mounted volumes back to the pool.
    pub fn trim_all(&self) -> Result<()> {
        for device in loop_device::of_pool(&self.pool.id)? {
            let Some(directory) = mounted(&device)? else { continue };
            if let Err(error) = ioctls::trim(&directory) {
                warn!(%error, device = %device.path().display(), "volume not trimmed");
            }
        }
        Ok(())
    }
}

fn healthy(layout: Layout) -> &'static str {
    match layout {
        Layout::File => "the volume is healthy",
        Layout::Directory => "the volume is a plain directory without a size limit",
    }
}

/// Reports whether a mount shows a loop device's file system, or its node.
pub fn is_of(mount: &Mount, device: &LoopDevice) -> bool {
    mount.device == device.numbers() || mount.root.file_name() == device.path().file_name()
}

fn check_access(volume: &Volume, access: &Access) -> Result<()> {
    if volume.block == access.block {
        return Ok(());
    }
    let kind = if volume.block { "a block device" } else { "a file system" };
    Err(Error::Invalid(format!("volume {} is {kind}", volume.id)))
}
