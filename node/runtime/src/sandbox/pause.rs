//! The first process of a pod whose containers share process numbers.
//!
//! It holds the pid namespace and reaps orphans, nothing else. It is this binary again, started as
//! `pause`, so no image is needed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, waitpid};

use crate::Error;

/// Starts a pause process in a new pid namespace; returns its number on the node.
pub(crate) fn start(self_exe: &Path, cgroup_procs: &[std::path::PathBuf]) -> Result<i32, Error> {
    let mut child = Command::new(self_exe)
        .arg("pause")
        .args(cgroup_procs)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Error::file("start", self_exe))?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        let _ = BufReader::new(output).read_line(&mut line);
    }
    let _ = child.wait();
    line.trim().parse().map_err(|_| Error::State("the pause process did not start".into()))
}

/// The program `pause`: forks into a new pid namespace, tells the number, and leaves the child there.
pub fn pause_main(cgroup_procs: &[String]) -> i32 {
    if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWPID).is_err() {
        return 1;
    }
    // SAFETY: this program has one thread.
    match unsafe { nix::unistd::fork() } {
        Ok(nix::unistd::ForkResult::Parent { child }) => {
            for procs in cgroup_procs {
                let _ = std::fs::write(procs, child.to_string());
            }
            println!("{child}");
            0
        }
        Ok(nix::unistd::ForkResult::Child) => hold(),
        Err(_) => 1,
    }
}

/// Waits for children to reap, until it is killed.
fn hold() -> i32 {
    let _ = nix::unistd::setsid();
    let _ = std::io::stdout().flush();
    for standard in 0..3 {
        // SAFETY: closes the standard descriptors, which nothing uses from here on.
        unsafe { libc::close(standard) };
    }
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
