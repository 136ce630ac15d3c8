//! The state of the driver: pool, records, catalog and locks; and how it is put right after a crash.
//!
//! The data of a record is a file `ID.img`, or a directory `ID`. It is made as `ID.new` and renamed after its record was
//! written; it is renamed to `ID.gone` before its record is removed. So at every start the name shows what to do:
//!
//! | data | record | what is done |
//! |---|---|---|
//! | `ID.new` | none | removed: no caller got an answer |
//! | `ID.new` | there | renamed: the record is the commit point |
//! | `ID.gone` | there | renamed back: the deletion was not committed |
//! | `ID.gone` | none | removed |
//! | `ID.img` | none | left alone and logged: it may be all that is left of lost records |

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use corten_storage_plugin::error::{During, Error, Result};
use corten_storage_plugin::locks::Locks;
use corten_storage_plugin::targets::remove_file;
use corten_storage_plugin::{ioctls, mounts};
use tracing::{error, info, warn};

use crate::catalog::Catalog;
use crate::loop_device::{self, LoopDevice, Tag};
use crate::pool::{Pool, allocated_bytes};
use crate::record::{Content, Group, Layout, Place, Records, Snapshot, Volume, sync_directory};

/// The suffix of the data of an increment that a copy gets; the id of the increment comes after it.
pub const INCREMENT: &str = "increment-";

pub struct Storage {
    pub pool: Pool,
    pub records: Records,
    pub locks: Locks,
    catalog: Mutex<Catalog>,
}

/// Bytes that a call has reserved; they are given up with it.
pub struct Reservation<'a> {
    storage: &'a Storage,
    place: Place,
    bytes: u64,
}

impl Reservation<'_> {
    /// Leaves the bytes reserved; the caller gives them up by itself.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.storage.catalog().release(self.place, self.bytes);
    }
}

impl Storage {
    /// Opens the storage in a directory and cleans up behind a driver that was killed.
    pub fn open(root: &Path, overcommit: f64) -> Result<Storage> {
        std::fs::create_dir_all(root).during(|| format!("create {}", root.display()))?;
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(root, private).during(|| format!("protect {}", root.display()))?;
        let pool = Pool::open(root, overcommit)?;
        let records = Records::open(&pool.records())?;
        let mut catalog = Catalog::default();
        let volumes = records.read_all::<Volume>()?.into_iter();
        let snapshots = records.read_all::<Snapshot>()?.into_iter();
        let groups = records.read_all::<Group>()?.into_iter();
        catalog.volumes = volumes.map(|volume| (volume.id.clone(), volume)).collect();
        catalog.snapshots = snapshots.map(|snapshot| (snapshot.id.clone(), snapshot)).collect();
        catalog.groups = groups.map(|group| (group.id.clone(), group)).collect();
        let storage = Storage { pool, records, locks: Locks::default(), catalog: Mutex::new(catalog) };
        storage.thaw_all()?;
        storage.remove_unfinished_groups()?;
        for place in storage.pool.places() {
            storage.finish_data(place)?;
        }
        storage.detach_unknown()?;
        Ok(storage)
    }

    pub fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn volume(&self, id: &str) -> Result<Volume> {
        let found = self.catalog().volumes.get(id).cloned();
        found.ok_or_else(|| Error::NotFound(format!("volume {id} does not exist")))
    }

    pub fn snapshot(&self, id: &str) -> Result<Snapshot> {
        let found = self.catalog().snapshots.get(id).cloned();
        found.ok_or_else(|| Error::NotFound(format!("snapshot {id} does not exist")))
    }

    /// Returns the path of a record's data.
    pub fn data(&self, id: &str, content: &Content) -> PathBuf {
        let files = self.pool.files(content.place);
        match content.layout {
            Layout::File => files.join(format!("{id}.img")),
            Layout::Directory => files.join(id),
        }
    }

    /// Returns the loop device of a volume, if it is attached.
    pub fn device(&self, id: &str) -> Result<Option<LoopDevice>> {
        loop_device::find(&self.tag(id))
    }

    pub fn tag(&self, id: &str) -> Tag {
        Tag { pool: self.pool.id.clone(), key: id.to_owned() }
    }

    /// Returns the room for further volumes at a place.
    pub fn room(&self, place: Place) -> Result<u64> {
        let catalog = self.catalog();
        let capacity = self.capacity(&catalog, place)?;
        Ok(capacity.saturating_sub(catalog.promised(place)))
    }

    /// Returns the room for the next volume, also if the image for it does not exist yet.
    pub fn expected_room(&self) -> Result<u64> {
        self.room(self.pool.expected_place())
    }

