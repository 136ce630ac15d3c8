//! The programs that make and check file systems, which the node's distribution has: `mkfs.ext4`, `mkfs.xfs`,
//! `e2fsck` and `resize2fs`.
//!
//! Each has a deadline, and its output is kept for the error only.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::{During, Error, Result};

/// The directories of administrators' programs, which the path of a service may lack.
const FURTHER: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
const DEADLINE: Duration = Duration::from_secs(600);
/// The most bytes of a program's complaint that an error shows.
const MOST_OUTPUT: u64 = 4096;

/// Returns the path of a program, if the node has it.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let listed = std::env::split_paths(&path).chain(FURTHER.iter().map(PathBuf::from));
    listed.map(|directory| directory.join(name)).find(|program| program.is_file())
}

/// Returns the path of a program, or the error that names it and its package.
pub fn require(name: &str, package: &str) -> Result<PathBuf> {
    find(name).ok_or_else(|| {
        Error::Precondition(format!("{name} is not installed on this node; install the package {package}"))
    })
}

/// Runs a program until it ends; returns its exit code.
pub fn run(program: &Path, arguments: &[&OsStr]) -> Result<Outcome> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .during(|| format!("start {name}"))?;
    let finished = wait(child.id());
    if !finished.as_ref().is_ok_and(|finished| *finished) {
        let _ = child.kill();
    }
    let status = child.wait().during(|| format!("wait for {name}"))?;
    if !finished? {
        return Err(Error::Internal(format!("{name} did not end within {} seconds", DEADLINE.as_secs())));
    }
    let mut complaint = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        stderr.take(MOST_OUTPUT).read_to_end(&mut complaint).during(|| format!("read the output of {name}"))?;
    }
    let complaint = String::from_utf8_lossy(&complaint).trim().to_owned();
    Ok(Outcome { name, code: status.code(), complaint })
}

/// Waits until a child has ended; reports whether it did so in time.
fn wait(id: u32) -> Result<bool> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Error::Internal(format!("{id} is not a process id")))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).during(|| "watch a program".to_owned())?;
    let mut watched = [PollFd::new(&process, PollFlags::IN)];
    let deadline = Timespec { tv_sec: DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
    let ready = rustix::io::retry_on_intr(|| poll(&mut watched, Some(&deadline)));
    let ready = ready.during(|| "wait for a program".to_owned())?;
    Ok(ready > 0)
}

/// The end of a program.
pub struct Outcome {
    name: String,
    /// The exit code; none if a signal killed the program.
    pub code: Option<i32>,
    complaint: String,
}

impl Outcome {
    /// Returns an error unless the exit code is one of these.
    pub fn expect(self, codes: &[i32]) -> Result<()> {
        match self.code {
            Some(code) if codes.contains(&code) => Ok(()),
            Some(code) => Err(Error::Internal(format!("{} failed with code {code}: {}", self.name, self.complaint))),
            None => Err(Error::Internal(format!("{} was killed: {}", self.name, self.complaint))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_and_the_complaint_are_reported() {
        let shell = find("sh").unwrap();
        let script = |text: &'static str| run(&shell, &["-c".as_ref(), text.as_ref()]).unwrap();
        script("exit 0").expect(&[0]).unwrap();
        script("exit 1").expect(&[0, 1]).unwrap();
        let error = script("echo no such disk >&2; exit 3").expect(&[0]).unwrap_err();
        assert_eq!(error.to_string(), "sh failed with code 3: no such disk");
        let error = script("kill -9 $$").expect(&[0]).unwrap_err();
        assert!(error.to_string().starts_with("sh was killed"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = require("mkfs.no-such-file-system", "no-such-tools").unwrap_err();
        assert!(error.to_string().contains("install the package no-such-tools"), "{error}");
    }
}
