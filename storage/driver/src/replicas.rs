//! Volumes with a copy on another node: the primary, which pods use, and the standby, which gets increments.
//!
//! An increment is made in a clone of the copy under another name. The record is its commit point, as everywhere in the
//! driver: it names the increment, and then the clone gets the copy's name. A start finishes the increment that the record
//! names, and removes all others.
//!
//! *Invariant: pods use a volume only on the node whose record has the role primary and the epoch that the cluster has. A
//! copy is promoted only as a whole increment.*

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;

use crate::data::{Image, Volumes};
use crate::extents::changed_chunks;
use crate::freezing::mounted;
use crate::pool::allocated_bytes;
use crate::record::{Content, Layout, Replica, Role, Snapshot, Volume, is_id, sync_directory};
use crate::roles::{INTERVALS, is_standby};
use crate::storage::{INCREMENT, Storage};
use crate::volumes::clone_or_create;
use corten_storage_plugin::error::{During, Error, Result};
use corten_storage_plugin::ioctls;

/// The prefix of the names of snapshots with the content of former primaries.
const DIVERGED: &str = "diverged-";
/// The largest volume that has a copy.
const MOST_BYTES: u64 = 64 << 40;

/// The primary's content at one moment, as an increment of the standby's copy.
pub struct Increment {
    pub image: Image,
    /// The record of the volume, which the standby keeps.
    pub record: String,
}

/// An increment that a copy is getting.
pub struct Received {
    /// A clone of the copy, in which the increment is written.
    pub file: File,
    pub bytes: u64,
    /// The path of the clone, as long as the record does not name it.
    path: Option<PathBuf>,
    storage: Arc<Storage>,
    volume: Volume,
    /// The bytes that are reserved until the increment is the copy's content, or is given up.
    reserved: u64,
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // The next start removes it, if this does not.
            let _ = std::fs::remove_file(path);
        }
        self.storage.catalog().release(self.volume.content.place, self.reserved);
    }
}

impl Volumes {
    /// Returns this node's part in a volume with a copy; none if it has none.
    pub fn replica(&self, id: &str) -> Result<Option<Replica>> {
        Ok(self.storage()?.catalog().volumes.get(id).and_then(|volume| volume.replica.clone()))
    }

    /// Returns the ids and names of all volumes with a copy that this node has a part of, or diverged content.
    pub fn replicas(&self) -> Result<Vec<(String, String)>> {
        let storage = self.storage()?;
        let catalog = storage.catalog();
        let replicated = catalog.volumes.values().filter(|volume| volume.replica.is_some());
        let volumes = replicated.map(|volume| (volume.id.clone(), volume.name.clone()));
        let diverged = catalog.snapshots.values().filter_map(|one| Some((one.source.clone(), diverged_from(one)?)));
        Ok(volumes.chain(diverged).collect())
    }

    /// Opens the primary's content as it is now; none if it is that of `base` still.
    pub fn increment(&self, id: &str, base: Option<&File>) -> Result<Option<Increment>> {
        let storage = self.storage()?;
        let volume = storage.volume(id)?;
        if let Some(base) = base
            && storage.is_unchanged(&volume, base)?
        {
            return Ok(None);
        }
        let image = self.open(id)?;
        let volume = storage.volume(id)?;
        let record = serde_json::to_string(&volume).map_err(|error| Error::Internal(error.to_string()))?;
        Ok(Some(Increment { image, record }))
    }

