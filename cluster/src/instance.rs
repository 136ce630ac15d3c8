//! The one server process of a data directory: the lock on it, and how to stop it.
//!
//! Invariant: the process that holds the lock on `<run dir>/corten.lock` is the server, and its id is in the pid file.
//! A pid file without the lock is of a process that died.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use nix::fcntl::{Flock, FlockArg};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cli;
use crate::directories::Directories;
use crate::private;

/// The lock, which the server holds as long as it runs.
pub struct Lock {
    _file: Flock<File>,
    directories: Directories,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.directories.pid());
        let _ = std::fs::remove_file(self.directories.data_of_server());
    }
}

/// Takes the lock; the error names the process that holds it.
pub fn acquire(directories: &Directories) -> Result<Lock> {
    private::directory(&directories.run)?;
    let Some(file) = try_lock(directories, "corten")? else {
        anyhow::bail!("a corten server is already running here (pid {})", pid(directories).unwrap_or_default());
    };
    let _ = std::fs::remove_file(directories.failure());
    std::fs::write(directories.pid(), format!("{}\n", std::process::id()))
        .with_context(|| format!("cannot write {}", directories.pid().display()))?;
    let data = directories.data.to_string_lossy();
    std::fs::write(directories.data_of_server(), data.as_bytes())
        .with_context(|| format!("cannot write {}", directories.data_of_server().display()))?;
    Ok(Lock { _file: file, directories: directories.clone() })
}

/// Records the error with which the server ends, for `corten status`. The run directory is not on the disk that may
/// have failed.
pub fn record_failure(directories: &Directories, why: &str) {
    let text = format!("{}: {}\n", jiff::Timestamp::now(), why.replace('\n', " "));
    if let Err(error) = private::write(&directories.failure(), text.as_bytes()) {
        tracing::warn!("why the server ends cannot be recorded: {error:#}");
    }
}

/// Returns the time and the error of the last failed server of these directories.
pub fn last_failure(directories: &Directories) -> Option<String> {
    let text = std::fs::read_to_string(directories.failure()).ok()?;
    Some(text.trim().to_owned())
}

/// Takes the lock of one component that runs alone, beside a server or an API server.
pub fn acquire_component(directories: &Directories, component: &str) -> Result<impl Drop + use<>> {
    private::directory(&directories.run)?;
    try_lock(directories, component)?.with_context(|| format!("a corten {component} is already running here"))
}

/// Returns the id of the running server, if there is one. A server with another data directory is an error.
pub fn running(directories: &Directories) -> Result<Option<i32>> {
    if !directories.run.exists() || try_lock(directories, "corten")?.is_some() {
        return Ok(None);
    }
    if let Ok(data) = std::fs::read_to_string(directories.data_of_server()) {
        ensure!(
            Path::new(&data) == directories.data,
            "the cluster that is running has the data directory {data}, not {}; give --data-dir {data} to use it, or \
             another --run-dir beside it",
            directories.data.display()
        );
    }
    Ok(pid(directories))
}

/// Returns the flags that a running server was started with; none for a process of another kind.
pub fn flags(pid: i32) -> Result<Option<cli::Server>> {
    match cli::Cli::try_parse_from(command_line(pid)?) {
        Ok(cli::Cli { command: cli::Command::Server(running) | cli::Command::Apiserver(running), .. }) => {
            Ok(Some(running))
        }
        _ => Ok(None),
    }
}

/// Returns the flags of a running server as words, for people.
pub fn words(pid: i32) -> Result<Vec<String>> {
    let words = command_line(pid)?.into_iter().map(|word| word.to_string_lossy().into_owned());
    let mut words: Vec<String> = words.skip(2).collect();
    // This descriptor was that process's own.
    if let Some(at) = words.iter().position(|word| word == "--progress-fd") {
        words.drain(at..words.len().min(at + 2));
    }
    Ok(words)
}

fn command_line(pid: i32) -> Result<Vec<OsString>> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).context("the running server's flags are unknown")?;
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    Ok(words.map(|word| OsString::from_vec(word.to_vec())).collect())
}

/// Stops the server and waits until it has ended; kills it after the time limit.
pub fn stop(pid: i32, patience: Duration) -> Result<()> {
    let Some(id) = Pid::from_raw(pid) else { return Ok(()) };
    let Ok(handle) = pidfd_open(id, PidfdFlags::empty()) else { return Ok(()) };
    pidfd_send_signal(&handle, Signal::TERM).context("cannot stop the server")?;
    if !ended(&handle, patience)? {
        pidfd_send_signal(&handle, Signal::KILL).context("cannot kill the server")?;
        ensure!(ended(&handle, patience)?, "the server (pid {pid}) does not die");
    }
    Ok(())
}

fn ended(handle: &impl AsFd, patience: Duration) -> Result<bool> {
    let mut fds = [rustix::event::PollFd::new(handle, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
    Ok(rustix::event::poll(&mut fds, Some(&timeout))? > 0)
}

fn try_lock(directories: &Directories, holder: &str) -> Result<Option<Flock<File>>> {
    let path = directories.run.join(format!("{holder}.lock"));
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

fn pid(directories: &Directories) -> Option<i32> {
    std::fs::read_to_string(directories.pid()).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_per_run_directory() {
        let dir = tempfile::tempdir().unwrap();
        let directories = Directories { data: dir.path().join("data"), run: dir.path().join("run") };
        assert_eq!(running(&directories).unwrap(), None);
        record_failure(&directories, "the disk\nfailed");
        assert!(last_failure(&directories).unwrap().ends_with(": the disk failed"));
        let lock = acquire(&directories).unwrap();
        assert_eq!(last_failure(&directories), None);
        assert_eq!(running(&directories).unwrap(), Some(std::process::id() as i32));
        assert!(acquire(&directories).is_err());
        let other = Directories { data: dir.path().join("other"), run: directories.run.clone() };
        let refused = running(&other).unwrap_err().to_string();
        assert!(refused.contains("has the data directory") && refused.contains("--run-dir"), "{refused}");
        let kubelet = acquire_component(&directories, "kubelet").unwrap();
        assert!(acquire_component(&directories, "kubelet").is_err());
        drop((lock, kubelet));
        assert_eq!(running(&directories).unwrap(), None);
        acquire(&directories).unwrap();
    }
}
