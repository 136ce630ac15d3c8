//! Namespaces that a process is born into, joins, or makes.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::Pid;

use super::{Failure, Step};
use crate::spec::Namespaces;

/// The pid namespace of a child, which is decided at its birth.
pub(super) enum Numbering {
    Same,
    New,
    Join(PathBuf),
}

/// Forks into a pid namespace. Returns `None` in the child.
pub(super) fn fork(numbering: &Numbering) -> Result<Option<Pid>, Failure> {
    let Numbering::Join(path) = numbering else {
        let new = if matches!(numbering, Numbering::New) { libc::CLONE_NEWPID } else { 0 };
        return clone(new);
    };
    // setns applies to children only; this process itself stays, and returns for its next child.
    let home = std::fs::File::open("/proc/self/ns/pid").step("open the own pid namespace")?;
    let target = std::fs::File::open(path).step(format!("open pid namespace {}", path.display()))?;
    setns(target.as_fd(), CloneFlags::CLONE_NEWPID).step("join the pid namespace")?;
    let child = clone(0);
    if !matches!(child, Ok(None)) {
        setns(home.as_fd(), CloneFlags::CLONE_NEWPID).step("return to the own pid namespace")?;
    }
    child
}

/// Forks a process whose parent is this process's own. Returns `None` in the child.
pub(super) fn fork_sibling() -> Result<Option<Pid>, Failure> {
    clone(libc::CLONE_PARENT)
}

fn clone(flags: libc::c_int) -> Result<Option<Pid>, Failure> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without a stack of its own the child continues on a copy of ours, as with fork; there is one thread, so
    // no lock is held by a thread that the child does not have.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        0 => Ok(None),
        pid if pid > 0 => Ok(Some(Pid::from_raw(pid as i32))),
        _ => Err(format!("fork: {}", std::io::Error::last_os_error())),
    }
}

/// Opens the pod's user namespace, while its path can still be resolved.
pub(super) fn open_users(path: Option<&Path>) -> Result<Option<OwnedFd>, Failure> {
    path.map(|path| std::fs::File::open(path).map(OwnedFd::from).step(format!("open {}", path.display()))).transpose()
}

/// Joins the pod's user namespace. From here on this process has privileges in the pod's namespaces only, so all
/// changes of the node's mounts are done by now.
pub(super) fn join_users(users: Option<OwnedFd>) -> Result<(), Failure> {
    match users {
        Some(users) => setns(users.as_fd(), CloneFlags::CLONE_NEWUSER).step("join the user namespace"),
        None => Ok(()),
    }
}

/// Joins the namespaces that the pod's containers share.
pub(super) fn join_sandbox(namespaces: &Namespaces) -> Result<(), Failure> {
    let joined = [
        (&namespaces.network, CloneFlags::CLONE_NEWNET),
        (&namespaces.ipc, CloneFlags::CLONE_NEWIPC),
        (&namespaces.uts, CloneFlags::CLONE_NEWUTS),
    ];
    for (path, kind) in joined {
        if let Some(path) = path {
            join(path, kind)?;
        }
    }
    Ok(())
}

/// Joins all namespaces of a running container, the mount namespace last: paths change with it. The process keeps its
/// pid; its children are born in the container's pid namespace.
pub(super) fn join_container(init: Pid, private_cgroup: bool) -> Result<(), Failure> {
    let mut kinds = vec![
        ("net", CloneFlags::CLONE_NEWNET),
        ("ipc", CloneFlags::CLONE_NEWIPC),
        ("uts", CloneFlags::CLONE_NEWUTS),
        ("pid", CloneFlags::CLONE_NEWPID),
        ("mnt", CloneFlags::CLONE_NEWNS),
    ];
    if private_cgroup {
        kinds.insert(0, ("cgroup", CloneFlags::CLONE_NEWCGROUP));
    }
    for (name, kind) in kinds {
        join(Path::new(&format!("/proc/{init}/ns/{name}")), kind)?;
    }
    Ok(())
}

fn join(path: &Path, kind: CloneFlags) -> Result<(), Failure> {
    let namespace = std::fs::File::open(path).step(format!("open namespace {}", path.display()))?;
    setns(namespace.as_fd(), kind).step(format!("join namespace {}", path.display()))
}

/// Makes a mount namespace, and a cgroup namespace if the container shall see only its own group.
pub(super) fn new_mount_namespace(private_cgroup: bool) -> Result<(), Failure> {
    let mut flags = CloneFlags::CLONE_NEWNS;
    if private_cgroup {
        flags |= CloneFlags::CLONE_NEWCGROUP;
    }
    unshare(flags).step("make a mount namespace")
}

/// Stops propagation: from here on no mount of the container appears on the node. Sources of bind mounts were taken
/// before, so that those which shall propagate still do.
pub(super) fn detach_propagation() -> Result<(), Failure> {
    let flags = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).step("detach mount propagation")
}

/// Closes everything but the standard streams on exec.
pub(super) fn close_on_exec() {
    // SAFETY: only marks descriptors; none is closed before exec.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}
