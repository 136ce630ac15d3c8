//! Limits of the I/O of volumes: bytes and operations per second, by the control groups of pods.
//!
//! The kernel limits the I/O of a group on a device, and a volume has a device of its own: so each pod that uses the volume
//! gets the limits in its group. Pods are known by the mounts of the volume, below `pods/UID` in the kubelet's directory,
//! and groups by their names, `podUID`. Control groups of version 1 limit reads, and writes around the page cache, of each
//! container; those of version 2 limit all of the pod.
//!
//! *Invariant: a limit that this node cannot enforce is refused.*

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use corten_storage_plugin::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// The deepest level at which a pod's group is looked for.
pub const MOST_DEPTH: usize = 8;
/// The least number of bytes per second: with less a mount would seem to hang.
const LEAST_BYTES: u64 = 64 << 10;

/// The limits of a volume, per second; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub read_operations: u64,
    pub write_operations: u64,
}

impl Limits {
    /// Parses the parameters of a VolumeAttributesClass.
    pub fn parse(parameters: &HashMap<String, String>) -> Result<Limits> {
        let mut limits = Limits::default();
        for (name, value) in parameters {
            let (field, least) = match name.as_str() {
                "readBytesPerSecond" => (&mut limits.read_bytes, LEAST_BYTES),
                "writeBytesPerSecond" => (&mut limits.write_bytes, LEAST_BYTES),
                "readOperationsPerSecond" => (&mut limits.read_operations, 1),
                "writeOperationsPerSecond" => (&mut limits.write_operations, 1),
                _ => return Err(Error::Invalid(format!("the mutable parameter {name} is not known"))),
            };
            let parsed = corten_meta::Quantity::parse(value).ok().and_then(|found| u64::try_from(found.value()).ok());
            *field = parsed.filter(|number| *number >= least).ok_or_else(|| {
                Error::Invalid(format!("the parameter {name} is {value:?}, and not a quantity of at least {least}"))
            })?;
        }
        Ok(limits)
    }

    /// Refuses limits that this node cannot enforce.
    pub fn check(self) -> Result<Limits> {
        match self == Limits::default() || Throttle::find().is_some() {
            true => Ok(self),
            false => {
                Err(Error::Invalid("this node cannot limit I/O: it has no control groups for it (io, blkio)".into()))
            }
        }
    }
}

/// The hierarchy of control groups that limits I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Throttle {
    V1(PathBuf),
    V2(PathBuf),
}

impl Throttle {
    pub fn find() -> Option<Throttle> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let controllers = |path: &Path| std::fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
        Throttle::among(&mounts, controllers)
    }

    /// Finds the hierarchy in the mount table.
    fn among(mounts: &str, controllers: impl Fn(&Path) -> String) -> Option<Throttle> {
        mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, path, kind, options, ..] = fields.as_slice() else { return None };
            let path = PathBuf::from(path);
            match *kind {
                "cgroup" if options.split(',').any(|option| option == "blkio") => Some(Throttle::V1(path)),
                "cgroup2" if controllers(&path).split_whitespace().any(|one| one == "io") => Some(Throttle::V2(path)),
                _ => None,
            }
        })
    }

    pub fn root(&self) -> &Path {
        match self {
            Throttle::V1(root) | Throttle::V2(root) => root,
        }
    }

    /// Returns the groups in which the limits of a pod are written. In version 1 the limits of a group do not hold for the
    /// groups in it, which are the containers'.
    pub fn limited(&self, pod: PathBuf) -> Vec<PathBuf> {
        let mut groups = vec![pod];
        if let Throttle::V1(_) = self {
            let entries = groups.iter().filter_map(|group| std::fs::read_dir(group).ok()).flatten().flatten();
            let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            let containers: Vec<PathBuf> = folders.map(|entry| entry.path()).collect();
            groups.extend(containers);
        }
        groups
    }

    /// Returns the files of a group and their content, for a device.
    fn files(&self, device: &str, limits: &Limits) -> Vec<(&'static str, String)> {
        match self {
            Throttle::V1(_) => [
                ("blkio.throttle.read_bps_device", limits.read_bytes),
                ("blkio.throttle.write_bps_device", limits.write_bytes),
                ("blkio.throttle.read_iops_device", limits.read_operations),
                ("blkio.throttle.write_iops_device", limits.write_operations),
            ]
            .map(|(file, limit)| (file, format!("{device} {limit}")))
            .to_vec(),
            Throttle::V2(_) => {
                let shown = |limit: u64| if limit == 0 { "max".to_owned() } else { limit.to_string() };
                let line = format!(
                    "{device} rbps={} wbps={} riops={} wiops={}",
                    shown(limits.read_bytes),
                    shown(limits.write_bytes),
                    shown(limits.read_operations),
                    shown(limits.write_operations)
                );
                vec![("io.max", line)]
            }
        }
    }

    /// Writes the limits of a device into the group of a pod. A line that is there already is not written again: the kernel
    /// would begin to count anew.
    pub fn write(&self, group: &Path, device: &str, limits: &Limits) -> std::io::Result<()> {
        for (file, line) in self.files(device, limits) {
            let path = group.join(file);
            let current = std::fs::read_to_string(&path)?;
            let is_absent = line.ends_with(" 0") && !current.lines().any(|one| one.starts_with(&format!("{device} ")));
            if !is_absent && !current.lines().any(|one| one.trim() == line) {
                std::fs::write(&path, line)?;
            }
        }
        Ok(())
    }
}

