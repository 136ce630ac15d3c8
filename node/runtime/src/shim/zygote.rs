//! The parent of shims: a process with one thread that is started once and forks a shim for each container.
//!
//! A shim that was started by exec would relocate the whole binary for itself: megabytes that no other process shares,
//! and milliseconds. Forked shims share all of that with each other. The zygote exits with its daemon; shims do not
//! need it, and the next daemon starts its own, of its own binary.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{ForkResult, fork};
use serde::{Deserialize, Serialize};

use super::{protocol, shim_main};
use crate::executor::{allow_huge_pages, close_to_others};
use crate::program::Program;

/// The request for a shim; the descriptor that comes along becomes its standard output.
#[derive(Debug, Serialize, Deserialize)]
struct Fork {
    spec: PathBuf,
}

/// Runs the program `zygote`: standard input is the daemon's socket.
pub fn zygote_main() -> i32 {
    // SAFETY: the daemon gave the socket as descriptor 0, and nothing else in this process uses it.
    let daemon = unsafe { UnixStream::from_raw_fd(0) };
    // SAFETY: ignoring is no handler; this process need not reap ended shims.
    if unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }.is_err() {
        return 1;
    }
    allow_huge_pages(false);
    // Shims, and their children, inherit it.
    close_to_others();
    // SAFETY: sets the name of this process in process lists; the kernel named it by a descriptor.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"corten".as_ptr(), 0, 0, 0) };
    while let Ok(Some((request, fds))) = protocol::receive::<Fork>(&daemon) {
        // SAFETY: this process has one thread.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => return become_shim(daemon, &request.spec, fds),
            // The daemon sees the closed descriptor of a shim that did not start.
            Ok(ForkResult::Parent { .. }) | Err(_) => drop(fds),
        }
    }
    0
}

/// Replaces standard input and output by those of a shim, so that the descriptor numbers are never free for anything
/// else.
fn become_shim(daemon: UnixStream, spec: &Path, fds: Vec<OwnedFd>) -> i32 {
    // SAFETY: the shim waits for its children, so their exit must not be ignored any more.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    let (Some(output), Ok(null)) = (fds.first(), std::fs::File::open("/dev/null")) else { return 1 };
    for (stream, number) in [(null.as_raw_fd(), daemon.into_raw_fd()), (output.as_raw_fd(), 1)] {
        // SAFETY: replaces standard descriptors of a process with one thread; the old ones have no owner.
        if unsafe { libc::dup2(stream, number) } < 0 {
            return 1;
        }
    }
    drop((fds, null));
    shim_main(spec)
}

/// The daemon's side: starts the zygote when it is first needed, and again if it has died.
#[derive(Debug)]
pub(crate) struct Zygote {
    program: Program,
    /// The label in process lists, which distinguishes the shims of several runtimes.
    label: PathBuf,
    running: Mutex<Option<(UnixStream, Child)>>,
}

impl Zygote {
    pub fn new(program: Program, label: &Path) -> Self {
        Self { program, label: label.to_path_buf(), running: Mutex::new(None) }
    }

    /// Kills a zygote that no longer forks though it lives: the next shim gets another. Shims go on.
    pub fn replace(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mut child)) = running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Forks a shim that writes its outcome to `output`. Blocks for moments only.
    pub fn fork(&self, spec: &Path, output: &OwnedFd) -> io::Result<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let request = Fork { spec: spec.to_path_buf() };
        if let Some((zygote, _)) = running.as_ref()
            && protocol::send(zygote, &request, &[output.as_raw_fd()]).is_ok()
        {
            return Ok(());
        }
        if let Some((_, mut dead)) = running.take() {
            dead.wait()?;
        }
        let started = self.start()?;
        protocol::send(&started.0, &request, &[output.as_raw_fd()])?;
        *running = Some(started);
        Ok(())
    }

    fn start(&self) -> io::Result<(UnixStream, Child)> {
        let (near, far) = UnixStream::pair()?;
        let child = self
            .program
            .command()
            .arg("zygote")
            .arg(&self.label)
            .env_clear()
            // Two mebibytes at once would be most of a shim's memory; the allocator asks for them where it may.
            .env("MIMALLOC_ALLOW_THP", "0")
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(far)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok((near, child))
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((zygote, mut child)) = running.take() {
            // Without its daemon the zygote exits at once.
            drop(zygote);
            let _ = child.wait();
        }
    }
}
