//! Records of volumes, snapshots and groups of snapshots, one JSON file each.
//!
//! A record is written to a temporary file, synced, renamed and its directory synced: after a crash it is there as a
//! whole, or not at all. The record is the commit point: a volume exists if its record does.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use corten_storage_plugin::error::{During, Error, Result};
use corten_storage_plugin::file_system::FileSystem;
use corten_storage_plugin::targets::remove_file;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::limits::Limits;

/// The most bytes of a record that are read.
const MOST_BYTES: u64 = 1 << 20;

/// The place of a volume's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// The pool's own directory.
    Host,
    /// The xfs image that the driver made in that directory.
    Image,
}

/// The form of a volume's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// A sparse file behind a loop device.
    File,
    /// A plain directory without a size limit, on a node without loop devices or without mkfs.
    Directory,
}

/// The origin of a volume's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Volume(String),
    Snapshot(String),
}

/// The content of a volume or of a snapshot: everything that a clone inherits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Content {
    pub place: Place,
    pub layout: Layout,
    /// The file system that was made on it, if one was.
    pub file_system: Option<FileSystem>,
    /// The size of that file system.
    pub file_system_bytes: u64,
    /// Whether a pod may have written to the raw device. No file system is made over its data.
    pub raw: bool,
    /// The first volume of all that were cloned from each other; they may share blocks.
    pub family: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    pub id: String,
    pub name: String,
    pub bytes: u64,
    /// Whether the volume is for pods as a block device.
    pub block: bool,
    /// The file system that its creator asked for.
    pub wanted_file_system: FileSystem,
    /// Whether the volume exists for one pod and is deleted with it.
    pub ephemeral: bool,
    pub source: Option<Source>,
    /// The limits of its I/O.
    #[serde(default)]
    pub limits: Limits,
    /// This node's part in a volume that has a copy on another node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<Replica>,
    pub content: Content,
}

/// The part of a node in a volume with a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Pods use this one.
    Primary,
    /// The copy, which no pod may use.
    Standby,
}

/// This node's part in a volume with a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replica {
    pub role: Role,
    /// The epoch in which the node got the role.
    pub epoch: u64,
    /// The id of the increment that a copy ends with; empty if it has none, and cannot be promoted.
    #[serde(default)]
    pub generation: String,
    /// The seconds between two increments.
    pub interval_seconds: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    pub id: String,
    pub name: String,
    /// The id of its volume, which may have been deleted since.
    pub source: String,
    /// The size of the volume at the time.
    pub bytes: u64,
    /// The bytes that were allocated at the time: the most that the snapshot keeps from being reused.
    pub charge: u64,
    /// The time at which it was taken, in nanoseconds since 1970.
    pub created: i64,
    /// The group's id if it was taken with others.
    pub group: Option<String>,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    pub id: String,
    pub name: String,
    pub created: i64,
    /// The ids of its snapshots.
    pub snapshots: Vec<String>,
}

/// A kind of record, with its directory.
pub trait Record: Serialize + DeserializeOwned {
    const DIRECTORY: &'static str;

    fn id(&self) -> &str;
}

impl Record for Volume {
    const DIRECTORY: &'static str = "volumes";

    fn id(&self) -> &str {
        &self.id
    }
}

impl Record for Snapshot {
    const DIRECTORY: &'static str = "snapshots";

    fn id(&self) -> &str {
        &self.id
    }
}

impl Record for Group {
    const DIRECTORY: &'static str = "groups";

    fn id(&self) -> &str {
        &self.id
    }
}

/// Reports whether a string is an id that this driver could have given: its own part of a path, and never a way out.
pub fn is_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The directory of all records.
#[derive(Clone, Debug)]
pub struct Records {
    root: PathBuf,
}

impl Records {
    /// Opens the directory, and creates it if it is missing.
    pub fn open(root: &Path) -> Result<Records> {
        for directory in [Volume::DIRECTORY, Snapshot::DIRECTORY, Group::DIRECTORY] {
            let path = root.join(directory);
            std::fs::create_dir_all(&path).during(|| format!("create {}", path.display()))?;
        }
        sync_directory(root)?;
        Ok(Records { root: root.to_owned() })
    }