/// Returns the uid of the pod that a mount is for: the part after `pods` in the kubelet's directory.
pub fn pod_of(target: &Path) -> Option<&str> {
    let mut parts = target.iter().filter_map(|part| part.to_str());
    parts.find(|part| *part == "pods")?;
    parts.next()
}

/// Finds the group of a pod: `podUID`, or as systemd's slices are named.
pub fn group_of(directory: &Path, uid: &str, depth: usize) -> Option<PathBuf> {
    let plain = format!("pod{uid}");
    let slice = format!("-pod{}.slice", uid.replace('-', "_"));
    let entries = std::fs::read_dir(directory).ok()?.flatten();
    let folders: Vec<PathBuf> =
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect();
    let is_its = |path: &&PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name == plain || name.ends_with(&slice)
    };
    let found = folders.iter().find(is_its).cloned();
    found.or_else(|| match depth {
        0 => None,
        _ => folders.iter().find_map(|folder| group_of(folder, uid, depth - 1)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, value: &str) -> Result<Limits> {
        Limits::parse(&HashMap::from([(name.to_owned(), value.to_owned())]))
    }

    #[test]
    fn limits_are_quantities_of_known_parameters() {
        assert_eq!(parse("readBytesPerSecond", "1Mi").unwrap().read_bytes, 1 << 20);
        assert_eq!(parse("writeOperationsPerSecond", "100").unwrap().write_operations, 100);
        for (name, value) in [("iops", "1"), ("readBytesPerSecond", "1"), ("readBytesPerSecond", "fast")] {
            assert!(matches!(parse(name, value), Err(Error::Invalid(_))), "{name} {value}");
        }
    }

    #[test]
    fn the_hierarchy_with_block_io_is_used() {
        let v1 = "cgroup /c/memory cgroup rw,memory 0 0\ncgroup /c/blkio cgroup rw,blkio 0 0\n";
        assert_eq!(Throttle::among(v1, |_| String::new()), Some(Throttle::V1("/c/blkio".into())));
        let v2 = "cgroup2 /c cgroup2 rw 0 0\n";
        assert_eq!(Throttle::among(v2, |_| "cpu io".to_owned()), Some(Throttle::V2("/c".into())));
        assert_eq!(Throttle::among(v2, |_| "cpu memory".to_owned()), None);
        let limits = Limits { read_bytes: 5, ..Limits::default() };
        let lines = Throttle::V2("/c".into()).files("7:3", &limits);
        assert_eq!(lines, [("io.max", "7:3 rbps=5 wbps=max riops=max wiops=max".to_owned())]);
    }

    #[test]
    fn the_group_of_a_pod_is_found_by_its_uid() {
        let root = tempfile::tempdir().unwrap();
        for group in ["kubepods/burstable/poda-1/c", "kubepods.slice/kubepods-pod_b.slice/kubepods-podb_2.slice"] {
            std::fs::create_dir_all(root.path().join(group)).unwrap();
        }
        let found = |uid: &str| group_of(root.path(), uid, MOST_DEPTH);
        assert_eq!(found("a-1"), Some(root.path().join("kubepods/burstable/poda-1")));
        assert!(found("b-2").unwrap().ends_with("kubepods-podb_2.slice"));
        assert_eq!(found("c"), None);
        let pod = found("a-1").unwrap();
        let v1 = Throttle::V1(root.path().to_owned());
        assert_eq!(v1.limited(pod.clone()), [pod.clone(), pod.join("c")]);
        assert_eq!(Throttle::V2(root.path().to_owned()).limited(pod.clone()), [pod]);
        let target = Path::new("/data/kubelet/pods/a-1/volumes/kubernetes.io~csi/pvc-1/mount");
        assert_eq!(pod_of(target), Some("a-1"));
        assert_eq!(pod_of(Path::new("/data/kubelet/plugins/x/globalmount")), None);
    }

    #[test]
    fn limits_are_written_once_and_taken_back() {
        let root = tempfile::tempdir().unwrap();
        let throttle = Throttle::V1(root.path().to_owned());
        let limits = Limits { read_bytes: 1 << 20, ..Limits::default() };
        for (file, _) in throttle.files("7:1", &limits) {
            std::fs::write(root.path().join(file), "").unwrap();
        }
        let read = |file: &str| std::fs::read_to_string(root.path().join(file)).unwrap();
        throttle.write(root.path(), "7:1", &limits).unwrap();
        assert_eq!(read("blkio.throttle.read_bps_device"), "7:1 1048576");
        assert_eq!(read("blkio.throttle.write_bps_device"), "");
        throttle.write(root.path(), "7:1", &Limits::default()).unwrap();
        assert_eq!(read("blkio.throttle.read_bps_device"), "7:1 0");
    }
}
