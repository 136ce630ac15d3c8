//! The first process of a pod whose containers share process numbers.
//!
//! It holds the pid namespace and reaps orphans, nothing else. It is this binary again, started as
//! `pause`, so no image is needed. The pod's containers see it, and one that may trace others reaches all that it has: so
//! it has an empty root, no descriptor and no power.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, waitpid};

use crate::Error;
use crate::executor::{become_nobody, close_to_others};
use crate::program::Program;

/// The user that upstream's pause image has.
const PAUSE_USER: u32 = 65535;

/// Starts a pause process in a new pid namespace; returns its number on the node.
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

/// The program `pause`: forks into a new pid namespace, tells the number, and leaves the child there.
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

/// Opens the files that the child is moved by, while their paths still mean something.
fn open_groups(cgroup_procs: &[String]) -> std::io::Result<Vec<std::fs::File>> {
    cgroup_procs.iter().map(|path| std::fs::OpenOptions::new().write(true).open(path)).collect()
}

/// Leaves the node's file system for one without a file, in a mount namespace of its own.
fn enter_empty_root() -> nix::Result<()> {
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    // Any folder will do; in this namespace nobody looks for what was there.
    mount(Some("tmpfs"), "/proc", Some("tmpfs"), flags, Some("size=4k,nr_inodes=1"))?;
    nix::unistd::chdir("/proc")?;
    nix::unistd::pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    nix::unistd::chdir("/")
}

/// Waits for children to reap, until it is killed.
fn hold() -> i32 {
    let _ = nix::unistd::setsid();
    let _ = std::io::stdout().flush();
    // SAFETY: closes every descriptor; nothing uses one from here on.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
    if become_nobody(PAUSE_USER).is_err() {
        return 1;
    }
    // Becoming another user opens a process to its like again.
    close_to_others();
    // SAFETY: names this process for whoever reads a process list.
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
