//! All records in memory, and the count of what was promised at each place of the pool.
//!
//! *Invariant: the promised bytes are the sizes of all volumes, the charges of all snapshots, and the reservations of
//! calls that are under way. A call reserves before it writes.*

use std::collections::{BTreeMap, HashMap};

use crate::record::{Group, Place, Snapshot, Volume};

#[derive(Default)]
pub struct Catalog {
    pub volumes: BTreeMap<String, Volume>,
    pub snapshots: BTreeMap<String, Snapshot>,
    pub groups: BTreeMap<String, Group>,
    reserved: BTreeMap<Place, u64>,
}

impl Catalog {
    pub fn volume_named(&self, name: &str) -> Option<&Volume> {
        self.volumes.values().find(|volume| volume.name == name)
    }

    pub fn snapshot_named(&self, name: &str) -> Option<&Snapshot> {
        self.snapshots.values().find(|snapshot| snapshot.name == name)
    }

    pub fn group_named(&self, name: &str) -> Option<&Group> {
        self.groups.values().find(|group| group.name == name)
    }

    /// Returns the bytes that were promised at a place.
    pub fn promised(&self, place: Place) -> u64 {
        let volumes = self.volumes.values().filter(|volume| volume.content.place == place).map(|volume| volume.bytes);
        let snapshots = self.snapshots.values().filter(|snapshot| snapshot.content.place == place);
        let reserved = self.reserved.get(&place).copied().unwrap_or_default();
        volumes.chain(snapshots.map(|snapshot| snapshot.charge)).fold(reserved, u64::saturating_add)
    }

    /// Reserves bytes if they fit into the capacity; returns the room that there is if they do not.
    pub fn reserve(&mut self, place: Place, bytes: u64, capacity: u64) -> Result<(), u64> {
        let room = capacity.saturating_sub(self.promised(place));
        if bytes > room {
            return Err(room);
        }
        let reserved = self.reserved.entry(place).or_default();
        *reserved = reserved.saturating_add(bytes);
        Ok(())
    }

    /// Gives up a reservation, because its record is there, or never will be.
    pub fn release(&mut self, place: Place, bytes: u64) {
        let reserved = self.reserved.entry(place).or_default();
        *reserved = reserved.saturating_sub(bytes);
    }

    /// Returns the least that all data at a place can occupy, by what each file has: of files that were cloned from
    /// each other, and may share all blocks, only the largest counts.
    pub fn least_allocated(&self, place: Place, allocated: impl Fn(&str) -> u64) -> u64 {
        let volumes = self.volumes.values().map(|volume| (volume.id.as_str(), &volume.content));
        let snapshots = self.snapshots.values().map(|snapshot| (snapshot.id.as_str(), &snapshot.content));
        let mut families: HashMap<&str, u64> = HashMap::new();
        for (id, content) in volumes.chain(snapshots).filter(|(_, content)| content.place == place) {
            let largest = families.entry(content.family.as_str()).or_default();
            *largest = allocated(id).max(*largest);
        }
        families.into_values().fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::record::{Content, Layout};
    use corten_storage_plugin::file_system::FileSystem;

    fn content(place: Place, family: &str) -> Content {
        Content {
            place,
            layout: Layout::File,
            file_system: None,
            file_system_bytes: 0,
            raw: false,
            family: family.to_owned(),
        }
    }

    fn volume(id: &str, place: Place, family: &str, bytes: u64) -> Volume {
        Volume {
            id: id.into(),
            name: format!("name of {id}"),
            bytes,
            block: false,
            wanted_file_system: FileSystem::Ext4,
            ephemeral: false,
            source: None,
            limits: Limits::default(),
            replica: None,
            content: content(place, family),
        }
    }

    fn snapshot(id: &str, family: &str, charge: u64) -> Snapshot {
        Snapshot {
            id: id.into(),
            name: format!("name of {id}"),
            source: family.into(),
            bytes: 100,
            charge,
            created: 0,
            group: None,
            content: content(Place::Image, family),
        }
    }

    fn catalog() -> Catalog {
        let mut catalog = Catalog::default();
        for volume in [
            volume("a", Place::Image, "a", 100),
            volume("b", Place::Image, "a", 100),
            volume("c", Place::Host, "c", 50),
        ] {
            catalog.volumes.insert(volume.id.clone(), volume);
        }
        catalog.snapshots.insert("s".into(), snapshot("s", "a", 30));
        catalog
    }

    #[test]
    fn volumes_count_in_full_and_snapshots_what_they_keep() {
        let catalog = catalog();
        assert_eq!(catalog.promised(Place::Image), 230);
        assert_eq!(catalog.promised(Place::Host), 50);
    }

    #[test]
    fn nothing_is_promised_twice() {
        let mut catalog = catalog();
        assert_eq!(catalog.reserve(Place::Image, 60, 300), Ok(()));
        assert_eq!(catalog.reserve(Place::Image, 11, 300), Err(10));
        assert_eq!(catalog.reserve(Place::Image, 10, 300), Ok(()));
        catalog.release(Place::Image, 60);
        assert_eq!(catalog.reserve(Place::Image, 61, 300), Err(60));
        assert_eq!(catalog.reserve(Place::Image, u64::MAX, 300), Err(60));
    }

    #[test]
    fn clones_may_share_all_blocks() {
        let catalog = catalog();
        let allocated = |id: &str| match id {
            "a" => 20,
            "b" => 25,
            "s" => 15,
            _ => 7,
        };
        assert_eq!(catalog.least_allocated(Place::Image, allocated), 25);
        assert_eq!(catalog.least_allocated(Place::Host, allocated), 7);
    }

    #[test]
    fn records_are_found_by_name() {
        let catalog = catalog();
        assert_eq!(catalog.volume_named("name of b").map(|volume| volume.id.as_str()), Some("b"));
        assert_eq!(catalog.snapshot_named("name of b"), None);
    }
}
