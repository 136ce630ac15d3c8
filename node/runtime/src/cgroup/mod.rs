//! Control groups: one per container, below the parent that the kubelet names.
//!
//! Speaks cgroup v2, and v1 also when systemd mounts v2 beside it ("hybrid"), because the
//! controllers are on the v1 side there. Only the daemon and the shim of a container touch its
//! group; the kubelet owns the parents, so they are created when missing but never removed.

mod devices;
mod limits;
mod usage;

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) use devices::DeviceRule;
pub(crate) use limits::Limits;
pub(crate) use usage::Usage;

use crate::Error;

const MOUNT_POINT: &str = "/sys/fs/cgroup";

/// How this node mounts control groups.
#[derive(Debug, Clone)]
pub(crate) enum Hierarchy {
    /// One folder per controller, or per set of controllers.
    V1(Vec<Controller>),
    /// One tree.
    V2,
}

/// A mounted v1 hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Controller {
    /// `cpu`, `memory`, … or `name=systemd`; none where version 2 is beside them, without controllers.
    pub names: Vec<String>,
    pub mount_point: PathBuf,
}

impl Hierarchy {
    /// Finds out what the node has.
    pub fn detect() -> Result<Self, Error> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(Error::file("read", "/proc/self/mounts"))?;
        let controllers = v1_controllers(&mounts);
        Ok(if controllers.is_empty() { Self::V2 } else { Self::V1(controllers) })
    }

    pub fn is_v2(&self) -> bool {
        matches!(self, Self::V2)
    }

    /// Where the hierarchies are mounted, for the container's own view of them.
    pub fn mount_points(&self) -> Vec<PathBuf> {
        match self {
            Self::V1(controllers) => controllers.iter().map(|controller| controller.mount_point.clone()).collect(),
            Self::V2 => vec![PathBuf::from(MOUNT_POINT)],
        }
    }

    /// The group at a path from the root of all groups.
    pub fn group(&self, path: &str) -> Group {
        Group { hierarchy: self.clone(), path: path.trim_matches('/').to_string() }
    }
}

/// Reads the mount table; pure.
fn v1_controllers(mounts: &str) -> Vec<Controller> {
    let known = [
        "cpu",
        "cpuacct",
        "cpuset",
        "memory",
        "devices",
        "freezer",
        "blkio",
        "pids",
        "hugetlb",
        "net_cls",
        "net_prio",
        "perf_event",
        "rdma",
        "misc",
    ];
    let mut found: Vec<Controller> = Vec::new();
    let mut beside: Option<Controller> = None;
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, mount_point, kind @ ("cgroup" | "cgroup2"), options, ..] = fields.as_slice() else { continue };
        if *kind == "cgroup2" {
            beside.get_or_insert(Controller { names: Vec::new(), mount_point: PathBuf::from(mount_point) });
            continue;
        }
        let names: Vec<String> = options
            .split(',')
            .filter(|option| known.contains(option) || option.starts_with("name="))
            .map(str::to_string)
            .collect();
        if !names.is_empty() && !found.iter().any(|controller| controller.names == names) {
            found.push(Controller { names, mount_point: PathBuf::from(mount_point) });
        }
    }
    // As systemd does: whoever looks for a pod's processes by version 2, as programs at sockets do, finds them too.
    if !found.is_empty() {
        found.extend(beside);
    }
    found
}

/// One control group, in all hierarchies.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    hierarchy: Hierarchy,
    path: String,
}

impl Group {
    /// Creates the group and its parents.
    pub fn create(&self) -> Result<(), Error> {
        match &self.hierarchy {
            Hierarchy::V1(controllers) => {
                for controller in controllers {
                    let folder = controller.mount_point.join(&self.path);
                    fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
                    if controller.names.iter().any(|name| name == "cpuset") {
                        inherit_cpuset(&controller.mount_point, &self.path)?;
                    }
                }
                Ok(())
            }
            Hierarchy::V2 => self.create_v2(),
        }
    }

