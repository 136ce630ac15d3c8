//! Control groups: one per container, below the parent that the kubelet names.
//!
//! Supports cgroup v2, and v1, also when systemd mounts v2 beside it ("hybrid"), because the controllers are on the v1
//! side there. Only the daemon and the shim of a container change its group. The kubelet owns the parents: they are
//! created when missing but never removed.

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

/// The way this node mounts control groups.
#[derive(Debug, Clone)]
pub(crate) enum Hierarchy {
    /// One folder per controller, or per set of controllers.
    V1(Vec<Controller>),
    /// One tree, mounted at this path.
    V2(PathBuf),
}

/// A mounted v1 hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Controller {
    /// `cpu`, `memory`, … or `name=systemd`; empty for a v2 hierarchy beside v1, which has no controllers.
    pub names: Vec<String>,
    pub mount_point: PathBuf,
}

impl Hierarchy {
    /// Detects the hierarchies of the node.
    pub fn detect() -> Result<Self, Error> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(Error::file("read", "/proc/self/mounts"))?;
        let controllers = v1_controllers(&mounts);
        Ok(if controllers.is_empty() { Self::V2(MOUNT_POINT.into()) } else { Self::V1(controllers) })
    }

    pub fn is_v2(&self) -> bool {
        matches!(self, Self::V2(_))
    }

    /// Returns the mount points of the hierarchies, for the container's own view of them.
    pub fn mount_points(&self) -> Vec<PathBuf> {
        match self {
            Self::V1(controllers) => controllers.iter().map(|controller| controller.mount_point.clone()).collect(),
            Self::V2(mount_point) => vec![mount_point.clone()],
        }
    }

    /// Returns the group at a path from the root of all groups.
    pub fn group(&self, path: &str) -> Group {
        Group { hierarchy: self.clone(), path: path.trim_matches('/').to_string() }
    }
}

/// Reads the v1 controllers from the mount table; pure.
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
    // As systemd does: programs that look for a pod's processes by version 2, as BPF programs at sockets do, find them
    // too.
    if !found.is_empty() {
        found.extend(beside);
    }
    found
}

/// A control group, in all hierarchies.
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
            Hierarchy::V2(mount_point) => self.create_v2(mount_point),
        }
    }

    /// Creates the group in v2. A controller works in a v2 group only if every group above enables it for its children.
    fn create_v2(&self, mount_point: &Path) -> Result<(), Error> {
        let root = mount_point.to_path_buf();
        let available = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let wanted: Vec<String> = available.split_whitespace().map(|name| format!("+{name}")).collect();
        let mut folder = root;
        for part in self.path.split('/') {
            for controller in &wanted {
                // Refused where the parent holds processes or lacks the controller.
                let _ = fs::write(folder.join("cgroup.subtree_control"), controller);
            }
            folder.push(part);
            if !folder.exists() {
                fs::create_dir(&folder).map_err(Error::file("create", &folder))?;
            }
        }
        Ok(())
    }

    /// Returns the files that a process is moved by.
    pub fn procs_files(&self) -> Vec<PathBuf> {
        self.folders().into_iter().map(|folder| folder.join("cgroup.procs")).collect()
    }

    /// Returns the file that counts OOM kills.
    pub fn oom_counter(&self) -> Option<PathBuf> {
        let file = if self.hierarchy.is_v2() { "memory.events" } else { "memory.oom_control" };
        Some(self.folder("memory")?.join(file))
    }

    /// Returns every process in the group.
    pub fn processes(&self) -> Vec<i32> {
        let mut processes: Vec<i32> = self
            .procs_files()
            .iter()
            .filter_map(|path| fs::read_to_string(path).ok())
            .flat_map(|content| content.lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>())
            .collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// Kills all processes in the group; returns true if there are none. May be repeated, and must be where processes
    /// are killed one by one: they may fork faster than they are found.
    pub fn kill(&self) -> bool {
        let unified = self.unified().is_some_and(|folder| fs::write(folder.join("cgroup.kill"), "1").is_ok());
        let processes = self.processes();
        if !unified {
            for process in &processes {
                let process = nix::unistd::Pid::from_raw(*process);
                let _ = nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL);
            }
        }
        processes.is_empty()
    }

    /// Returns the group's folder in the tree of version 2, which may also be mounted beside version 1.
    fn unified(&self) -> Option<PathBuf> {
        match &self.hierarchy {
            Hierarchy::V2(mount_point) => Some(mount_point.join(&self.path)),
            Hierarchy::V1(controllers) => {
                let beside = controllers.iter().find(|controller| controller.names.is_empty())?;
                Some(beside.mount_point.join(&self.path))
            }
        }
    }

    /// Removes the group. It must hold no processes; a missing group is no error.
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

    /// Returns the folder of a controller's files.
    fn folder(&self, controller: &str) -> Option<PathBuf> {
        match &self.hierarchy {
            Hierarchy::V1(controllers) => {
                let found = controllers.iter().find(|found| found.names.iter().any(|name| name == controller))?;
                Some(found.mount_point.join(&self.path))
            }
            Hierarchy::V2(mount_point) => Some(mount_point.join(&self.path)),
        }
    }
}