    /// Reserves bytes for a call.
    pub fn reserve(&self, place: Place, bytes: u64) -> Result<Reservation<'_>> {
        let mut catalog = self.catalog();
        let capacity = self.capacity(&catalog, place)?;
        catalog.reserve(place, bytes, capacity).map_err(|room| {
            Error::Exhausted(format!("{bytes} bytes do not fit into the pool, which has room for {room}"))
        })?;
        Ok(Reservation { storage: self, place, bytes })
    }

    fn capacity(&self, catalog: &Catalog, place: Place) -> Result<u64> {
        let files = self.pool.files(place);
        let allocated = |id: &str| allocated_bytes(&files.join(format!("{id}.img"))).unwrap_or_default();
        self.pool.capacity(place, catalog.least_allocated(place, allocated))
    }

    /// Gives data that was made as `ID.new` its name, after its record was written.
    pub fn commit_data(&self, id: &str, content: &Content) -> Result<()> {
        let files = self.pool.files(content.place);
        let data = self.data(id, content);
        std::fs::rename(files.join(format!("{id}.new")), &data).during(|| format!("name {}", data.display()))?;
        sync_directory(&files)
    }

    /// Takes the name of data away before its record is removed.
    pub fn retract_data(&self, id: &str, content: &Content) -> Result<()> {
        let files = self.pool.files(content.place);
        let data = self.data(id, content);
        match std::fs::rename(&data, files.join(format!("{id}.gone"))) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
        .during(|| format!("rename {}", data.display()))?;
        sync_directory(&files)
    }

    /// Removes data that was retracted; the next start does it if this fails.
    pub fn remove_retracted(&self, id: &str, place: Place) {
        let path = self.pool.files(place).join(format!("{id}.gone"));
        if let Err(error) = remove_data(&path) {
            warn!(%error, path = %path.display(), "data of a deleted volume not removed");
        }
    }

    /// Thaws every volume: a driver that was killed during a snapshot left it frozen.
    fn thaw_all(&self) -> Result<()> {
        let mounted = mounts::all()?;
        for device in loop_device::of_pool(&self.pool.id)? {
            for mount in mounted.iter().filter(|mount| mount.device == device.numbers()) {
                if File::open(&mount.target).and_then(|directory| ioctls::thaw(&directory)).unwrap_or_default() {
                    info!(device = %device.path().display(), "thawed a volume after a crash");
                }
            }
        }
        Ok(())
    }

    /// Removes the snapshots of groups without a record, which no caller knows.
    fn remove_unfinished_groups(&self) -> Result<()> {
        let mut catalog = self.catalog();
        let unfinished =
            |snapshot: &&Snapshot| snapshot.group.as_ref().is_some_and(|group| !catalog.groups.contains_key(group));
        let ids: Vec<String> = catalog.snapshots.values().filter(unfinished).map(|one| one.id.clone()).collect();
        for id in ids {
            let Some(snapshot) = catalog.snapshots.remove(&id) else { continue };
            self.retract_data(&id, &snapshot.content)?;
            self.records.remove::<Snapshot>(&id)?;
            self.remove_retracted(&id, snapshot.content.place);
        }
        Ok(())
    }

    /// Finishes what a killed driver began with the data at a place.
    fn finish_data(&self, place: Place) -> Result<()> {
        let files = self.pool.files(place);
        let listed = || format!("list {}", files.display());
        for entry in std::fs::read_dir(&files).during(listed)? {
            let path = entry.during(listed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let (id, state) = name.split_once('.').unwrap_or((name.as_str(), ""));
            let content = self.content(id);
            match (state, content) {
                (increment, _) if increment.starts_with(INCREMENT) => self.finish_increment(id, increment, &path)?,
                ("new" | "gone", None) => remove_data(&path)?,
                ("new" | "gone", Some(content)) => {
                    let data = self.data(id, &content);
                    std::fs::rename(&path, &data).during(|| format!("name {}", data.display()))?;
                }
                (_, None) => error!(path = %path.display(), "no record knows these data; they are left alone"),
                (_, Some(_)) => {}
            }
        }
        sync_directory(&files)
    }

    /// Gives an increment of a copy its name if the record has it, and removes it otherwise.
    fn finish_increment(&self, id: &str, increment: &str, path: &Path) -> Result<()> {
        let generation = increment.strip_prefix(INCREMENT).unwrap_or_default();
        let volume = self.catalog().volumes.get(id).cloned();
        let is_committed = |volume: &&Volume| {
            volume.replica.as_ref().is_some_and(|replica| !generation.is_empty() && replica.generation == generation)
        };
        match volume.as_ref().filter(is_committed) {
            Some(volume) => {
                let data = self.data(id, &volume.content);
                std::fs::rename(path, &data).during(|| format!("name {}", data.display()))
            }
            None => remove_data(path),
        }
    }

    fn content(&self, id: &str) -> Option<Content> {
        let catalog = self.catalog();
        let volume = catalog.volumes.get(id).map(|volume| volume.content.clone());
        volume.or_else(|| catalog.snapshots.get(id).map(|snapshot| snapshot.content.clone()))
    }

    /// Unmounts and detaches the devices of volumes that are no more.
    fn detach_unknown(&self) -> Result<()> {
        for device in loop_device::of_pool(&self.pool.id)? {
            let known = device.tag.key == crate::pool::IMAGE_KEY || self.content(&device.tag.key).is_some();
            if known {
                continue;
            }
            let mounted = mounts::all()?.into_iter().filter(|mount| mount.device == device.numbers());
            for mount in mounted {
                mounts::unmount(&mount.target)?;
            }
            device.clear()?;
            info!(device = %device.path().display(), "detached a device of no volume");
        }
        Ok(())
    }
}