    /// Writes a record durably, over an older one.
    pub fn write<R: Record>(&self, record: &R) -> Result<()> {
        let directory = self.root.join(R::DIRECTORY);
        let bytes = serde_json::to_vec(record).map_err(|error| Error::Internal(format!("encode a record: {error}")))?;
        write_whole(&directory.join(format!("{}.json", record.id())), &bytes)
    }

    /// Removes a record durably; an absent one is the wanted state.
    pub fn remove<R: Record>(&self, id: &str) -> Result<()> {
        let directory = self.root.join(R::DIRECTORY);
        let path = directory.join(format!("{id}.json"));
        remove_file(&path)?;
        sync_directory(&directory)
    }

    /// Reads all records of a kind, and removes half-written ones.
    pub fn read_all<R: Record>(&self) -> Result<Vec<R>> {
        let directory = self.root.join(R::DIRECTORY);
        let mut records = Vec::new();
        for entry in std::fs::read_dir(&directory).during(|| format!("list {}", directory.display()))? {
            let path = entry.during(|| format!("list {}", directory.display()))?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("tmp") => remove_file(&path)?,
                Some("json") => records.push(read(&path)?),
                _ => {}
            }
        }
        Ok(records)
    }
}

/// Reads one record. A record that cannot be read stops the driver: its volume's data must not be taken for free.
fn read<R: Record>(path: &Path) -> Result<R> {
    let mut bytes = Vec::new();
    let file = File::open(path).during(|| format!("open {}", path.display()))?;
    file.take(MOST_BYTES).read_to_end(&mut bytes).during(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&bytes).map_err(|error| Error::Internal(format!("{} is damaged: {error}", path.display())))
}

/// Writes a file so that a crash leaves the old content or the new, as a whole.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = path.with_extension("tmp");
    let action = || format!("write {}", path.display());
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&temporary).during(action)?;
    file.write_all(bytes).during(action)?;
    file.sync_all().during(action)?;
    std::fs::rename(&temporary, path).during(action)?;
    sync_directory(path.parent().unwrap_or(path))
}

/// Syncs a directory: its renames and removals survive a crash.
pub fn sync_directory(path: &Path) -> Result<()> {
    File::open(path).and_then(|directory| directory.sync_all()).during(|| format!("sync {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(id: &str) -> Group {
        Group { id: id.into(), name: "g".into(), created: 1, snapshots: vec!["a".into()] }
    }

    #[test]
    fn records_are_replaced_and_removed_and_leftovers_are_ignored() {
        let root = tempfile::tempdir().unwrap();
        let records = Records::open(root.path()).unwrap();
        records.write(&group("one")).unwrap();
        records.write(&group("two")).unwrap();
        records.write(&Group { snapshots: Vec::new(), ..group("two") }).unwrap();
        std::fs::write(root.path().join("groups/three.tmp"), b"{\"id\": \"thr").unwrap();
        let mut all: Vec<Group> = records.read_all().unwrap();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        assert_eq!(all, [group("one"), Group { snapshots: Vec::new(), ..group("two") }]);
        assert!(!root.path().join("groups/three.tmp").exists());
        records.remove::<Group>("one").unwrap();
        records.remove::<Group>("one").unwrap();
        assert_eq!(records.read_all::<Group>().unwrap().len(), 1);
    }

    #[test]
    fn a_damaged_record_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let records = Records::open(root.path()).unwrap();
        std::fs::write(root.path().join("volumes/x.json"), b"{").unwrap();
        assert!(records.read_all::<Volume>().unwrap_err().to_string().contains("is damaged"));
    }

    #[test]
    fn ids_are_plain() {
        assert!(is_id(&"0a".repeat(16)));
        for id in ["", "../x", &"0A".repeat(16), &"0a".repeat(17)] {
            assert!(!is_id(id), "{id}");
        }
    }
}