/// Copies the cpuset of each level to the level below: a new v1 cpuset is empty and takes no process.
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

/// Reads the count of OOM kills from either version's file. Used by the shim.
pub(crate) fn oom_kills(counter: &Path) -> u64 {
    let content = fs::read_to_string(counter).unwrap_or_default();
    let count = |line: &str| line.strip_prefix("oom_kill ").and_then(|count| count.trim().parse().ok());
    content.lines().find_map(count).unwrap_or(0)
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

    /// Returns a v2 tree of this machine: the only one, or the one that is mounted beside v1.
    fn unified() -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let unified = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let found = unified.into_iter().find(|fields| fields.get(2) == Some(&"cgroup2"));
        found.and_then(|fields| fields.get(1).map(PathBuf::from)).filter(|_| nix::unistd::geteuid().is_root())
    }

    /// A group for one test, removed also when the test fails.
    struct Own(Group);

    impl Drop for Own {
        fn drop(&mut self) {
            self.0.kill();
            for _ in 0..200 {
                if self.0.remove().is_ok() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let parent = self.0.folders()[0].parent().map(Path::to_path_buf);
            let _ = parent.map(fs::remove_dir);
        }
    }

    fn own(mount_point: PathBuf, name: &str) -> Own {
        Own(Hierarchy::V2(mount_point).group(&format!("corten-test-{}-{name}/leaf", std::process::id())))
    }

    fn join(group: &Group, command: &mut std::process::Command) -> std::process::Child {
        use std::os::unix::process::CommandExt;
        let procs = group.procs_files();
        // SAFETY: opens and writes a file, which is allowed between fork and exec of a command.
        let command = unsafe { command.pre_exec(move || fs::write(&procs[0], "0")) };
        command.spawn().expect("a process in the group")
    }

    #[test]
    fn a_v2_group_takes_processes_counts_and_kills_them() {
        use std::os::unix::process::ExitStatusExt;
        let Some(mount_point) = unified() else { return eprintln!("skipped: no cgroup v2 here, or not root") };
        let own = own(mount_point.clone(), "life");
        let group = &own.0;
        group.create().expect("create");
        let available = fs::read_to_string(mount_point.join("cgroup.controllers")).expect("controllers");
        let passed_on = fs::read_to_string(group.folders()[0].join("cgroup.controllers")).expect("controllers");
        assert_eq!(passed_on.split_whitespace().count(), available.split_whitespace().count(), "{passed_on:?}");
        let limits = Limits { hugepages: vec![("2MB".into(), 4 << 20)], ..Limits::default() };
        group.apply(&limits).expect("limits");
        if passed_on.contains("hugetlb") {
            let written = fs::read_to_string(group.folders()[0].join("hugetlb.2MB.max")).expect("the limit");
            assert_eq!(written.trim(), (4 << 20).to_string());
        }
        let mut child = join(group, std::process::Command::new("sleep").arg("100"));
        assert_eq!(group.processes(), [i32::try_from(child.id()).expect("a pid")]);
        assert_eq!(group.oom_counter(), Some(group.folders()[0].join("memory.events")));
        group.kill();
        assert_eq!(child.wait().expect("wait").signal(), Some(libc::SIGKILL));
        assert!(group.processes().is_empty());
        group.remove().expect("remove");
        group.remove().expect("removing what is gone");
    }

    #[test]
    fn a_v2_group_uses_only_allowed_devices() {
        let Some(mount_point) = unified() else { return eprintln!("skipped: no cgroup v2 here, or not root") };
        let own = own(mount_point, "devices");
        own.0.create().expect("create");
        match own.0.allow_devices(&DeviceRule::defaults()) {
            Err(Error::System { source, .. }) if source.raw_os_error() == Some(libc::ENOSYS) => {
                return eprintln!("skipped: this kernel has no BPF");
            }
            allowed => allowed.expect("allow devices"),
        }
        let opens = |device: &str| {
            let mut shell = std::process::Command::new("sh");
            let script = format!("exec 3<{device}");
            join(&own.0, shell.args(["-c", &script]).stderr(std::process::Stdio::null()))
                .wait()
                .expect("wait")
                .success()
        };
        assert!(opens("/dev/null") && opens("/dev/urandom"));
        assert!(!opens("/dev/kmsg"), "the kernel's log is none of its devices");
    }
}
