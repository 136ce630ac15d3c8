//! The cgroups above the containers: `kubepods`, the QoS classes, and one per pod, on v1, hybrid and v2 hosts, by the
//! cgroup file system alone. The runtime manages the containers' own cgroups.
//!
//! A limit that the host does not allow is logged and skipped: a pod must not fail to start on a host whose cgroups are
//! partly delegated.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use corten_cri::v1 as cri;
use tracing::debug;

/// The v1 controllers that the kubelet manages; the runtime manages the others.
const V1_CONTROLLERS: [&str; 4] = ["cpu", "memory", "pids", "cpuset"];
const V2_CONTROLLERS: &str = "+cpu +memory +pids +cpuset +io";

/// The cgroup file systems of the host.
#[derive(Clone, Debug)]
pub struct Cgroups {
    mount: PathBuf,
    unified: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub cpu_nanoseconds: Option<u64>,
    pub memory_bytes: u64,
    pub working_set_bytes: u64,
}

impl Cgroups {
    /// Detects the cgroup version at `mount`.
    pub fn detect(mount: &Path) -> Cgroups {
        Cgroups { mount: mount.to_path_buf(), unified: mount.join("cgroup.controllers").exists() }
    }

    /// Creates the pod's cgroup with its parents and sets its limits.
    pub fn create(&self, cgroup: &str, resources: &cri::LinuxContainerResources) {
        for hierarchy in self.hierarchies() {
            if let Err(error) = self.make(&hierarchy, cgroup) {
                debug!(%error, cgroup, hierarchy = %hierarchy.display(), "cgroup not made");
                continue;
            }
            self.set(&hierarchy.join(cgroup.trim_start_matches('/')), resources);
        }
    }

    /// Limits the number of processes of the cgroup.
    pub fn limit_processes(&self, cgroup: &str, most: i64) {
        let hierarchy = if self.unified { self.mount.clone() } else { self.mount.join("pids") };
        write(&hierarchy.join(cgroup.trim_start_matches('/')), "pids.max", &most.to_string());
    }

    /// Sets the CPU shares of the cgroup, if it exists.
    pub fn share(&self, cgroup: &str, shares: i64) {
        let inside = cgroup.trim_start_matches('/');
        if self.unified {
            write(&self.mount.join(inside), "cpu.weight", &weight(shares).to_string());
        } else {
            write(&self.mount.join("cpu").join(inside), "cpu.shares", &shares.to_string());
        }
    }

    /// Removes the pod's cgroup and everything below it, also where only the runtime created it.
    pub fn remove(&self, cgroup: &str) {
        let mounted = fs::read_dir(&self.mount).into_iter().flatten().flatten();
        let all = if self.unified { self.hierarchies() } else { mounted.map(|entry| entry.path()).collect() };
        for hierarchy in all {
            remove_tree(&hierarchy.join(cgroup.trim_start_matches('/')));
        }
    }

    /// Returns the usage of a cgroup and its descendants; `None` if it does not exist.
    pub fn usage(&self, cgroup: &str) -> Option<Usage> {
        let folder = |controller: &str| {
            let hierarchy = if self.unified { self.mount.clone() } else { self.mount.join(controller) };
            hierarchy.join(cgroup.trim_start_matches('/'))
        };
        let read = |controller: &str, file: &str| fs::read_to_string(folder(controller).join(file)).ok();
        let (used, inactive) = if self.unified {
            ("memory.current", "inactive_file")
        } else {
            ("memory.usage_in_bytes", "total_inactive_file")
        };
        let memory_bytes: u64 = read("memory", used)?.trim().parse().ok()?;
        let inactive = field(&read("memory", "memory.stat").unwrap_or_default(), inactive).unwrap_or(0);
        let cpu_nanoseconds = if self.unified {
            read("cpu", "cpu.stat").and_then(|text| field(&text, "usage_usec")).map(|microseconds| microseconds * 1000)
        } else {
            ["cpuacct", "cpu", "cpu,cpuacct"].iter().find_map(|name| read(name, "cpuacct.usage")?.trim().parse().ok())
        };
        Some(Usage { cpu_nanoseconds, memory_bytes, working_set_bytes: memory_bytes.saturating_sub(inactive) })
    }

    pub fn is_unified(&self) -> bool {
        self.unified
    }

    /// Reads a file of a cgroup; below `*`, the first that is not empty in any child.
    pub fn read(&self, controller: &str, cgroup: &str, file: &str) -> Option<String> {
        let hierarchy = if self.unified { self.mount.clone() } else { self.mount.join(controller) };
        let folder = hierarchy.join(cgroup.trim_start_matches('/'));
        match file.strip_prefix("*/") {
            None => fs::read_to_string(folder.join(file)).ok(),
            Some(file) => {
                let below = fs::read_dir(folder).ok()?.flatten();
                below.filter_map(|entry| fs::read_to_string(entry.path().join(file)).ok()).find(|text| !text.is_empty())
            }
        }
    }

