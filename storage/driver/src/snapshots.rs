//! Takes and deletes snapshots, alone or as a group of one moment.

use std::path::PathBuf;

use corten_storage_plugin::error::{During, Error, Result};
use jiff::Timestamp;

use crate::freezing::Frozen;
use crate::pool::allocated_bytes;
use crate::record::{Content, Group, Record, Snapshot, Volume};
use crate::roles::check_primary;
use crate::storage::{Reservation, Storage};
use crate::volumes::clone_or_create;

/// The most volumes of a group.
const MOST_MEMBERS: usize = 256;

/// A snapshot whose data are not there yet.
struct Planned<'a> {
    volume: Volume,
    snapshot: Snapshot,
    _reservation: Reservation<'a>,
}

impl Storage {
    /// Takes a snapshot of a volume; one of the same name is returned as it is.
    pub fn create_snapshot(&self, name: &str, source: &str, now: Timestamp) -> Result<Snapshot> {
        let _held = self.locks.hold([format!("name {name}"), source.to_owned()])?;
        if let Some(existing) = self.catalog().snapshot_named(name).cloned() {
            return match existing.source == source {
                true => Ok(existing),
                false => Err(Error::AlreadyExists(format!("snapshot {name} exists of another volume"))),
            };
        }
        let planned = self.plan_snapshot(name, source, None, now)?;
        self.take(std::slice::from_ref(&planned))?;
        self.keep(&planned.snapshot)?;
        Ok(planned.snapshot)
    }

    /// Takes snapshots of several volumes at one moment.
    pub fn create_group(&self, name: &str, sources: &[String], now: Timestamp) -> Result<Group> {
        if sources.is_empty() || sources.len() > MOST_MEMBERS {
            return Err(Error::Invalid(format!("a group has 1 to {MOST_MEMBERS} volumes")));
        }
        let _held = self.locks.hold([format!("name {name}")].into_iter().chain(sources.iter().cloned()))?;
        if let Some(existing) = self.catalog().group_named(name).cloned() {
            return self.same_group(existing, sources);
        }
        let id = uuid::Uuid::new_v4().simple().to_string();
        let plan = |source: &String| self.plan_snapshot(&format!("{name}/{source}"), source, Some(&id), now);
        let planned: Vec<Planned<'_>> = sources.iter().map(plan).collect::<Result<_>>()?;
        self.take(&planned)?;
        let snapshots: Vec<Snapshot> = planned.iter().map(|one| one.snapshot.clone()).collect();
        let members = snapshots.iter().map(|snapshot| snapshot.id.clone()).collect();
        let group = Group { id, name: name.to_owned(), created: nanoseconds(now), snapshots: members };
        let kept = self.keep_group(&group, &snapshots);
        if kept.is_err() {
            // The next start removes the rest: the group has no record.
            for snapshot in &snapshots {
                let _ = self.drop_snapshot(snapshot);
            }
        }
        kept?;
        Ok(group)
    }

    fn keep_group(&self, group: &Group, snapshots: &[Snapshot]) -> Result<()> {
        for snapshot in snapshots {
            self.keep(snapshot)?;
        }
        self.records.write(group)?;
        self.catalog().groups.insert(group.id.clone(), group.clone());
        Ok(())
    }

    fn same_group(&self, existing: Group, sources: &[String]) -> Result<Group> {
        let mut known: Vec<String> =
            existing.snapshots.iter().filter_map(|id| Some(self.snapshot(id).ok()?.source)).collect();
        let mut wanted = sources.to_vec();
        known.sort();
        wanted.sort();
        match known == wanted {
            true => Ok(existing),
            false => Err(Error::AlreadyExists(format!("group {} exists of other volumes", existing.name))),
        }
    }

