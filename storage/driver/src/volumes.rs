//! Creates, deletes and expands volumes.

use std::fs::{File, OpenOptions};
use std::path::Path;

use corten_storage_plugin::error::{During, Error, Result};
use corten_storage_plugin::file_system::FileSystem;
use corten_storage_plugin::mounts;
use corten_storage_plugin::requests::{Size, Sizes};

use crate::freezing::Frozen;
use crate::limits::Limits;
use crate::record::{Content, Layout, Replica, Source, Volume};
use crate::roles::check_primary;
use crate::storage::Storage;

const MIB: u64 = 1 << 20;
const SIZES: Sizes = Sizes { unit: MIB, default: 1 << 30 };

/// A wanted volume.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub name: String,
    pub size: Size,
    pub block: bool,
    pub file_system: FileSystem,
    pub source: Option<Source>,
    pub ephemeral: bool,
    pub limits: Limits,
    /// The seconds between two increments of the volume's copy on another node, if it shall have one.
    pub replica_interval: Option<u64>,
}

/// The origin of a new volume's content.
struct Origin {
    id: String,
    bytes: u64,
    content: Content,
    /// The volume to freeze, if the content is that of a volume.
    volume: Option<Volume>,
}

impl Storage {
    /// Creates a volume; a volume of the same name that satisfies the call is returned as it is.
    pub fn create_volume(&self, wanted: &Wanted) -> Result<Volume> {
        let source_id = wanted.source.as_ref().map(|source| match source {
            Source::Volume(id) | Source::Snapshot(id) => id.clone(),
        });
        let _held = self.locks.hold([format!("name {}", wanted.name)].into_iter().chain(source_id))?;
        if let Some(existing) = self.catalog().volume_named(&wanted.name).cloned() {
            return same(existing, wanted);
        }
        let origin = wanted.source.as_ref().map(|source| self.origin(source)).transpose()?;
        let floor = wanted.file_system.least_bytes() * u64::from(!wanted.block);
        let source_bytes = origin.as_ref().map_or(0, |origin| origin.bytes);
        if wanted.size.least > 0 && wanted.size.least < source_bytes {
            return Err(Error::OutOfRange(format!("the source has {source_bytes} bytes")));
        }
        let bytes = wanted.size.resolve(&SIZES, floor.max(source_bytes))?;
        let content = self.content_of_new(wanted, origin.as_ref())?;
        if wanted.replica_interval.is_some() {
            self.check_cloneable(&content)?;
        }
        let id = uuid::Uuid::new_v4().simple().to_string();
        let family = if content.family.is_empty() { id.clone() } else { content.family.clone() };
        let volume = Volume {
            id,
            name: wanted.name.clone(),
            bytes,
            block: wanted.block,
            wanted_file_system: wanted.file_system,
            ephemeral: wanted.ephemeral,
            source: wanted.source.clone(),
            limits: wanted.limits.check()?,
            replica: wanted.replica_interval.map(Replica::first),
            content: Content { family, ..content },
        };
        let reservation = self.reserve(volume.content.place, bytes)?;
        self.make_data(&volume, origin.as_ref())?;
        self.records.write(&volume)?;
        self.commit_data(&volume.id, &volume.content)?;
        // The reservation becomes the volume's own bytes; for a moment both count.
        self.catalog().volumes.insert(volume.id.clone(), volume.clone());
        drop(reservation);
        Ok(volume)
    }

    fn origin(&self, source: &Source) -> Result<Origin> {
        Ok(match source {
            Source::Volume(id) => {
                let volume = self.volume(id)?;
                check_primary(&volume)?;
                Origin { id: id.clone(), bytes: volume.bytes, content: volume.content.clone(), volume: Some(volume) }
            }
            Source::Snapshot(id) => {
                let snapshot = self.snapshot(id)?;
                Origin { id: id.clone(), bytes: snapshot.bytes, content: snapshot.content, volume: None }
            }
        })
    }

    /// Returns where and how the data of a new volume lie; the family of a volume without an origin is empty.
    fn content_of_new(&self, wanted: &Wanted, origin: Option<&Origin>) -> Result<Content> {
        if let Some(origin) = origin {
            self.check_cloneable(&origin.content)?;
            let raw = origin.content.raw || origin.volume.as_ref().is_some_and(|volume| volume.block);
            return Ok(Content { raw, ..origin.content.clone() });
        }
        let offer = self.pool.offer();
        if offer.layout == Layout::Directory && wanted.block {
            let why = offer.lacks.unwrap_or_default();
            return Err(Error::Precondition(format!("this node cannot offer block devices: {why}")));
        }
        Ok(Content {
            place: offer.place,
            layout: offer.layout,
            file_system: None,
            file_system_bytes: 0,
            raw: false,
            family: String::new(),
        })
    }

    /// Refuses snapshots and clones of data without reflinks.
    pub fn check_cloneable(&self, content: &Content) -> Result<()> {
        let lacks = match content.layout {
            Layout::Directory => Some("the volume is a plain directory".to_owned()),
            Layout::File => self.pool.lacks_clones(content.place),
        };
        let help = "snapshots and clones need a pool with reflinks: install xfsprogs on the node for new volumes";
        lacks.map_or(Ok(()), |lacks| Err(Error::Precondition(format!("{lacks}; {help}"))))
    }