    fn hierarchies(&self) -> Vec<PathBuf> {
        if self.unified {
            return vec![self.mount.clone()];
        }
        V1_CONTROLLERS.iter().map(|name| self.mount.join(name)).filter(|path| path.is_dir()).collect()
    }

    fn make(&self, hierarchy: &Path, cgroup: &str) -> io::Result<()> {
        let mut path = hierarchy.to_path_buf();
        for part in cgroup.split('/').filter(|part| !part.is_empty()) {
            if self.unified {
                enable_controllers(&path);
            }
            let parent = path.clone();
            path.push(part);
            match fs::create_dir(&path) {
                Ok(()) => inherit_cpuset(&parent, &path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        if self.unified {
            enable_controllers(&path);
        }
        Ok(())
    }

    fn set(&self, path: &Path, resources: &cri::LinuxContainerResources) {
        let quota = resources.cpu_quota;
        let period = resources.cpu_period;
        let memory = resources.memory_limit_in_bytes;
        if self.unified {
            write(path, "cpu.weight", &weight(resources.cpu_shares).to_string());
            if quota > 0 {
                write(path, "cpu.max", &format!("{quota} {period}"));
            }
            if memory > 0 {
                write(path, "memory.max", &memory.to_string());
            }
            return;
        }
        write(path, "cpu.shares", &resources.cpu_shares.to_string());
        if quota > 0 {
            write(path, "cpu.cfs_period_us", &period.to_string());
            write(path, "cpu.cfs_quota_us", &quota.to_string());
        }
        if memory > 0 {
            write(path, "memory.limit_in_bytes", &memory.to_string());
        }
    }
}

/// Returns the value of a line `name number` of a statistics file.
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Converts shares of cgroup v1 (2..262144) to the weight of v2 (1..10000).
fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

fn write(path: &Path, file: &str, value: &str) {
    let file = path.join(file);
    if file.exists()
        && let Err(error) = fs::write(&file, value)
    {
        debug!(%error, file = %file.display(), value, "cgroup setting refused");
    }
}

/// Enables controllers one by one, so that a missing one does not disable the others.
fn enable_controllers(path: &Path) {
    for controller in V2_CONTROLLERS.split(' ') {
        write(path, "cgroup.subtree_control", controller);
    }
}

/// Copies CPUs and memory nodes from the parent: a new v1 cpuset has none, and no task may enter it until it has.
fn inherit_cpuset(parent: &Path, child: &Path) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(value) = fs::read_to_string(parent.join(file))
            && fs::read_to_string(child.join(file)).is_ok_and(|own| own.trim().is_empty())
        {
            write(child, file, value.trim());
        }
    }
}

fn remove_tree(path: &Path) {
    let Ok(entries) = fs::read_dir(path) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_tree(&entry.path());
    }
    if let Err(error) = fs::remove_dir(path) {
        debug!(%error, path = %path.display(), "cgroup not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_weights_at_both_ends() {
        assert_eq!([weight(2), weight(1024), weight(262_144)], [1, 39, 10_000]);
    }

    #[test]
    fn usage_is_read_from_v1_files() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("memory/kubepods");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("memory.usage_in_bytes"), "5000\n").unwrap();
        fs::write(folder.join("memory.stat"), "inactive_file 1\ntotal_inactive_file 2000\n").unwrap();
        let cgroups = Cgroups::detect(root.path());
        let expected = Usage { cpu_nanoseconds: None, memory_bytes: 5000, working_set_bytes: 3000 };
        assert_eq!(cgroups.usage("/kubepods"), Some(expected));
        assert_eq!(cgroups.usage("/none"), None);
    }

    #[test]
    fn pod_cgroups_are_made_in_every_v1_hierarchy_and_removed() {
        let root = tempfile::tempdir().unwrap();
        for controller in ["cpu", "memory"] {
            fs::create_dir(root.path().join(controller)).unwrap();
        }
        let cgroups = Cgroups::detect(root.path());
        cgroups.create("/kubepods/burstable/podx", &cri::LinuxContainerResources::default());
        for controller in ["cpu", "memory"] {
            assert!(root.path().join(controller).join("kubepods/burstable/podx").is_dir());
        }
        cgroups.remove("/kubepods/burstable/podx");
        assert!(!root.path().join("cpu/kubepods/burstable/podx").exists());
        assert!(root.path().join("cpu/kubepods/burstable").is_dir());
    }
}
