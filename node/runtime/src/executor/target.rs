//! The paths of a container's root that may be mounted over.
//!
//! The kernel's interfaces are in `/proc`, `/sys` and `/sys/fs/cgroup`: a volume there would replace files that masks,
//! read-only paths and security labels rely on. The rule is runc's for `/proc`, extended to the others. It is checked
//! on the path that the kernel has resolved, so that a link of the image cannot bypass it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, PROC_SUPER_MAGIC};

use super::mount::path_of;
use super::{Failure, Step};
use crate::rooted::Rooted;

/// Files of `/proc` that programs such as lxcfs replace by a view of the container's own.
const REPLACEABLE: [&str; 10] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/sys/crypto/fips_enabled",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/uptime",
];

const SYSFS_MAGIC: i64 = 0x6265_6572;
const CGROUP_MAGIC: i64 = 0x27_e0eb;
const CGROUP2_MAGIC: i64 = 0x6367_7270;
/// The inode of the root folder of procfs and sysfs.
const ROOT_INODE: u64 = 1;

/// The kind of the mounted file system, as far as the rule needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Proc,
    Sysfs,
    Cgroups,
    Other,
}

impl Source {
    /// Returns the source of a new file system of this kind.
    pub fn of_filesystem(kind: &str) -> Self {
        match kind {
            "proc" => Self::Proc,
            "sysfs" => Self::Sysfs,
            _ => Self::Other,
        }
    }

    /// Returns the source of a tree of the node.
    pub fn of_tree(tree: &OwnedFd) -> Result<Self, Failure> {
        let found = rustix::fs::fstat(tree).step("look at the source")?;
        let magic = rustix::fs::fstatfs(tree).step("look at the source's file system")?.f_type;
        Ok(match magic {
            magic if magic == PROC_SUPER_MAGIC && found.st_ino == ROOT_INODE => Self::Proc,
            SYSFS_MAGIC if found.st_ino == ROOT_INODE => Self::Sysfs,
            CGROUP_MAGIC | CGROUP2_MAGIC => Self::Cgroups,
            // Where each hierarchy has a mount of its own, the folder of the mounts is a tmpfs.
            _ if nodes_cgroups() == Some((found.st_dev, found.st_ino)) => Self::Cgroups,
            _ => Self::Other,
        })
    }
}

fn nodes_cgroups() -> Option<(u64, u64)> {
    let found = rustix::fs::statat(CWD, "/sys/fs/cgroup", rustix::fs::AtFlags::empty()).ok()?;
    Some((found.st_dev, found.st_ino))
}

/// Refuses a mount point of the root that the source must not cover.
pub(super) fn check(root: &Rooted, place: &OwnedFd, source: Source) -> Result<(), Failure> {
    let target = in_root(root, place)?;
    match allows(&target, source) {
        true => Ok(()),
        false => Err(format!("{} is the kernel's and cannot be mounted over", target.display())),
    }
}

/// Returns the path of a mount point as the container will see it.
pub(super) fn in_root(root: &Rooted, place: &OwnedFd) -> Result<PathBuf, Failure> {
    let find = |fd: &OwnedFd| std::fs::read_link(path_of(fd)).step("find the path of a mount point");
    let outer = find(root.descriptor())?;
    let inner = find(place)?;
    let path = inner.strip_prefix(&outer).step("a mount point outside of the root")?;
    Ok(Path::new("/").join(path))
}

/// Reports whether a path of the container belongs to the kernel: no volume of an image is made there.
pub(super) fn is_kernels(target: &Path) -> bool {
    target == Path::new("/") || target.starts_with("/proc") || target.starts_with("/sys")
}

/// Reports whether the rule allows the mount; pure.
fn allows(target: &Path, source: Source) -> bool {
    let is = |path: &str| target == Path::new(path);
    match source {
        _ if is("/") => false,
        _ if is("/proc") => source == Source::Proc,
        _ if is("/sys") => source == Source::Sysfs,
        _ if is("/sys/fs/cgroup") => source == Source::Cgroups,
        _ if target.starts_with("/proc") => REPLACEABLE.iter().any(|path| is(path)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_paths_take_only_the_kernels_file_systems() {
        use Source::{Cgroups, Other, Proc, Sysfs};
        for (target, source, allowed) in [
            ("/", Other, false),
            ("/data", Other, true),
            ("/process", Other, true),
            ("/proc", Other, false),
            ("/proc", Sysfs, false),
            ("/proc", Proc, true),
            ("/proc/self/attr", Other, false),
            ("/proc/sys", Proc, false),
            ("/proc/cpuinfo", Other, true),
            ("/proc/cpuinfo/x", Other, false),
            ("/proc/sys/kernel/ns_last_pid", Other, true),
            ("/sys", Other, false),
            ("/sys", Sysfs, true),
            ("/sys/fs/cgroup", Other, false),
            ("/sys/fs/cgroup", Cgroups, true),
            ("/sys/fs/bpf", Other, true),
            ("/host/proc", Proc, true),
        ] {
            assert_eq!(allows(Path::new(target), source), allowed, "{source:?} at {target}");
        }
    }

    #[test]
    fn sources_are_known_by_their_file_system_and_not_by_their_names() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir_all(folder.path().join("proc/self")).expect("folders");
        std::os::unix::fs::symlink("/proc", folder.path().join("data")).expect("a link");
        std::os::unix::fs::symlink("/", folder.path().join("all")).expect("a link");
        let root = Rooted::open(folder.path()).expect("the root");
        for (name, target) in [("data", "/proc"), ("data/self", "/proc/self"), ("../../proc", "/proc"), ("all", "/")] {
            let place = root.place(Path::new(name)).expect("a place");
            assert_eq!(in_root(&root, &place).expect("a path"), Path::new(target));
            assert!(check(&root, &place, Source::Other).is_err(), "{name}");
        }
        let tree = |path: &str| Source::of_tree(&std::fs::File::open(path).expect(path).into()).expect(path);
        assert_eq!((tree("/proc"), tree("/sys")), (Source::Proc, Source::Sysfs));
        assert_eq!(tree("/sys/fs/cgroup"), Source::Cgroups);
        assert_eq!((tree("/proc/self"), tree("/tmp")), (Source::Other, Source::Other));
    }
}