    /// Returns the record of a new snapshot, with room for what it keeps from being reused.
    fn plan_snapshot(&self, name: &str, source: &str, group: Option<&String>, now: Timestamp) -> Result<Planned<'_>> {
        let volume = self.volume(source)?;
        check_primary(&volume)?;
        self.check_cloneable(&volume.content)?;
        let charge = allocated_bytes(&self.data(source, &volume.content))?.min(volume.bytes);
        let reservation = self.reserve(volume.content.place, charge)?;
        let raw = volume.content.raw || volume.block;
        let snapshot = Snapshot {
            id: uuid::Uuid::new_v4().simple().to_string(),
            name: name.to_owned(),
            source: source.to_owned(),
            bytes: volume.bytes,
            charge,
            created: nanoseconds(now),
            group: group.cloned(),
            content: Content { raw, ..volume.content.clone() },
        };
        Ok(Planned { volume, snapshot, _reservation: reservation })
    }

    /// Clones the files of volumes while all are frozen.
    fn take(&self, planned: &[Planned<'_>]) -> Result<()> {
        let taken = (|| {
            let volumes: Vec<&Volume> = planned.iter().map(|one| &one.volume).collect();
            let frozen = Frozen::freeze(self, &volumes)?;
            let mut files = Vec::new();
            for one in planned {
                let from = self.data(&one.volume.id, &one.volume.content);
                files.push(clone_or_create(Some(&from), &self.unfinished(&one.snapshot))?);
            }
            drop(frozen);
            files.iter().try_for_each(|file| file.sync_all().during(|| "write a snapshot".to_owned()))
        })();
        if taken.is_err() {
            for one in planned {
                let _ = std::fs::remove_file(self.unfinished(&one.snapshot));
            }
        }
        taken
    }

    fn unfinished(&self, snapshot: &Snapshot) -> PathBuf {
        self.pool.files(snapshot.content.place).join(format!("{}.new", snapshot.id))
    }

    /// Makes a snapshot known, whose data are there.
    fn keep(&self, snapshot: &Snapshot) -> Result<()> {
        self.records.write(snapshot)?;
        self.commit_data(&snapshot.id, &snapshot.content)?;
        self.catalog().snapshots.insert(snapshot.id.clone(), snapshot.clone());
        Ok(())
    }

    /// Deletes a snapshot; an absent one is the wanted state.
    pub fn delete_snapshot(&self, id: &str) -> Result<()> {
        let _held = self.locks.hold([id.to_owned()])?;
        let Ok(snapshot) = self.snapshot(id) else { return Ok(()) };
        if let Some(group) = &snapshot.group {
            return Err(Error::Invalid(format!("snapshot {id} belongs to the group {group} and is deleted with it")));
        }
        self.drop_snapshot(&snapshot)
    }

    pub fn drop_snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        self.retract_data(&snapshot.id, &snapshot.content)?;
        self.records.remove::<Snapshot>(snapshot.id())?;
        self.catalog().snapshots.remove(&snapshot.id);
        self.remove_retracted(&snapshot.id, snapshot.content.place);
        Ok(())
    }

    /// Deletes a group with its snapshots; an absent one is the wanted state.
    pub fn delete_group(&self, id: &str, snapshots: &[String]) -> Result<()> {
        let Ok(group) = self.group(id) else { return Ok(()) };
        let _held = self.locks.hold([id.to_owned()].into_iter().chain(group.snapshots.iter().cloned()))?;
        check_members(&group, snapshots)?;
        // Without its record, the next start removes what is left of the group.
        self.records.remove::<Group>(id)?;
        self.catalog().groups.remove(id);
        for member in &group.snapshots {
            if let Ok(snapshot) = self.snapshot(member) {
                self.drop_snapshot(&snapshot)?;
            }
        }
        Ok(())
    }

    /// Returns a group and its snapshots.
    pub fn group_with_members(&self, id: &str, snapshots: &[String]) -> Result<(Group, Vec<Snapshot>)> {
        let group = self.group(id)?;
        check_members(&group, snapshots)?;
        let members = group.snapshots.iter().map(|member| self.snapshot(member)).collect::<Result<_>>()?;
        Ok((group, members))
    }

    fn group(&self, id: &str) -> Result<Group> {
        let found = self.catalog().groups.get(id).cloned();
        found.ok_or_else(|| Error::NotFound(format!("group snapshot {id} does not exist")))
    }
}

/// Checks that a caller's list of members, if it has one, is the group's.
fn check_members(group: &Group, snapshots: &[String]) -> Result<()> {
    let mut known = group.snapshots.clone();
    let mut wanted = snapshots.to_vec();
    known.sort();
    wanted.sort();
    match wanted.is_empty() || wanted == known {
        true => Ok(()),
        false => Err(Error::Invalid(format!("the snapshots are not those of the group {}", group.id))),
    }
}

fn nanoseconds(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanosecond()).unwrap_or_default()
}