    /// Begins an increment of a copy, which is made if it is missing. `changed` is the most that it writes.
    pub fn receive(&self, record: &str, epoch: u64, generation: &str, changed: u64) -> Result<Received> {
        let storage = self.storage()?;
        let theirs = parse(record)?;
        if !is_id(generation) {
            return Err(Error::Invalid("the id of the increment is not valid".to_owned()));
        }
        let _held = storage.locks.hold([theirs.id.clone()])?;
        let own = match storage.volume(&theirs.id) {
            Ok(own) => own,
            Err(_) => storage.create_copy(&theirs, epoch)?,
        };
        let replica = standby_of(&own, epoch)?;
        let path = storage.pool.files(own.content.place).join(format!("{}.{INCREMENT}{generation}", own.id));
        let grown = theirs.bytes.saturating_sub(own.bytes);
        // Until the increment has its name, the blocks that it replaces are there too.
        let replaced = allocated_bytes(&storage.data(&own.id, &own.content))?.min(changed);
        let reserved = grown.saturating_add(replaced);
        let reservation = storage.reserve(own.content.place, reserved)?;
        let content = Content {
            file_system: theirs.content.file_system,
            file_system_bytes: theirs.content.file_system_bytes,
            raw: theirs.content.raw,
            ..own.content.clone()
        };
        let replica = Replica {
            generation: generation.to_owned(),
            interval_seconds: theirs.replica.map_or(replica.interval_seconds, |one| one.interval_seconds),
            ..replica
        };
        let volume = Volume {
            bytes: theirs.bytes,
            limits: theirs.limits.check()?,
            replica: Some(replica),
            content,
            ..own.clone()
        };
        let file = clone_or_create(Some(&storage.data(&own.id, &own.content)), &path)?;
        let bytes = volume.bytes;
        let action = format!("grow {}", path.display());
        reservation.keep();
        let received = Received { file, bytes, path: Some(path), storage: Arc::clone(&storage), volume, reserved };
        received.file.set_len(bytes).during(|| action)?;
        Ok(received)
    }

    /// Makes a copy the primary of an epoch.
    pub fn promote(&self, id: &str, epoch: u64) -> Result<()> {
        let storage = self.storage()?;
        let _held = storage.locks.hold([id.to_owned()])?;
        let volume = storage.volume(id)?;
        let replica = volume.replica.clone().unwrap_or_else(|| Replica::first(*INTERVALS.start()));
        let refused = |why: &str| Err(Error::Precondition(format!("volume {id} is not promoted: {why}")));
        match replica.role {
            Role::Primary if replica.epoch == epoch => return Ok(()),
            Role::Primary => return refused("it is the primary of another epoch"),
            Role::Standby if replica.epoch >= epoch => return refused("its epoch is not older"),
            Role::Standby if replica.generation.is_empty() => return refused("the copy is not complete"),
            Role::Standby => {}
        }
        let replica = Replica { role: Role::Primary, epoch, generation: String::new(), ..replica };
        storage.update_volume(&Volume { replica: Some(replica), ..volume })
    }

    /// Ends the I/O of a volume that this node does not hold any more; returns whether pods still have it.
    pub fn fence(&self, id: &str) -> Result<bool> {
        let storage = self.storage()?;
        let _held = storage.locks.hold([id.to_owned()])?;
        let volume = storage.volume(id)?;
        if !storage.is_in_use(&volume)? {
            return Ok(false);
        }
        let Some(device) = storage.device(id)? else { return Ok(true) };
        match mounted(&device)? {
            Some(directory) => ioctls::shut_down(&directory).during(|| format!("end the I/O of volume {id}"))?,
            None => device.cut()?,
        }
        Ok(true)
    }

    /// Makes a former primary the copy of an epoch. Its content, which the new primary may lack, stays as a snapshot.
    pub fn demote(&self, id: &str, epoch: u64, now: Timestamp) -> Result<()> {
        let storage = self.storage()?;
        let volume = storage.volume(id)?;
        let Some(replica) = volume.replica.clone() else {
            return Err(Error::Precondition(format!("volume {id} has no copy")));
        };
        if replica.role == Role::Primary {
            let name = diverged_name(&volume, epoch);
            storage.drop_diverged(id, Some(&name))?;
            storage.create_snapshot(&name, id, now)?;
        }
        let _held = storage.locks.hold([id.to_owned()])?;
        let volume = storage.volume(id)?;
        if storage.is_in_use(&volume)? {
            return Err(Error::Aborted(format!("volume {id} is in use")));
        }
        let generation = if replica.role == Role::Standby { replica.generation.clone() } else { String::new() };
        let replica = Replica { role: Role::Standby, epoch, generation, ..replica };
        storage.update_volume(&Volume { replica: Some(replica), ..volume })
    }

