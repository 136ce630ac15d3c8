//! The pool of a node: where the files of volumes lie, and how much room there is.
//!
//! Best is a directory on a file system with reflinks (xfs, btrfs). If its file system has none, the driver makes an
//! xfs image in it, a sparse file behind a loop device, with the first volume. Without `mkfs.xfs` volumes are files
//! without snapshots and clones; without loop devices or `mkfs.ext4` they are directories. What is missing is looked
//! for with every new volume, so that an installed package helps at once; existing volumes stay what they are.
//!
//! *Invariant: room is counted by the sizes of volumes, not by what they use today: what was promised can be written.*

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use corten_storage_plugin::error::{During, Error, Result};
use corten_storage_plugin::targets::remove_file;
use corten_storage_plugin::{ioctls, mounts, tools};
use tracing::info;

use crate::loop_device::{self, Release, Tag};
use crate::record::{Layout, Place, sync_directory, write_whole};

/// The key of the image's loop device.
pub const IMAGE_KEY: &str = "pool";
const GIB: u64 = 1 << 30;
/// The part of a pool that its own structures may need.
const IMAGE_OVERHEAD_PERCENT: u64 = 3;
const IMAGE_LOG_BYTES: u64 = 64 << 20;
/// The part of the node's file system that volumes never take, so that the node itself goes on working.
const HOST_RESERVE_PERCENT: u64 = 10;

/// The place and the form of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub place: Place,
    pub layout: Layout,
    /// The reason why the volume can have no snapshots, or is only a directory.
    pub lacks: Option<String>,
}

pub struct Pool {
    root: PathBuf,
    /// The id of the pool, in the tags of its loop devices.
    pub id: String,
    overcommit: f64,
    reflinks: bool,
    image: Mutex<bool>,
}

impl Pool {
    /// Opens the pool in a directory, and mounts its image if it has one.
    pub fn open(root: &Path, overcommit: f64) -> Result<Pool> {
        let files = root.join("files");
        std::fs::create_dir_all(&files).during(|| format!("create {}", files.display()))?;
        let id = pool_id(root)?;
        let reflinks = has_reflinks(&files)?;
        let pool = Pool { root: root.to_owned(), id, overcommit, reflinks, image: Mutex::new(false) };
        if pool.image_file().exists() {
            pool.mount_image(&pool.image_file())?;
            *pool.image() = true;
        }
        Ok(pool)
    }

    /// Returns the directory of the data at a place.
    pub fn files(&self, place: Place) -> PathBuf {
        match place {
            Place::Host => self.root.join("files"),
            Place::Image => self.mount_point().join("files"),
        }
    }

    /// Returns the directory of the records.
    pub fn records(&self) -> PathBuf {
        self.root.join("records")
    }

    /// Returns the places that are there now.
    pub fn places(&self) -> Vec<Place> {
        let image = *self.image();
        [Some(Place::Host), image.then_some(Place::Image)].into_iter().flatten().collect()
    }

    /// Reports why volumes at a place can have no snapshots and clones, if they cannot.
    pub fn lacks_clones(&self, place: Place) -> Option<String> {
        let lacks = place == Place::Host && !self.reflinks;
        lacks.then(|| "the volume is on a file system without reflinks".to_owned())
    }

    /// Returns the place of the next new volume as far as it is known without making the image.
    pub fn expected_place(&self) -> Place {
        match *self.image() && !self.reflinks {
            true => Place::Image,
            false => Place::Host,
        }
    }

    /// Returns the place of the next new volume; makes the image if it is needed and possible.
    pub fn offer(&self) -> Offer {
        if self.reflinks {
            return self.offer_on_host(None);
        }
        let mut image = self.image();
        if !*image {
            match self.make_image() {
                Ok(()) => *image = true,
                Err(error) => return self.offer_on_host(Some(error.to_string())),
            }
        }
        Offer { place: Place::Image, layout: Layout::File, lacks: None }
    }

    /// Returns an offer in the pool's own directory: files if volumes can be loop devices with a file system.
    fn offer_on_host(&self, lacks: Option<String>) -> Offer {
        let no_files = loop_device::unavailable()
            .or_else(|| tools::require("mkfs.ext4", "e2fsprogs").err().map(|error| error.to_string()));
        let layout = if no_files.is_some() { Layout::Directory } else { Layout::File };
        Offer { place: Place::Host, layout, lacks: no_files.or(lacks) }
    }