    /// A controller works in a v2 group only if every group above passes it on.
    fn create_v2(&self) -> Result<(), Error> {
        let root = PathBuf::from(MOUNT_POINT);
        let available = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let wanted: Vec<String> = available.split_whitespace().map(|name| format!("+{name}")).collect();
        let mut folder = root;
        for part in self.path.split('/') {
            for controller in &wanted {
                // Refused where processes live in the parent, or where the parent lacks it.
                let _ = fs::write(folder.join("cgroup.subtree_control"), controller);
            }
            folder.push(part);
            if !folder.exists() {
                fs::create_dir(&folder).map_err(Error::file("create", &folder))?;
            }
        }
        Ok(())
    }

    /// The files that a process is moved by.
    pub fn procs_files(&self) -> Vec<PathBuf> {
        self.folders().into_iter().map(|folder| folder.join("cgroup.procs")).collect()
    }

    /// The file that counts kills for want of memory.
    pub fn oom_counter(&self) -> Option<PathBuf> {
        let file = if self.hierarchy.is_v2() { "memory.events" } else { "memory.oom_control" };
        Some(self.folder("memory")?.join(file))
    }

    /// Every process in the group.
    pub fn processes(&self) -> Vec<i32> {
        let mut processes: Vec<i32> = self
            .procs_files()
            .iter()
            .filter_map(|path| fs::read_to_string(path).ok())
            .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>())
            .collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// Kills what runs in the group.
    pub fn kill(&self) {
        if self.hierarchy.is_v2() && fs::write(Path::new(MOUNT_POINT).join(&self.path).join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        for process in self.processes() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(process), nix::sys::signal::Signal::SIGKILL);
        }
    }

    /// Removes the group. It must be empty of processes; whether it existed does not matter.
    pub fn remove(&self) -> Result<(), Error> {
        for folder in self.folders() {
            match fs::remove_dir(&folder) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(Error::File { action: "remove", path: folder, source }),
            }
        }
        Ok(())
    }

    fn folders(&self) -> Vec<PathBuf> {
        self.hierarchy.mount_points().iter().map(|mount_point| mount_point.join(&self.path)).collect()
    }

    /// The folder where a controller's files are.
    fn folder(&self, controller: &str) -> Option<PathBuf> {
        match &self.hierarchy {
            Hierarchy::V1(controllers) => {
                let found = controllers.iter().find(|found| found.names.iter().any(|name| name == controller))?;
                Some(found.mount_point.join(&self.path))
            }
            Hierarchy::V2 => Some(Path::new(MOUNT_POINT).join(&self.path)),
        }
    }
}

/// A new v1 cpuset is empty and takes no process: each level gets what the level above has.
fn inherit_cpuset(mount_point: &Path, path: &str) -> Result<(), Error> {
    let mut folder = mount_point.to_path_buf();
    for part in path.split('/') {
        let parent = folder.clone();
        folder.push(part);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let current = fs::read_to_string(folder.join(file)).unwrap_or_default();
            if current.trim().is_empty() {
                let inherited = fs::read_to_string(parent.join(file)).unwrap_or_default();
                let target = folder.join(file);
                fs::write(&target, inherited.trim()).map_err(Error::file("write", &target))?;
            }
        }
    }
    Ok(())
}

/// Reads the count of kills for want of memory from either version's file. Used by the shim.
pub(crate) fn oom_kills(counter: &Path) -> u64 {
    let text = fs::read_to_string(counter).unwrap_or_default();
    let count = |line: &str| line.strip_prefix("oom_kill ").and_then(|count| count.trim().parse().ok());
    text.lines().find_map(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_mounts_are_read_as_v1() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
            cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
            cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let found = v1_controllers(mounts);
        let names: Vec<_> = found.iter().map(|controller| controller.names.join(",")).collect();
        assert_eq!(names, ["cpu,cpuacct", "name=systemd", ""]);
        assert_eq!(found[2].mount_point, Path::new("/sys/fs/cgroup/unified"));
        assert!(v1_controllers("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").is_empty());
    }
}
