//! Makes, pins and releases the namespaces of a sandbox.
//!
//! A separate thread makes them, because a namespace belongs to a thread until it is pinned, and exits right after: no
//! thread of the daemon's pool ever leaves the node's namespaces.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

use corten_cri::v1;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use super::user_namespace;
use crate::Error;
use crate::id_mapping::Mapping;
use crate::program::Program;

/// The shared memory of a pod, as large as in other runtimes.
const SHARED_MEMORY: &str = "mode=1777,size=65536k";

/// The namespaces to make.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub network: bool,
    pub ipc: bool,
    pub hostname: String,
    pub sysctls: Vec<(String, String)>,
    /// The id mapping of a pod with a user namespace.
    pub users: Option<Mapping>,
}

impl Plan {
    pub fn new(options: &v1::NamespaceOption, hostname: String, sysctls: Vec<(String, String)>) -> Result<Self, Error> {
        let own = |mode: v1::NamespaceMode| mode != v1::NamespaceMode::Node;
        let users = Mapping::of(options)?;
        Ok(Self { network: own(options.network()), ipc: own(options.ipc()), hostname, sysctls, users })
    }
}

/// Makes the namespaces and pins them in `folder`.
pub(crate) fn create(plan: &Plan, program: &Program, folder: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    match &plan.users {
        None => in_thread(|| make(plan, folder))?,
        Some(mapping) => {
            user_namespace::create(plan, mapping, program, folder)?;
            in_thread(|| tune_pinned(plan, folder))?;
        }
    }
    if plan.ipc {
        let shared_memory = folder.join("shm");
        std::fs::create_dir_all(&shared_memory).map_err(Error::file("create", &shared_memory))?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let owner = plan.users.map(|users| format!(",uid={},gid={}", users.uid, users.gid)).unwrap_or_default();
        let options = format!("{SHARED_MEMORY}{owner}");
        mount(Some("shm"), &shared_memory, Some("tmpfs"), flags, Some(options.as_str()))
            .map_err(Error::system("mount shared memory"))?;
    }
    Ok(())
}

fn make(plan: &Plan, folder: &Path) -> Result<(), Error> {
    let mut flags = CloneFlags::empty();
    if plan.network {
        flags |= CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS;
    }
    if plan.ipc {
        flags |= CloneFlags::CLONE_NEWIPC;
    }
    unshare(flags).map_err(Error::system("make namespaces"))?;
    if plan.network {
        nix::unistd::sethostname(&plan.hostname).map_err(Error::system("set the host name"))?;
        bring_loopback_up().map_err(Error::system("bring the loopback device up"))?;
        pin("net", folder)?;
        pin("uts", folder)?;
    }
    if plan.ipc {
        pin("ipc", folder)?;
    }
    tune(plan)
}

/// Sets the sysctls of the namespaces that this thread is in.
fn tune(plan: &Plan) -> Result<(), Error> {
    for (name, value) in &plan.sysctls {
        let path = Path::new("sys").join(name.replace('.', "/"));
        let written = crate::procfs::open(&path).and_then(|mut file| file.write_all(value.as_bytes()));
        written.map_err(Error::file("write sysctl", Path::new("/proc").join(&path)))?;
    }
    Ok(())
}

fn tune_pinned(plan: &Plan, folder: &Path) -> Result<(), Error> {
    if plan.sysctls.is_empty() {
        return Ok(());
    }
    for (kind, on) in [("net", plan.network), ("uts", plan.network), ("ipc", plan.ipc)] {
        if on {
            let path = folder.join(kind);
            let file = File::open(&path).map_err(Error::file("open", &path))?;
            setns(file.as_fd(), CloneFlags::empty()).map_err(Error::system("enter the pod's namespaces"))?;
        }
    }
    tune(plan)
}

/// Mounts a namespace on a file, which keeps it alive without a process.
fn pin(kind: &str, folder: &Path) -> Result<(), Error> {
    pin_from(&format!("/proc/thread-self/ns/{kind}"), &folder.join(kind))
}

pub(crate) fn pin_from(source: &str, target: &Path) -> Result<(), Error> {
    File::create(target).map_err(Error::file("create", target))?;
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|errno| Error::file("pin namespace at", target)(errno.into()))
}

/// Unmounts and removes the pins and mounts in a sandbox's run folder. May be repeated.
pub(crate) fn release(folder: &Path) -> Result<(), Error> {
    for name in ["net", "uts", "ipc", "pid", "shm", "user"] {
        let path = folder.join(name);
        while umount2(&path, MntFlags::MNT_DETACH).is_ok() {}
    }
    match corten_files::remove_tree(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::file("remove", folder)(error)),
        _ => Ok(()),
    }
}

/// Reports whether the pins exist: they do not after a reboot.
pub(crate) fn exist(plan: &Plan, folder: &Path) -> bool {
    let pinned = |name: &str| {
        let path = folder.join(name);
        nix::sys::statfs::statfs(&path).is_ok_and(|found| found.filesystem_type() == nix::sys::statfs::NSFS_MAGIC)
    };
    (!plan.network || pinned("net")) && (!plan.ipc || pinned("ipc")) && (plan.users.is_none() || pinned("user"))
}

pub(crate) fn bring_loopback_up() -> std::io::Result<()> {
    // SAFETY: an all-zero request is valid; its name and flags are set below.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *slot = *byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    let socket = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Inet,
        nix::sys::socket::SockType::Datagram,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: the request lives across the call and has the format of this control.
    let result =
        unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SIOCSIFFLAGS, &raw const request) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Runs a function in a thread that may change its namespaces, because it exits afterwards.
pub(crate) fn in_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        scope.spawn(work).join().unwrap_or_else(|_| Err(Error::State("a thread of the runtime failed".into())))
    })
}

/// Runs a function inside of a pinned network namespace.
pub(crate) fn in_network<T: Send>(
    namespace: Option<&Path>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    in_thread(|| {
        if let Some(path) = namespace {
            let file = File::open(path).map_err(Error::file("open", path))?;
            setns(file.as_fd(), CloneFlags::CLONE_NEWNET).map_err(Error::system("enter the pod's network"))?;
        }
        work()
    })
}