    /// Removes the copy of a deleted volume, and its diverged content.
    pub fn forget(&self, id: &str) -> Result<()> {
        self.remove_copy(id)?;
        self.storage()?.drop_diverged(id, None)
    }

    /// Removes a copy; a primary is never removed by this.
    pub fn remove_copy(&self, id: &str) -> Result<()> {
        let storage = self.storage()?;
        let _held = storage.locks.hold([id.to_owned()])?;
        let Ok(volume) = storage.volume(id) else { return Ok(()) };
        match is_standby(&volume) {
            true => storage.remove_volume(&volume),
            false => Err(Error::Precondition(format!("volume {id} is not a copy"))),
        }
    }
}

impl Received {
    /// Makes the increment the copy's content, if the copy is still one of the same epoch.
    pub fn commit(mut self) -> Result<()> {
        let storage = Arc::clone(&self.storage);
        let id = self.volume.id.clone();
        self.file.sync_all().during(|| format!("sync an increment of volume {id}"))?;
        let _held = storage.locks.hold([id.clone()])?;
        let current = storage.volume(&id)?;
        standby_of(&current, self.volume.replica.as_ref().map_or(0, |replica| replica.epoch))?;
        let files = storage.pool.files(current.content.place);
        sync_directory(&files)?;
        storage.update_volume(&self.volume)?;
        // From here on the increment is the copy's content: a start gives it the name, if this does not.
        let data = storage.data(&id, &self.volume.content);
        if let Some(path) = self.path.take() {
            std::fs::rename(path, &data).during(|| format!("name {}", data.display()))?;
        }
        sync_directory(&files)
    }
}

impl Storage {
    /// Makes an empty copy of a volume, which no increment has yet.
    fn create_copy(&self, theirs: &Volume, epoch: u64) -> Result<Volume> {
        let offer = self.pool.offer();
        let content = Content {
            place: offer.place,
            layout: offer.layout,
            file_system: None,
            file_system_bytes: 0,
            raw: false,
            family: theirs.id.clone(),
        };
        self.check_cloneable(&content)?;
        let interval_seconds = theirs.replica.as_ref().map_or(*INTERVALS.start(), |replica| replica.interval_seconds);
        let replica = Replica { role: Role::Standby, epoch, generation: String::new(), interval_seconds };
        let volume = Volume {
            source: None,
            ephemeral: false,
            limits: theirs.limits.check()?,
            replica: Some(replica),
            content,
            ..theirs.clone()
        };
        let reservation = self.reserve(volume.content.place, volume.bytes)?;
        let path = self.pool.files(volume.content.place).join(format!("{}.new", volume.id));
        let action = || format!("create {}", path.display());
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).during(action)?;
        file.set_len(volume.bytes).and_then(|()| file.sync_all()).during(action)?;
        self.records.write(&volume)?;
        self.commit_data(&volume.id, &volume.content)?;
        self.catalog().volumes.insert(volume.id.clone(), volume.clone());
        drop(reservation);
        Ok(volume)
    }

    /// Reports whether a volume has the content of one of its clones. What its file system holds in memory is written first.
    fn is_unchanged(&self, volume: &Volume, base: &File) -> Result<bool> {
        if let Some(device) = self.device(&volume.id)? {
            match mounted(&device)? {
                Some(directory) => rustix::fs::syncfs(&directory).during(|| format!("sync volume {}", volume.id))?,
                None => device.open()?.sync_all().during(|| format!("flush volume {}", volume.id))?,
            }
        }
        let data = self.data(&volume.id, &volume.content);
        let file = File::open(&data).during(|| format!("open {}", data.display()))?;
        let is_same_size = base.metadata().is_ok_and(|found| found.len() == volume.bytes);
        Ok(is_same_size && changed_chunks(base, &file, volume.bytes)?.is_some_and(|changed| changed.is_empty()))
    }

    /// Deletes the snapshots of a volume's diverged content, but for one.
    pub fn drop_diverged(&self, id: &str, keep: Option<&str>) -> Result<()> {
        let is_old =
            |one: &&Snapshot| one.source == id && diverged_from(one).is_some() && Some(one.name.as_str()) != keep;
        let old: Vec<Snapshot> = self.catalog().snapshots.values().filter(is_old).cloned().collect();
        old.iter().try_for_each(|one| self.drop_snapshot(one))
    }
}