    /// Returns the bytes that volumes may have in all at a place; `allocated` is what ours have there at least.
    pub fn capacity(&self, place: Place, allocated: u64) -> Result<u64> {
        let physical = match place {
            Place::Host => self.host_capacity(allocated)?,
            Place::Image => {
                let total = space(&self.mount_point())?.total;
                let usable = (total - percent(total, IMAGE_OVERHEAD_PERCENT)).saturating_sub(IMAGE_LOG_BYTES);
                usable.min(self.host_capacity(allocated_bytes(&self.image_file())?)?)
            }
        };
        // The product of a size and a small ratio is far below the limits of both types.
        Ok((physical as f64 * self.overcommit) as u64)
    }

    /// Returns the capacity that a pool without an image has, before the image is made.
    fn host_capacity(&self, ours: u64) -> Result<u64> {
        let reachable = space(&self.root)?.available.saturating_add(ours);
        Ok(reachable - percent(reachable, HOST_RESERVE_PERCENT))
    }

    fn image(&self) -> MutexGuard<'_, bool> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn image_file(&self) -> PathBuf {
        self.root.join("pool.img")
    }

    fn new_image(&self) -> PathBuf {
        self.root.join("pool.img.new")
    }

    fn mount_point(&self) -> PathBuf {
        self.root.join("pool")
    }

    /// Makes the image, as large as the node's file system: it is sparse, and [`Pool::capacity`] counts what is free.
    fn make_image(&self) -> Result<()> {
        let make = tools::require("mkfs.xfs", "xfsprogs")?;
        if let Some(why) = loop_device::unavailable() {
            return Err(Error::Precondition(why));
        }
        let new = self.new_image();
        let action = || format!("make {}", new.display());
        self.remove_unfinished_image()?;
        let file = OpenOptions::new().write(true).create_new(true).open(&new).during(action)?;
        file.set_len(self.image_bytes()?).during(action)?;
        let log = format!("size={IMAGE_LOG_BYTES}");
        let options = ["-f", "-q", "-K", "-m", "reflink=1", "-s", "size=4096", "-l", &log].map(AsRef::as_ref);
        tools::run(&make, &[&options[..], &[new.as_os_str()]].concat())?.expect(&[0])?;
        file.sync_all().during(action)?;
        // An image that cannot be mounted must not be found at the next start.
        if let Err(error) = self.mount_image(&new) {
            self.remove_unfinished_image()?;
            return Err(error);
        }
        std::fs::rename(&new, self.image_file()).during(action)?;
        sync_directory(&self.root)?;
        info!(image = %self.image_file().display(), "storage pool made");
        Ok(())
    }

    /// Removes an image that a killed driver did not finish; no volume is on it.
    fn remove_unfinished_image(&self) -> Result<()> {
        mounts::unmount(&self.mount_point())?;
        if let Some(device) = loop_device::find(&self.image_tag())? {
            device.clear()?;
        }
        remove_file(&self.new_image())
    }

    fn image_tag(&self) -> Tag {
        Tag { pool: self.id.clone(), key: IMAGE_KEY.to_owned() }
    }

    fn image_bytes(&self) -> Result<u64> {
        let total = space(&self.root)?.total;
        Ok((total - total % GIB).max(GIB))
    }

    /// Mounts the image, and grows it if the node's file system has grown.
    fn mount_image(&self, image: &Path) -> Result<()> {
        let target = self.mount_point();
        std::fs::create_dir_all(&target).during(|| format!("create {}", target.display()))?;
        let tag = self.image_tag();
        let device = loop_device::find(&tag)?;
        let known = device.as_ref().map(|device| device.numbers());
        let mounted = mounts::at(&target)?;
        let grow = OpenOptions::new().write(true).open(image).during(|| format!("open {}", image.display()))?;
        let bytes = grow.metadata().during(|| format!("look at {}", image.display()))?.len().max(self.image_bytes()?);
        grow.set_len(bytes).during(|| format!("grow {}", image.display()))?;
        let attached = match device {
            Some(device) => {
                device.refresh_size()?;
                loop_device::keep(&device)?
            }
            None => loop_device::attach(image, &tag, Release::Automatic)?,
        };
        if mounted.is_none() || mounted.map(|mount| mount.device) != known {
            // Deleted volumes give their blocks back to the node.
            mounts::mount_device(&attached.device.path(), &target, "xfs", &["discard".to_owned()])?;
        }
        let directory = File::open(&target).during(|| format!("open {}", target.display()))?;
        ioctls::grow_xfs(&directory, bytes).during(|| "grow the pool".to_owned())?;
        let files = self.files(Place::Image);
        std::fs::create_dir_all(&files).during(|| format!("create {}", files.display()))?;
        sync_directory(&target)
    }
}