/// Removes a file or a directory with its content; an absent one is the wanted state.
fn remove_data(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => corten_files::remove_tree(path).during(|| format!("remove {}", path.display())),
        _ => remove_file(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_storage_plugin::file_system::FileSystem;

    fn volume(id: &str) -> Volume {
        let content = Content {
            place: Place::Host,
            layout: Layout::File,
            file_system: None,
            file_system_bytes: 0,
            raw: false,
            family: id.to_owned(),
        };
        Volume {
            id: id.to_owned(),
            name: id.to_owned(),
            bytes: 1 << 20,
            block: false,
            wanted_file_system: FileSystem::Ext4,
            ephemeral: false,
            source: None,
            limits: Default::default(),
            replica: None,
            content,
        }
    }

    #[test]
    fn a_start_finishes_what_was_committed_and_removes_the_rest() {
        let root = tempfile::tempdir().unwrap();
        let ids: Vec<String> = ["a", "b", "c", "d", "e"].iter().map(|one| one.repeat(32)).collect();
        let storage = Storage::open(root.path(), 1.0).unwrap();
        // A committed creation, an uncommitted deletion, a creation and a deletion of no record, and unknown data.
        for (id, end) in ids.iter().zip(["new", "gone", "new", "gone", "img"]) {
            std::fs::write(root.path().join("files").join(format!("{id}.{end}")), id).unwrap();
        }
        for id in &ids[..2] {
            storage.records.write(&volume(id)).unwrap();
        }
        drop(storage);
        let storage = Storage::open(root.path(), 1.0).unwrap();
        let mut names: Vec<String> = std::fs::read_dir(root.path().join("files"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let expected = [&ids[0], &ids[1], &ids[4]].map(|id| format!("{id}.img"));
        assert_eq!(names, expected);
        assert_eq!(storage.catalog().volumes.len(), 2);
        assert_eq!(std::fs::read_to_string(root.path().join("files").join(&names[1])).unwrap(), ids[1]);
    }

    #[test]
    fn members_of_a_group_that_was_not_finished_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let storage = Storage::open(root.path(), 1.0).unwrap();
        for (id, group) in [("a", "finished"), ("b", "not finished")] {
            let id = id.repeat(32);
            let content = volume(&id).content;
            let group = Some(group.to_owned());
            let snapshot = Snapshot {
                id: id.clone(),
                name: id.clone(),
                source: id,
                bytes: 1,
                charge: 1,
                created: 0,
                group,
                content,
            };
            std::fs::write(storage.data(&snapshot.id, &snapshot.content), "").unwrap();
            storage.records.write(&snapshot).unwrap();
        }
        let snapshots = vec!["a".repeat(32)];
        storage.records.write(&Group { id: "finished".into(), name: "g".into(), created: 0, snapshots }).unwrap();
        drop(storage);
        let storage = Storage::open(root.path(), 1.0).unwrap();
        let left: Vec<String> = storage.catalog().snapshots.keys().cloned().collect();
        assert_eq!(left, ["a".repeat(32)]);
        assert_eq!(std::fs::read_dir(root.path().join("files")).unwrap().count(), 1);
    }

    #[test]
    fn a_reservation_ends_with_its_call() {
        let root = tempfile::tempdir().unwrap();
        let storage = Storage::open(root.path(), 1.0).unwrap();
        let room = storage.room(Place::Host).unwrap();
        let reservation = storage.reserve(Place::Host, room / 2).unwrap();
        assert!(matches!(storage.reserve(Place::Host, room), Err(Error::Exhausted(_))));
        drop(reservation);
        assert_eq!(storage.catalog().promised(Place::Host), 0);
    }
}