/// Returns the name of the snapshot of a volume's content that diverged before an epoch.
fn diverged_name(volume: &Volume, epoch: u64) -> String {
    format!("{DIVERGED}{}-{epoch}", volume.name)
}

/// Returns the name of the volume whose diverged content a snapshot is.
fn diverged_from(snapshot: &Snapshot) -> Option<String> {
    let (name, epoch) = snapshot.name.strip_prefix(DIVERGED)?.rsplit_once('-')?;
    epoch.parse::<u64>().is_ok().then(|| name.to_owned())
}

/// Returns this node's part in a volume, if it has the copy of an epoch.
fn standby_of(volume: &Volume, epoch: u64) -> Result<Replica> {
    match &volume.replica {
        Some(replica) if replica.role == Role::Standby && replica.epoch == epoch => Ok(replica.clone()),
        _ => Err(Error::Precondition(format!("volume {} is not a copy of epoch {epoch} here", volume.id))),
    }
}

/// Reads the record of another node's volume. Its place is not taken over.
fn parse(record: &str) -> Result<Volume> {
    let refused = |why: &str| Error::Invalid(format!("the record of the primary is not valid: {why}"));
    let volume: Volume = serde_json::from_str(record).map_err(|error| refused(&error.to_string()))?;
    let name = corten_storage_plugin::requests::name(&volume.name)?;
    let is_whole = volume.bytes > 0 && volume.bytes <= MOST_BYTES && volume.bytes.is_multiple_of(1 << 20);
    let interval = volume.replica.as_ref().map(|replica| replica.interval_seconds);
    match () {
        () if !is_id(&volume.id) => Err(refused("its id")),
        () if volume.content.layout != Layout::File => Err(refused("it is not a file")),
        () if !is_whole || volume.content.file_system_bytes > volume.bytes => Err(refused("its size")),
        () if !interval.is_some_and(|seconds| INTERVALS.contains(&seconds)) => Err(refused("its interval")),
        () => Ok(Volume { name, ..volume }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::*;
    use crate::roles::{Holder, check_epoch, check_holder, check_primary};
    use crate::volumes::Wanted;
    use corten_storage_plugin::file_system::FileSystem;
    use corten_storage_plugin::requests::Size;

    const GENERATIONS: [&str; 3] = ["1", "2", "3"];

    fn generation(index: usize) -> String {
        GENERATIONS[index].repeat(32)
    }

    /// A node with a pool that can reflink, or none on a machine without loop devices or xfs.
    struct Place {
        root: tempfile::TempDir,
        volumes: Volumes,
    }

    impl Place {
        fn new() -> Option<Place> {
            let place = Place { root: tempfile::tempdir().unwrap(), volumes: Volumes::default() };
            place.start();
            let storage = place.volumes.storage().unwrap();
            let offer = storage.pool.offer();
            if offer.lacks.is_some() {
                eprintln!("skipped: {}", offer.lacks.unwrap_or_default());
                return None;
            }
            Some(place)
        }

        /// Starts the driver, also after it was killed.
        fn start(&self) {
            self.volumes.set(Some(Arc::new(Storage::open(self.root.path(), 1.0).unwrap())));
        }

        fn storage(&self) -> Arc<Storage> {
            self.volumes.storage().unwrap()
        }

        fn content(&self, id: &str) -> Vec<u8> {
            let storage = self.storage();
            let volume = storage.volume(id).unwrap();
            let mut begin = vec![0; 8];
            File::open(storage.data(id, &volume.content)).unwrap().read_exact_at(&mut begin, 0).unwrap();
            begin
        }

        fn files(&self) -> Vec<String> {
            let storage = self.storage();
            let place = storage.catalog().volumes.values().next().unwrap().content.place;
            let mut names: Vec<String> = std::fs::read_dir(storage.pool.files(place))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            self.volumes.set(None);
            crate::detach(self.root.path()).unwrap();
        }
    }

    fn wanted(name: &str) -> Wanted {
        Wanted {
            name: name.to_owned(),
            size: Size { least: 4 << 20, most: 0 },
            block: true,
            file_system: FileSystem::Ext4,
            source: None,
            ephemeral: false,
            limits: Default::default(),
            replica_interval: Some(60),
        }
    }

    /// Ends an increment as a kill does: nothing is cleaned up, but files are closed.
    fn killed(mut received: Received) {
        received.file = File::open("/dev/null").unwrap();
        std::mem::forget(received);
    }

    fn write(path: &Path, bytes: &[u8]) {
        File::options().write(true).open(path).unwrap().write_all_at(bytes, 0).unwrap();
    }

    #[test]
    fn a_copy_is_whole_after_a_kill_at_any_step() {
        let Some(primary) = Place::new() else { return };
        let Some(standby) = Place::new() else { return };
        let storage = primary.storage();
        let volume = storage.create_volume(&wanted("pv")).unwrap();
        let id = volume.id.as_str();
        write(&storage.data(id, &volume.content), b"content1");
        let one = primary.volumes.increment(id, None).unwrap().unwrap();
        assert!(primary.volumes.increment(id, Some(&one.image.file)).unwrap().is_none(), "nothing changed");
        let received = standby.volumes.receive(&one.record, 1, &generation(0), 0).unwrap();
        // Killed before anything arrived: the copy exists, is empty, and cannot be promoted.
        killed(received);
        standby.start();
        assert_eq!(standby.files(), [format!("{id}.img")]);
        assert!(standby.volumes.promote(id, 2).unwrap_err().to_string().contains("not complete"));
        let received = standby.volumes.receive(&one.record, 1, &generation(0), 0).unwrap();
        received.file.write_all_at(b"content1", 0).unwrap();
        received.commit().unwrap();
        assert_eq!(standby.content(id), b"content1");
        // A pod cannot use it, and it is no source of snapshots.
        let copy = standby.storage().volume(id).unwrap();
        assert!(check_epoch(&copy, Some(1)).is_err() && check_primary(&copy).is_err());
        assert!(standby.storage().create_snapshot("s", id, Timestamp::UNIX_EPOCH).is_err());
        // Killed while the second increment is written.
        write(&storage.data(id, &volume.content), b"content2");
        let two = primary.volumes.increment(id, Some(&one.image.file)).unwrap().unwrap();
        let changed = changed_chunks(&one.image.file, &two.image.file, two.image.bytes).unwrap().unwrap();
        assert_eq!(changed.into_iter().collect::<Vec<_>>(), [0]);
        let received = standby.volumes.receive(&two.record, 1, &generation(1), 1 << 20).unwrap();
        received.file.write_all_at(b"half", 0).unwrap();
        killed(received);
        standby.start();
        assert_eq!(standby.content(id), b"content1");
        assert_eq!(standby.files(), [format!("{id}.img")]);
        // Killed after the record, and before the increment has its name.
        let received = standby.volumes.receive(&two.record, 1, &generation(2), 1 << 20).unwrap();
        received.file.write_all_at(b"content2", 0).unwrap();
        standby.storage().update_volume(&received.volume).unwrap();
        killed(received);
        standby.start();
        assert_eq!(standby.content(id), b"content2");
        assert_eq!(standby.volumes.replica(id).unwrap().unwrap().generation, generation(2));
        assert_eq!(standby.storage().catalog().promised(copy.content.place), 4 << 20);
        // A failed increment leaves nothing.
        drop(standby.volumes.receive(&two.record, 1, &generation(0), 1 << 20).unwrap());
        assert_eq!(standby.files(), [format!("{id}.img")]);
    }

    #[test]
    fn an_epoch_has_one_primary() {
        let Some(first) = Place::new() else { return };
        let Some(second) = Place::new() else { return };
        let volume = first.storage().create_volume(&wanted("pv")).unwrap();
        let id = volume.id.as_str();
        let increment = first.volumes.increment(id, None).unwrap().unwrap();
        second.volumes.receive(&increment.record, 1, &generation(0), 0).unwrap().commit().unwrap();
        let holds = |place: &Place, name: &str, holder: &str, epoch: u64| {
            let holder = Holder { node: holder.to_owned(), epoch };
            check_holder(&place.storage().volume(id).unwrap(), &holder, name).is_ok()
        };
        assert!(holds(&first, "n1", "n1", 1) && !holds(&second, "n2", "n1", 1));
        // An increment that is under way when its copy is promoted is lost, and damages nothing.
        let late = second.volumes.receive(&increment.record, 1, &generation(1), 0).unwrap();
        second.volumes.promote(id, 2).unwrap();
        second.volumes.promote(id, 2).unwrap();
        assert!(late.commit().is_err());
        assert!(holds(&second, "n2", "n2", 2) && !holds(&first, "n1", "n2", 2));
        // The former primary does not believe a cluster that knows only its own epoch less, nor a restored one.
        write(&first.storage().data(id, &volume.content), b"diverged");
        assert!(first.volumes.promote(id, 2).is_err());
        assert!(!first.volumes.fence(id).unwrap());
        first.volumes.demote(id, 2, Timestamp::UNIX_EPOCH).unwrap();
        first.volumes.demote(id, 2, Timestamp::UNIX_EPOCH).unwrap();
        assert!(!holds(&first, "n1", "n1", 1) && !holds(&first, "n1", "n1", 2));
        let kept: Vec<String> = first.storage().catalog().snapshots.values().map(|one| one.name.clone()).collect();
        assert_eq!(kept, ["diverged-pv-2"]);
        // It gets increments of the new epoch, and of no other.
        let back = second.volumes.increment(id, None).unwrap().unwrap();
        assert!(first.volumes.receive(&back.record, 1, &generation(0), 0).is_err());
        first.volumes.receive(&back.record, 2, &generation(0), 0).unwrap().commit().unwrap();
        assert!(second.volumes.remove_copy(id).is_err(), "a primary is no copy");
        first.volumes.remove_copy(id).unwrap();
        assert_eq!(first.volumes.replicas().unwrap(), [(id.to_owned(), "pv".to_owned())], "diverged content is kept");
        first.volumes.forget(id).unwrap();
        assert_eq!(first.volumes.replicas().unwrap(), []);
        drop((increment, back));
        second.storage().delete_volume(id).unwrap();
        assert!(second.storage().catalog().volumes.is_empty());
    }

    #[test]
    fn false_records_and_full_pools_are_refused() {
        let Some(place) = Place::new() else { return };
        let Some(other) = Place::new() else { return };
        let volume = place.storage().create_volume(&wanted("pv")).unwrap();
        let record = place.volumes.increment(&volume.id, None).unwrap().unwrap().record;
        let receive = |record: &str, generation: &str| match other.volumes.receive(record, 1, generation, 0) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        let good = generation(0);
        for (from, to) in [
            (volume.id.as_str(), "../../etc/passwd"),
            ("\"bytes\":4194304", "\"bytes\":0"),
            ("\"bytes\":4194304", "\"bytes\":4194305"),
            ("\"layout\":\"file\"", "\"layout\":\"directory\""),
            ("\"intervalSeconds\":60", "\"intervalSeconds\":1"),
            ("{", ""),
        ] {
            assert!(receive(&record.replacen(from, to, 1), &good).contains("is not valid"), "{to}");
        }
        assert!(receive(&record, "../x").contains("is not valid"));
        let huge = record.replacen("\"bytes\":4194304", &format!("\"bytes\":{}", 32_u64 << 40), 1);
        assert!(receive(&huge, &good).contains("do not fit into the pool"), "{}", receive(&huge, &good));
        // A volume without a copy, or the primary itself, is never written to.
        let own = place.volumes.receive(&record, 1, &good, 0).err().unwrap().to_string();
        assert!(own.contains("is not a copy"), "{own}");
    }
}
