//! The records of CSI volumes on disk, with upstream's paths and its `vol_data.json`, so that a restarted kubelet knows
//! which driver unmounts a volume.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

const FILE: &str = "vol_data.json";
/// The directory of CSI volumes below a pod's `volumes`.
pub const POD_PLUGIN: &str = "kubernetes.io~csi";

/// One volume of one pod. A record is written before the driver is called, and removed after the driver has unpublished
/// the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub driver: String,
    pub handle: String,
    /// The persistent volume's name, or the pod's own name for an inline volume.
    pub spec_name: String,
    pub block: bool,
    /// Whether it is the volume of a claim; an inline volume is never staged or attached.
    pub persistent: bool,
    pub attachment: String,
}

impl Record {
    pub fn unique_name(&self) -> String {
        unique_name(&self.driver, &self.handle)
    }

    /// Returns the target path at which the driver publishes the volume for the pod.
    pub fn target(&self, root: &Path, pod_dir: &Path) -> PathBuf {
        match self.block {
            true => devices(root).join("publish").join(&self.spec_name).join(pod_dir.file_name().unwrap_or_default()),
            false => self.directory(pod_dir).join("mount"),
        }
    }

    /// Returns the staging path at which the driver prepares the volume for all pods of the node.
    pub fn staging(&self, root: &Path) -> PathBuf {
        match self.block {
            true => devices(root).join("staging").join(&self.spec_name),
            false => plugin_dir(root).join(&self.driver).join(hexadecimal(&[&self.handle])).join("globalmount"),
        }
    }

    fn directory(&self, pod_dir: &Path) -> PathBuf {
        pod_dir.join("volumes").join(POD_PLUGIN).join(&self.spec_name)
    }

    pub fn write(&self, pod_dir: &Path, node: &str) -> Result<()> {
        let directory = self.directory(pod_dir);
        fs::create_dir_all(&directory).map_err(Error::file("create", &directory))?;
        let mode = if self.persistent { "Persistent" } else { "Ephemeral" };
        let mut data = BTreeMap::from([
            ("attachmentID", self.attachment.as_str()),
            ("driverName", &self.driver),
            ("nodeName", node),
            ("specVolID", &self.spec_name),
            ("volumeHandle", &self.handle),
            ("volumeLifecycleMode", mode),
        ]);
        if self.block {
            data.insert("volumeMode", "Block");
        }
        let path = directory.join(FILE);
        let text = serde_json::to_vec(&data).unwrap_or_default();
        corten_durable::write(&path, &text, 0o600).map_err(Error::file("write", &path))
    }

    /// Removes the record; the driver must have emptied the target before.
    pub fn remove(&self, root: &Path, pod_dir: &Path) -> Result<()> {
        let target = self.target(root, pod_dir);
        let gone = if target.is_dir() { fs::remove_dir(&target) } else { fs::remove_file(&target) };
        gone.or_else(absent).map_err(Error::file("remove", &target))?;
        let directory = self.directory(pod_dir);
        let file = directory.join(FILE);
        corten_durable::remove(&file).map_err(Error::file("remove", &file))?;
        fs::remove_dir(&directory).or_else(absent).map_err(Error::file("remove", &directory))
    }

    fn read(directory: &Path) -> Option<Record> {
        let data: BTreeMap<String, String> = serde_json::from_slice(&fs::read(directory.join(FILE)).ok()?).ok()?;
        let value = |name: &str| data.get(name).cloned();
        Some(Record {
            driver: value("driverName")?,
            handle: value("volumeHandle")?,
            spec_name: value("specVolID").or_else(|| Some(directory.file_name()?.to_str()?.to_owned()))?,
            block: value("volumeMode").as_deref() == Some("Block"),
            persistent: value("volumeLifecycleMode").as_deref() != Some("Ephemeral"),
            attachment: value("attachmentID").unwrap_or_default(),
        })
    }
}