    /// Makes the data of a new volume, under the name of unfinished data.
    fn make_data(&self, volume: &Volume, origin: Option<&Origin>) -> Result<()> {
        let path = self.pool.files(volume.content.place).join(format!("{}.new", volume.id));
        if volume.content.layout == Layout::Directory {
            return std::fs::create_dir(&path).during(|| format!("create {}", path.display()));
        }
        let made = (|| {
            let frozen = match origin.and_then(|origin| origin.volume.as_ref()) {
                Some(source) => Some(Frozen::freeze(self, &[source])?),
                None => None,
            };
            let from = origin.map(|origin| self.data(&origin.id, &origin.content));
            let file = clone_or_create(from.as_deref(), &path)?;
            drop(frozen);
            file.set_len(volume.bytes).and_then(|()| file.sync_all()).during(|| format!("write {}", path.display()))
        })();
        if made.is_err() {
            // The next start removes it, if this does not.
            let _ = std::fs::remove_file(&path);
        }
        made
    }

    /// Deletes a volume; an absent one is the wanted state.
    pub fn delete_volume(&self, id: &str) -> Result<()> {
        let _held = self.locks.hold([id.to_owned()])?;
        let Ok(volume) = self.volume(id) else { return Ok(()) };
        if self.is_in_use(&volume)? {
            return Err(Error::Precondition(format!("volume {id} is still in use on this node")));
        }
        self.drop_diverged(id, None)?;
        self.remove_volume(&volume)
    }

    /// Removes a volume that is not in use; its lock is held.
    pub fn remove_volume(&self, volume: &Volume) -> Result<()> {
        self.retract_data(&volume.id, &volume.content)?;
        self.records.remove::<Volume>(&volume.id)?;
        self.catalog().volumes.remove(&volume.id);
        self.remove_retracted(&volume.id, volume.content.place);
        Ok(())
    }

    /// Reports whether a volume is mounted or a device of this node. A program that copied the node's mounts when it made
    /// a namespace may hold the device for longer; that keeps no volume from being deleted.
    pub fn is_in_use(&self, volume: &Volume) -> Result<bool> {
        match volume.content.layout {
            Layout::File => {
                let Some(device) = self.device(&volume.id)? else { return Ok(false) };
                Ok(volume.block || mounts::all()?.iter().any(|mount| mount.device == device.numbers()))
            }
            Layout::Directory => {
                let end = Path::new("files").join(&volume.id);
                Ok(mounts::all()?.iter().any(|mount| mount.root.ends_with(&end)))
            }
        }
    }

    /// Makes a volume larger; returns its size. Its file system grows on the node.
    pub fn expand_volume(&self, id: &str, size: Size) -> Result<Volume> {
        let _held = self.locks.hold([id.to_owned()])?;
        let volume = self.volume(id)?;
        check_primary(&volume)?;
        if size.most > 0 && volume.bytes > size.most {
            return Err(Error::OutOfRange(format!("volume {id} has {} bytes already", volume.bytes)));
        }
        if size.least <= volume.bytes {
            return Ok(volume);
        }
        let bytes = size.resolve(&SIZES, volume.bytes)?;
        let reservation = self.reserve(volume.content.place, bytes - volume.bytes)?;
        if volume.content.layout == Layout::File {
            let path = self.data(id, &volume.content);
            let action = || format!("grow {}", path.display());
            let file = OpenOptions::new().write(true).open(&path).during(action)?;
            file.set_len(bytes).and_then(|()| file.sync_all()).during(action)?;
        }
        let grown = Volume { bytes, ..volume };
        self.update_volume(&grown)?;
        drop(reservation);
        Ok(grown)
    }

    /// Writes a changed record; the volume's lock is held.
    pub fn update_volume(&self, volume: &Volume) -> Result<()> {
        self.records.write(volume)?;
        self.catalog().volumes.insert(volume.id.clone(), volume.clone());
        Ok(())
    }
}

/// Returns an existing volume if it is the wanted one.
fn same(existing: Volume, wanted: &Wanted) -> Result<Volume> {
    let same = wanted.size.contains(existing.bytes)
        && existing.source == wanted.source
        && existing.block == wanted.block
        && existing.replica.as_ref().map(|replica| replica.interval_seconds) == wanted.replica_interval
        && (existing.block || existing.wanted_file_system == wanted.file_system);
    if same {
        return Ok(existing);
    }
    Err(Error::AlreadyExists(format!("volume {} exists with other properties", wanted.name)))
}

/// Creates a file that shares all blocks with another one, or an empty one.
pub fn clone_or_create(from: Option<&Path>, to: &Path) -> Result<File> {
    let action = || format!("create {}", to.display());
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(to).during(action)?;
    if let Some(from) = from {
        let source = File::open(from).during(|| format!("open {}", from.display()))?;
        rustix::fs::ioctl_ficlone(&file, &source).during(|| format!("clone {}", from.display()))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_mebibytes_within_their_bounds() {
        let size = |least, most| Size { least, most };
        for (size, floor, expected) in [
            (size(0, 0), 0, Some(SIZES.default)),
            (size(1, 0), MIB, Some(MIB)),
            (size(MIB + 1, 0), MIB, Some(2 * MIB)),
            (size(MIB + 1, MIB + 2), MIB, None),
            (size(0, 10 * MIB + 5), MIB, Some(10 * MIB)),
            (size(MIB, 0), 300 * MIB, Some(300 * MIB)),
            (size(MIB, 2 * MIB), 300 * MIB, None),
            (size(u64::MAX, 0), 0, None),
            (size(0, 0), 5 * MIB, Some(5 * MIB)),
        ] {
            assert_eq!(size.resolve(&SIZES, floor).ok(), expected, "{size:?} {floor}");
        }
    }
}
