//! Starts the processes that unpack layers (`unpacking`), and waits for them.
//!
//! Never trusts an unpacker that did not exit successfully, and never waits for one whose store was removed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::ImageStore;
use super::digest::Digest;
use super::layer::Size;
use super::unpacking::{Answer, COMMAND, HERE, MEMORY, PROCESSOR_SECONDS, Task};
use crate::Error;

/// The longest answer that is read.
const MAX_ANSWER: u64 = 16 << 10;
/// The interval at which the store is checked while a process runs.
const REMOVAL_CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// Runs a process on a blob, until it has exited or the store is removed.
pub(super) fn run(store: &ImageStore, blob: File, digest: &Digest, task: Task<'_>) -> Result<Size, Error> {
    let mut child = start(&store.program, blob, digest, task).map_err(Error::system("start the unpacker"))?;
    if let Err(error) = wait(&child, store) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    finish(child)
}

fn start(program: &Path, blob: File, digest: &Digest, task: Task<'_>) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.arg(COMMAND).arg(digest.to_string());
    match task {
        Task::Unpack(directory) => command.arg(HERE).current_dir(directory),
        Task::Verify => command.current_dir("/"),
    };
    command
        .env_clear()
        // The allocator would reserve a gibibyte of addresses at once; this is in KiB.
        .env("MIMALLOC_ARENA_RESERVE", "16384")
        .env("MIMALLOC_ALLOW_THP", "0")
        .stdin(blob)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

fn wait(child: &Child, store: &ImageStore) -> Result<(), Error> {
    let watch = "watch the unpacker";
    let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).map_err(Error::system(watch))?;
    loop {
        let mut ended = [PollFd::new(&handle, PollFlags::IN)];
        match poll(&mut ended, Some(&REMOVAL_CHECK_INTERVAL)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => store.require()?,
            Ok(_) => return Ok(()),
            Err(errno) => return Err(Error::system(watch)(errno)),
        }
    }
}

/// Reads the answer of a process that has exited.
fn finish(mut child: Child) -> Result<Size, Error> {
    let status = child.wait().map_err(Error::system("wait for the unpacker"))?;
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(MAX_ANSWER).read_to_end(&mut answer).map_err(Error::system("read the unpacker's answer"))?;
    }
    match serde_json::from_slice(&answer) {
        Ok(Answer::Done(size)) if status.success() => Ok(size),
        Ok(Answer::Refused(reason)) => Err(Error::Image(reason)),
        _ => Err(Error::Image(format!(
            "the layer cannot be unpacked within {} MiB of memory and {PROCESSOR_SECONDS} s of processor time ({status})",
            MEMORY >> 20
        ))),
    }
}
