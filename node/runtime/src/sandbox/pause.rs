//! The first process of a pod whose containers share a pid namespace.
//!
//! It holds the pid namespace and reaps orphans, nothing else. It is this binary, started again as `pause`, so no image
//! is needed. The pod's containers see it, and a container that may trace processes reaches its files and descriptors:
//! so it has an empty root, no descriptor and no privileges.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, waitpid};

use crate::Error;
use crate::executor::{become_unprivileged, close_to_others};
use crate::program::Program;

/// The user of upstream's pause image.
const PAUSE_USER: u32 = 65535;

/// Starts a pause process in a new pid namespace; returns its pid on the node.
pub(crate) fn start(program: &Program, cgroup_procs: &[std::path::PathBuf]) -> Result<i32, Error> {
    let mut child = program
        .command()
        .arg("pause")
        .args(cgroup_procs)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Error::file("start", program.path()))?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        let _ = BufReader::new(output).read_line(&mut line);
    }
    let _ = child.wait();
    line.trim().parse().map_err(|_| Error::State("the pause process did not start".into()))
}

/// Runs the program `pause`: forks into a new pid namespace, prints the child's pid, and leaves the child there.
pub fn pause_main(cgroup_procs: &[String]) -> i32 {
    close_to_others();
    let Ok(mut groups) = open_groups(cgroup_procs) else { return 1 };
    if unshare(CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS).is_err() || enter_empty_root().is_err() {
        return 1;
    }
    // SAFETY: this program has one thread.
    match unsafe { nix::unistd::fork() } {
        Ok(nix::unistd::ForkResult::Parent { child }) => {
            for group in &mut groups {
                let _ = group.write_all(child.to_string().as_bytes());
            }
            println!("{child}");
            0
        }
        Ok(nix::unistd::ForkResult::Child) => hold(),
        Err(_) => 1,
    }
}

/// Opens the `cgroup.procs` files of the child, while their paths can still be resolved.
fn open_groups(cgroup_procs: &[String]) -> std::io::Result<Vec<std::fs::File>> {
    cgroup_procs.iter().map(|path| std::fs::OpenOptions::new().write(true).open(path)).collect()
}

/// Enters an empty root file system, in a new mount namespace.
fn enter_empty_root() -> nix::Result<()> {
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    // Any folder will do; nothing in this namespace needs its content.
    mount(Some("tmpfs"), "/proc", Some("tmpfs"), flags, Some("size=4k,nr_inodes=1"))?;
    nix::unistd::chdir("/proc")?;
    nix::unistd::pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    nix::unistd::chdir("/")
}

/// Reaps children until the process is killed.
fn hold() -> i32 {
    let _ = nix::unistd::setsid();
    let _ = std::io::stdout().flush();
    // SAFETY: closes every descriptor; nothing uses one from here on.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
    if become_unprivileged(PAUSE_USER).is_err() {
        return 1;
    }
    // A change of user makes a process traceable by other processes of that user again.
    close_to_others();
    // SAFETY: sets the name of this process in process lists.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"pause".as_ptr(), 0, 0, 0) };
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
        signals.add(signal);
    }
    if signals.thread_block().is_err() {
        return 1;
    }
    loop {
        match signals.wait() {
            Ok(Signal::SIGTERM | Signal::SIGINT) => return 0,
            _ => while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid().is_some()) {},
        }
    }
}