fn absent(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Returns the volumes of a pod.
pub fn of_pod(pod_dir: &Path) -> Vec<Record> {
    let volumes = fs::read_dir(pod_dir.join("volumes").join(POD_PLUGIN)).into_iter().flatten().flatten();
    volumes.filter_map(|entry| Record::read(&entry.path())).collect()
}

/// Returns the volumes of every pod that has a directory on the node, with that directory.
pub fn of_node(root: &Path) -> Vec<(PathBuf, Record)> {
    let pods = fs::read_dir(root.join("pods")).into_iter().flatten().flatten();
    pods.flat_map(|pod| of_pod(&pod.path()).into_iter().map(move |record| (pod.path(), record))).collect()
}

/// Writes the record beside a staged volume, as upstream does.
pub fn write_staged(record: &Record, staging: &Path) -> Result<()> {
    let directory = if record.block { staging } else { staging.parent().unwrap_or(staging) };
    let data = BTreeMap::from([("driverName", &record.driver), ("volumeHandle", &record.handle)]);
    let path = directory.join(FILE);
    fs::create_dir_all(staging).map_err(Error::file("create", staging))?;
    let text = serde_json::to_vec(&data).unwrap_or_default();
    corten_durable::write(&path, &text, 0o600).map_err(Error::file("write", &path))
}

/// Returns the volumes that are staged or were about to be.
pub fn staged(root: &Path) -> Vec<Record> {
    let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let drivers = entries(&plugin_dir(root)).filter(|path| *path != devices(root));
    let mounted = drivers.flat_map(|driver| entries(&driver).collect::<Vec<_>>()).map(|path| (path, false));
    let blocks = entries(&devices(root).join("staging")).map(|path| (path, true));
    let read = |(path, block): (PathBuf, bool)| Record::read(&path).map(|record| Record { block, ..record });
    mounted.chain(blocks).filter_map(read).collect()
}

/// Removes the staging directory after the driver has unstaged the volume.
pub fn remove_staged(record: &Record, staging: &Path) -> Result<()> {
    let parent = staging.parent().unwrap_or(staging);
    let file = if record.block { staging.join(FILE) } else { parent.join(FILE) };
    corten_durable::remove(&file).map_err(Error::file("remove", &file))?;
    fs::remove_dir(staging).or_else(absent).map_err(Error::file("remove", staging))?;
    if !record.block {
        fs::remove_dir(parent).or_else(absent).map_err(Error::file("remove", parent))?;
    }
    Ok(())
}

fn plugin_dir(root: &Path) -> PathBuf {
    root.join("plugins/kubernetes.io/csi")
}

fn devices(root: &Path) -> PathBuf {
    plugin_dir(root).join("volumeDevices")
}

/// Returns the volume's name in the node's status, which the attach-detach controller uses.
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// Returns the name of the VolumeAttachment of a volume to a node.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", hexadecimal(&[handle, driver, node]))
}

pub fn inline_handle(pod_uid: &str, volume: &str) -> String {
    format!("csi-{}", hexadecimal(&[pod_uid, volume]))
}

fn hexadecimal(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part.as_bytes()));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_written_and_removed_with_its_directories() {
        let root = tempfile::tempdir().unwrap();
        let pod_dir = root.path().join("pods/uid-1");
        for block in [false, true] {
            let record = Record {
                driver: "d.example".into(),
                handle: "h/1".into(),
                spec_name: "pv-1".into(),
                block,
                persistent: true,
                attachment: attachment_name("h/1", "d.example", "n"),
            };
            record.write(&pod_dir, "n").unwrap();
            assert_eq!(of_node(root.path()), [(pod_dir.clone(), record.clone())]);
            let staging = record.staging(root.path());
            write_staged(&record, &staging).unwrap();
            assert!(staging.is_dir());
            let found: Vec<_> =
                staged(root.path()).iter().map(|found| (found.unique_name(), found.staging(root.path()))).collect();
            assert_eq!(found, [(record.unique_name(), staging.clone())]);
            remove_staged(&record, &staging).unwrap();
            assert_eq!(staged(root.path()), []);
            remove_staged(&record, &staging).unwrap();
            assert!(!staging.exists());
            record.remove(root.path(), &pod_dir).unwrap();
            record.remove(root.path(), &pod_dir).unwrap();
            assert!(of_pod(&pod_dir).is_empty());
        }
    }

    #[test]
    fn names_are_upstreams() {
        assert_eq!(unique_name("d", "h"), "kubernetes.io/csi/d^h");
        let name = attachment_name("vol-1", "ebs.csi.aws.com", "node");
        assert_eq!((name.len(), &name[..4]), (68, "csi-"));
    }

    #[test]
    fn something_left_at_the_target_keeps_the_record() {
        let root = tempfile::tempdir().unwrap();
        let pod_dir = root.path().join("pods/uid-1");
        let record = Record {
            driver: "d".into(),
            handle: "h".into(),
            spec_name: "v".into(),
            block: false,
            persistent: false,
            attachment: String::new(),
        };
        record.write(&pod_dir, "n").unwrap();
        fs::create_dir_all(record.target(root.path(), &pod_dir).join("content")).unwrap();
        assert!(record.remove(root.path(), &pod_dir).is_err());
        assert_eq!(of_pod(&pod_dir).len(), 1);
    }
}
