//! The data of volumes for other parts of this process: a volume's content at one moment, and new volumes that are filled
//! before they are used. Backups need both; CSI offers neither.

use std::fs::{File, OpenOptions};
use std::sync::{Arc, Mutex, PoisonError};

use corten_storage_plugin::error::{During, Error, Result};
use corten_storage_plugin::file_system::FileSystem;
use corten_storage_plugin::locks::Held;
use rustix::fs::{Mode, OFlags};

use crate::freezing::Frozen;
use crate::pool::allocated_bytes;
use crate::record::{Content, Layout, Place, Volume};
use crate::roles::check_primary;
use crate::storage::Storage;

/// The volumes of the driver that runs in this process.
#[derive(Clone, Default)]
pub struct Volumes(Arc<Mutex<Option<Arc<Storage>>>>);

impl std::fmt::Debug for Volumes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Volumes")
    }
}

/// The content of a volume at one moment.
pub struct Image {
    pub file: File,
    pub bytes: u64,
    pub block: bool,
    /// The name of the file system on it, if there is one.
    pub file_system: Option<&'static str>,
    /// Keeps the content as it is.
    pub guard: ImageGuard,
}

/// The reservation of a clone's blocks, or the lock of a volume that cannot be cloned.
pub struct ImageGuard {
    reserved: Option<(Arc<Storage>, Place, u64)>,
    _held: Option<Held>,
}

impl Drop for ImageGuard {
    fn drop(&mut self) {
        if let Some((storage, place, bytes)) = &self.reserved {
            storage.catalog().release(*place, *bytes);
        }
    }
}

/// A volume that is being filled. No call works on it until this is dropped.
pub struct Filling {
    pub file: File,
    storage: Arc<Storage>,
    volume: Volume,
    _held: Held,
}

impl Volumes {
    pub(crate) fn set(&self, storage: Option<Arc<Storage>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = storage;
    }

    pub(crate) fn storage(&self) -> Result<Arc<Storage>> {
        let storage = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        storage.ok_or_else(|| Error::Precondition("the storage driver of this node does not run".to_owned()))
    }

    /// Opens the content of a volume as it is now.
    ///
    /// Where the pool can reflink, it is a clone without a name, which goes with its last descriptor: nothing of it is left
    /// after a kill. Elsewhere it is the volume itself, which must not be in use, and cannot be used until the guard is
    /// dropped.
    pub fn open(&self, id: &str) -> Result<Image> {
        let storage = self.storage()?;
        let held = storage.locks.hold([id.to_owned()])?;
        let volume = storage.volume(id)?;
        check_primary(&volume)?;
        if volume.content.layout == Layout::Directory {
            let message =
                format!("volume {id} is a plain directory: a volume needs mkfs.ext4 and loop devices for this");
            return Err(Error::Precondition(message));
        }
        let (file, guard) = match storage.check_cloneable(&volume.content) {
            Ok(()) => clone(&storage, &volume)?,
            Err(error) if storage.is_in_use(&volume)? => {
                return Err(Error::Precondition(format!("volume {id} is in use, and cannot be cloned: {error}")));
            }
            Err(_) => {
                let data = storage.data(id, &volume.content);
                let file = File::open(&data).during(|| format!("open {}", data.display()))?;
                (file, ImageGuard { reserved: None, _held: Some(held) })
            }
        };
        Ok(Image {
            file,
            bytes: volume.bytes,
            block: volume.block,
            file_system: volume.content.file_system.map(FileSystem::name),
            guard,
        })
    }

    /// Opens a volume that was never used, as an empty file; none if it has a content.
    pub fn fill(&self, id: &str) -> Result<Option<Filling>> {
        let storage = self.storage()?;
        let held = storage.locks.hold([id.to_owned()])?;
        let volume = storage.volume(id)?;
        if volume.content.file_system.is_some() || volume.content.raw {
            return Ok(None);
        }
        if volume.content.layout == Layout::Directory {
            let message =
                format!("volume {id} is a plain directory: a volume needs mkfs.ext4 and loop devices for this");
            return Err(Error::Precondition(message));
        }
        if storage.is_in_use(&volume)? {
            return Err(Error::Precondition(format!("volume {id} is in use")));
        }
        let data = storage.data(id, &volume.content);
        let action = || format!("empty {}", data.display());
        let file = OpenOptions::new().read(true).write(true).open(&data).during(action)?;
        file.set_len(0).and_then(|()| file.set_len(volume.bytes)).during(action)?;
        Ok(Some(Filling { file, storage, volume, _held: held }))
    }
}

