//! Freezes the file systems of volumes for the moment in which they are cloned.
//!
//! *Invariant: a frozen volume is thawed when its [`Frozen`] is dropped, and at the next start if the driver is killed.*

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use corten_storage_plugin::error::{During, Error, Result};
use corten_storage_plugin::{ioctls, mounts};
use tracing::error;

use crate::loop_device::LoopDevice;
use crate::record::Volume;
use crate::storage::Storage;

/// Volumes whose content on disk is consistent and does not change.
#[derive(Default)]
pub struct Frozen {
    directories: Vec<File>,
}

impl Frozen {
    /// Freezes all volumes that are mounted, one after the other: their content is of one moment. A block device that is
    /// in use is flushed, as its user would find it after a crash.
    pub fn freeze(storage: &Storage, volumes: &[&Volume]) -> Result<Frozen> {
        let mut frozen = Frozen::default();
        for volume in volumes {
            let Some(device) = storage.device(&volume.id)? else { continue };
            match mounted(&device)? {
                Some(directory) => {
                    match ioctls::freeze(&directory) {
                        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                            return Err(Error::Aborted(format!("volume {} is frozen by another program", volume.id)));
                        }
                        done => done.during(|| format!("freeze volume {}", volume.id))?,
                    }
                    frozen.directories.push(directory);
                }
                None => device.open()?.sync_all().during(|| format!("flush volume {}", volume.id))?,
            }
        }
        Ok(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for directory in &self.directories {
            if let Err(error) = ioctls::thaw(directory) {
                error!(%error, "volume not thawed");
            }
        }
    }
}

/// Opens a directory where the device is mounted.
pub fn mounted(device: &LoopDevice) -> Result<Option<File>> {
    let numbers = device.numbers();
    let places = mounts::all()?.into_iter().filter(|mount| mount.device == numbers);
    let opened = places.filter_map(|mount| File::open(mount.target).ok());
    // Another mount may hide this one.
    let is_same = |file: &File| {
        file.metadata().is_ok_and(|found| {
            found.is_dir() && rustix::fs::major(found.dev()) == 7 && rustix::fs::minor(found.dev()) == device.number
        })
    };
    Ok(opened.into_iter().find(is_same))
}
