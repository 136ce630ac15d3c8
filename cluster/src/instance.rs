//! The one server process of a data directory: who holds it, and how to stop it.
//!
//! Invariant: the process that holds the lock on `<run dir>/corten.lock` is the server, and its id is in the pid
//! file. A pid file without the lock is of a process that died.

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
use crate::place::Place;
use crate::private;

/// Held by the server for as long as it lives.
pub struct Lock {
    _file: Flock<File>,
    place: Place,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.place.pid());
        let _ = std::fs::remove_file(self.place.data_of_server());
    }
}

/// Takes the place, or says who has it.
pub fn acquire(place: &Place) -> Result<Lock> {
    private::directory(&place.run)?;
    let Some(file) = try_lock(place, "corten")? else {
        anyhow::bail!("a corten server is already running here (pid {})", pid(place).unwrap_or_default());
    };
    let _ = std::fs::remove_file(place.failure());
    std::fs::write(place.pid(), format!("{}\n", std::process::id()))
        .with_context(|| format!("cannot write {}", place.pid().display()))?;
    let data = place.data.to_string_lossy();
    std::fs::write(place.data_of_server(), data.as_bytes())
        .with_context(|| format!("cannot write {}", place.data_of_server().display()))?;
    Ok(Lock { _file: file, place: place.clone() })
}

/// Records why the server of this place ends, for `corten status`. The run directory is not on the disk that may have
/// failed.
pub fn record_failure(place: &Place, why: &str) {
    let text = format!("{}: {}\n", jiff::Timestamp::now(), why.replace('\n', " "));
    if let Err(error) = private::write(&place.failure(), text.as_bytes()) {
        tracing::warn!("why the server ends cannot be recorded: {error:#}");
    }
}

/// Returns when and why the last server of this place failed.
pub fn last_failure(place: &Place) -> Option<String> {
    let text = std::fs::read_to_string(place.failure()).ok()?;
    Some(text.trim().to_owned())
}

/// Takes the place of one component that runs alone, beside a server or an API server.
pub fn acquire_component(place: &Place, component: &str) -> Result<impl Drop + use<>> {
    private::directory(&place.run)?;
    try_lock(place, component)?.with_context(|| format!("a corten {component} is already running here"))
}

/// The id of the running server, if there is one. A server with another data directory is an error.
pub fn running(place: &Place) -> Result<Option<i32>> {
    if !place.run.exists() || try_lock(place, "corten")?.is_some() {
        return Ok(None);
    }
    if let Ok(data) = std::fs::read_to_string(place.data_of_server()) {
        ensure!(
            Path::new(&data) == place.data,
            "the cluster that is running has the data directory {data}, not {}; give --data-dir {data} to use it, or \
             another --run-dir beside it",
            place.data.display()
        );
    }
    Ok(pid(place))
}

/// Returns the flags that a running server was started with; none for a process of another kind.
pub fn flags(pid: i32) -> Result<Option<cli::Server>> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).context("the running server's flags are unknown")?;
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let words = words.map(|word| OsString::from_vec(word.to_vec()));
    match cli::Cli::try_parse_from(words) {
        Ok(cli::Cli { command: cli::Command::Server(running), .. }) => Ok(Some(running)),
        _ => Ok(None),
    }
}

/// Asks the server to stop, and waits until it has; kills it when it does not.
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

fn try_lock(place: &Place, holder: &str) -> Result<Option<Flock<File>>> {
    let path = place.run.join(format!("{holder}.lock"));
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

fn pid(place: &Place) -> Option<i32> {
    std::fs::read_to_string(place.pid()).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_per_place() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { data: dir.path().join("data"), run: dir.path().join("run") };
        assert_eq!(running(&place).unwrap(), None);
        record_failure(&place, "the disk\nfailed");
        assert!(last_failure(&place).unwrap().ends_with(": the disk failed"));
        let lock = acquire(&place).unwrap();
        assert_eq!(last_failure(&place), None);
        assert_eq!(running(&place).unwrap(), Some(std::process::id() as i32));
        assert!(acquire(&place).is_err());
        let other = Place { data: dir.path().join("other"), run: place.run.clone() };
        let refused = running(&other).unwrap_err().to_string();
        assert!(refused.contains("has the data directory") && refused.contains("--run-dir"), "{refused}");
        let kubelet = acquire_component(&place, "kubelet").unwrap();
        assert!(acquire_component(&place, "kubelet").is_err());
        drop((lock, kubelet));
        assert_eq!(running(&place).unwrap(), None);
        acquire(&place).unwrap();
    }
}