impl Filling {
    /// Makes the content known: a file system of a size, or, without one, that of a block device. An empty content is that
    /// of a volume that was never used.
    pub fn commit(self, file_system: Option<&str>, bytes: u64) -> Result<()> {
        self.file.sync_all().during(|| "sync a volume".to_owned())?;
        let file_system = file_system.map(FileSystem::parse).transpose()?;
        let content = Content {
            file_system,
            file_system_bytes: if file_system.is_some() { bytes } else { 0 },
            raw: self.volume.block,
            ..self.volume.content.clone()
        };
        self.storage.update_volume(&Volume { content, ..self.volume })
    }
}

/// Clones a volume into a file without a name.
fn clone(storage: &Arc<Storage>, volume: &Volume) -> Result<(File, ImageGuard)> {
    let place = volume.content.place;
    let data = storage.data(&volume.id, &volume.content);
    let bytes = allocated_bytes(&data)?;
    storage.reserve(place, bytes)?.keep();
    let guard = ImageGuard { reserved: Some((Arc::clone(storage), place, bytes)), _held: None };
    let directory = storage.pool.files(place);
    let action = || format!("clone volume {}", volume.id);
    let unnamed =
        rustix::fs::open(&directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    let file = File::from(unnamed.during(action)?);
    let source = File::open(&data).during(action)?;
    let frozen = Frozen::freeze(storage, &[volume])?;
    rustix::fs::ioctl_ficlone(&file, &source).during(action)?;
    drop(frozen);
    Ok((file, guard))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::os::unix::fs::FileExt;

    use super::*;
    use corten_storage_plugin::requests::Size;

    use crate::volumes::Wanted;

    fn wanted(name: &str, block: bool) -> Wanted {
        Wanted {
            name: name.to_owned(),
            size: Size { least: 4 << 20, most: 0 },
            block,
            file_system: FileSystem::Ext4,
            source: None,
            ephemeral: false,
            limits: Default::default(),
            replica_interval: None,
        }
    }

    #[test]
    fn a_volume_is_filled_once_and_read_as_it_was_filled() {
        let root = tempfile::tempdir().unwrap();
        let volumes = Volumes::default();
        assert!(volumes.open("x").err().unwrap().to_string().contains("does not run"));
        let storage = Arc::new(Storage::open(root.path(), 1.0).unwrap());
        volumes.set(Some(storage.clone()));
        // A pool that neither has loop devices nor mkfs makes directories, which have no image.
        if storage.pool.offer().layout == Layout::Directory {
            return;
        }
        let volume = storage.create_volume(&wanted("a", false)).unwrap();
        let unfinished = volumes.fill(&volume.id).unwrap().unwrap();
        unfinished.file.write_all_at(b"half", 0).unwrap();
        drop(unfinished);
        // A filling that was interrupted begins from nothing.
        let filling = volumes.fill(&volume.id).unwrap().unwrap();
        let mut begin = [1; 4];
        filling.file.read_exact_at(&mut begin, 0).unwrap();
        assert_eq!(begin, [0; 4]);
        filling.file.write_all_at(b"whole", 1 << 20).unwrap();
        filling.commit(Some("ext4"), 4 << 20).unwrap();
        assert!(volumes.fill(&volume.id).unwrap().is_none());
        let mut image = volumes.open(&volume.id).unwrap();
        assert_eq!((image.bytes, image.block, image.file_system), (4 << 20, false, Some("ext4")));
        let mut content = Vec::new();
        image.file.rewind().unwrap();
        image.file.read_to_end(&mut content).unwrap();
        assert_eq!(&content[1 << 20..][..5], b"whole");
        let promised = storage.catalog().promised(volume.content.place);
        drop(image);
        let left = storage.catalog().promised(volume.content.place);
        assert!(left <= promised && left == 4 << 20, "{left} of {promised}");
        let block = storage.create_volume(&wanted("b", true)).unwrap();
        volumes.fill(&block.id).unwrap().unwrap().commit(None, 4 << 20).unwrap();
        assert!(storage.volume(&block.id).unwrap().content.raw);
        drop(volumes);
        crate::detach(root.path()).unwrap();
    }
}