/// Reports whether new volumes of a pool can have snapshots, without making anything: its file system has reflinks, or the
/// driver can make an xfs image on it.
pub fn takes_snapshots(root: &Path) -> bool {
    let makes_image = || tools::find("mkfs.xfs").is_some() && loop_device::unavailable().is_none();
    root.join("pool.img").exists() || has_reflinks(&root.join("files")).unwrap_or(false) || makes_image()
}

/// Unmounts and detaches everything that a pool has on this node, after its pods are gone.
pub fn detach(root: &Path) -> Result<()> {
    if !root.join("id").exists() {
        return Ok(());
    }
    let id = pool_id(root)?;
    let mut devices = loop_device::of_pool(&id)?;
    // The image is under all others.
    devices.sort_by_key(|device| device.tag.key == IMAGE_KEY);
    for device in devices {
        let mounted: Vec<_> = mounts::all()?.into_iter().filter(|mount| mount.device == device.numbers()).collect();
        for mount in mounted.iter().rev() {
            // Nothing can unmount a file system that a killed driver left frozen.
            let _ = File::open(&mount.target).and_then(|directory| ioctls::thaw(&directory));
            mounts::unmount(&mount.target)?;
        }
        device.clear()?;
    }
    Ok(())
}

fn percent(bytes: u64, percent: u64) -> u64 {
    bytes / 100 * percent
}

/// The size of a file system.
struct Space {
    total: u64,
    available: u64,
}

fn space(path: &Path) -> Result<Space> {
    let found = rustix::fs::statvfs(path).during(|| format!("look at {}", path.display()))?;
    Ok(Space { total: found.f_blocks * found.f_frsize, available: found.f_bavail * found.f_frsize })
}

/// Returns the bytes that a file has on its file system; an absent one has none.
pub fn allocated_bytes(path: &Path) -> Result<u64> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(found.blocks() * 512),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error).during(|| format!("look at {}", path.display())),
    }
}

/// Reads the pool's id, or gives it one.
fn pool_id(root: &Path) -> Result<String> {
    let path = root.join("id");
    match std::fs::read_to_string(&path) {
        Ok(id) if id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) => Ok(id),
        Ok(_) => Err(Error::Internal(format!("{} is damaged", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let id: String = uuid::Uuid::new_v4().simple().to_string().chars().take(8).collect();
            write_whole(&path, id.as_bytes())?;
            Ok(id)
        }
        Err(error) => Err(error).during(|| format!("read {}", path.display())),
    }
}

/// Tries a reflink in a directory.
fn has_reflinks(directory: &Path) -> Result<bool> {
    let from = directory.join(".reflink-from");
    let to = directory.join(".reflink-to");
    let tried = (|| {
        std::fs::write(&from, [1; 4096])?;
        let source = File::open(&from)?;
        let target = OpenOptions::new().write(true).create(true).truncate(true).open(&to)?;
        Ok(rustix::fs::ioctl_ficlone(&target, &source).is_ok())
    })();
    remove_file(&from)?;
    remove_file(&to)?;
    tried.map_err(|source: std::io::Error| Error::Io { action: format!("write in {}", directory.display()), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_keeps_its_id() {
        let root = tempfile::tempdir().unwrap();
        let id = pool_id(root.path()).unwrap();
        assert_eq!(pool_id(root.path()).unwrap(), id);
        std::fs::write(root.path().join("id"), "../../..").unwrap();
        assert!(pool_id(root.path()).is_err());
    }

    #[test]
    fn volumes_leave_room_for_the_node() {
        let root = tempfile::tempdir().unwrap();
        let pool = Pool::open(root.path(), 1.0).unwrap();
        let available = space(root.path()).unwrap().available;
        let capacity = pool.capacity(Place::Host, 0).unwrap();
        assert!(capacity < available, "{capacity} of {available}");
        let twice = Pool::open(root.path(), 2.0).unwrap();
        assert!(twice.capacity(Place::Host, 0).unwrap() > capacity);
    }
}
