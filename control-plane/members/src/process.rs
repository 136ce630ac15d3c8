//! One etcd process: a child that does not outlive its parent, and a lock that outlives neither.
//!
//! The kernel sends the parent-death signal when the thread that started the child ends, and the runtime's threads come
//! and go. So a thread of its own starts the child, copies its output to the log, and waits for it.
//!
//! The child inherits the lock of the member's directory. After a parent that was killed, the lock is free only when its
//! etcd has ended, and no second one is started before.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::Error;
use crate::log::Log;

/// The longest time that an etcd may take to end after its parent did.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two attempts to get the lock.
const PAUSE: Duration = Duration::from_millis(50);

/// The right to run the etcd of a directory.
pub struct Lock {
    // Closing the file keeps the lock of a child that inherited it; unlocking would not.
    file: File,
}

impl Lock {
    /// Waits until no etcd runs in the directory.
    pub async fn acquire(directory: &Path) -> Result<Lock, Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(lock) = Lock::attempt(directory)? {
                return Ok(lock);
            }
            if Instant::now() >= deadline {
                return Err(Error::Locked { path: directory.to_owned(), seconds: PATIENCE.as_secs() });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Takes the lock if no process has it.
    fn attempt(directory: &Path) -> Result<Option<Lock>, Error> {
        let path = directory.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.map_err(Error::file("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(Error::file("lock", &path)(error.into())),
        }
    }
}

/// A running etcd.
pub struct Process {
    handle: OwnedFd,
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
}

impl Process {
    /// Starts the command, which inherits the lock. It gets SIGTERM when this process ends.
    pub async fn start(mut command: Command, lock: &Lock, mut log: Log) -> io::Result<Process> {
        let (output, writer) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let held = lock.file.as_raw_fd();
        // SAFETY: umask, prctl and fcntl are async-signal-safe, and nothing is allocated between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // etcd leaves the modes of its raft snapshots to it.
                libc::umask(0o077);
                let signalled = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) == 0;
                match signalled && libc::fcntl(held, libc::F_SETFD, 0) == 0 {
                    true => Ok(()),
                    false => Err(io::Error::last_os_error()),
                }
            });
        }
        let (report_start, start) = oneshot::channel();
        let (report_end, ended) = oneshot::channel();
        thread::Builder::new().name("etcd".to_owned()).spawn(move || {
            let child = spawn(&mut command);
            // Its ends of the pipe would keep the output open.
            drop(command);
            match child {
                Err(error) => drop(report_start.send(Err(error))),
                Ok((mut child, handle)) => {
                    if report_start.send(Ok(handle)).is_err() {
                        drop(child.kill());
                    }
                    copy(output, &mut log);
                    drop(report_end.send(child.wait()));
                }
            }
        })?;
        let handle = start.await.map_err(io::Error::other)??;
        Ok(Process { handle, ended })
    }

    /// Waits until the process has ended.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        (&mut self.ended).await.map_err(io::Error::other)?
    }

    /// Asks the process to end and waits until it has; kills it when it takes longer than `patience`.
    pub async fn stop(mut self, patience: Duration) -> io::Result<()> {
        self.signal(Signal::TERM)?;
        match tokio::time::timeout(patience, self.ended()).await {
            Ok(ended) => ended.map(drop),
            Err(_) => {
                self.signal(Signal::KILL)?;
                self.ended().await.map(drop)
            }
        }
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn spawn(command: &mut Command) -> io::Result<(Child, OwnedFd)> {
    let child = command.spawn()?;
    let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    Ok((child, handle))
}

/// Copies the output until its last writer has ended. A log that cannot be written loses lines and stops nothing.
fn copy(mut output: io::PipeReader, log: &mut Log) {
    let mut buffer = [0; 8192];
    let mut is_written = true;
    loop {
        match output.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => {
                if let Err(error) = log.write(&buffer[..read])
                    && std::mem::replace(&mut is_written, false)
                {
                    tracing::warn!("etcd's log cannot be written: {error}");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn output_goes_to_the_log_and_the_end_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etcd.log");
        let lock = Lock::acquire(folder.path()).await.unwrap();
        let mut process =
            Process::start(shell("echo out; echo err >&2; exit 3"), &lock, Log::open(&path).unwrap()).await.unwrap();
        assert_eq!(process.ended().await.unwrap().code(), Some(3));
        let mut lines: Vec<String> = std::fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["err", "out"]);
        assert!(Process::start(Command::new("/nowhere"), &lock, Log::open(&path).unwrap()).await.is_err());
    }

    #[tokio::test]
    async fn files_of_the_process_are_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::acquire(folder.path()).await.unwrap();
        let log = Log::open(&folder.path().join("etcd.log")).unwrap();
        let file = folder.path().join("snapshot");
        let script = format!("echo x > {}", file.display());
        let mut process = Process::start(shell(&script), &lock, log).await.unwrap();
        process.ended().await.unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[tokio::test]
    async fn a_process_that_does_not_listen_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::acquire(folder.path()).await.unwrap();
        let ready = folder.path().join("ready");
        let script = format!("trap '' TERM; touch {}; while :; do sleep 0.1; done", ready.display());
        let log = Log::open(&folder.path().join("etcd.log")).unwrap();
        let process = Process::start(shell(&script), &lock, log).await.unwrap();
        while !ready.exists() {
            tokio::time::sleep(PAUSE).await;
        }
        process.stop(Duration::from_millis(10)).await.unwrap();
    }

    #[tokio::test]
    async fn the_lock_is_free_only_after_the_process_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::acquire(folder.path()).await.unwrap();
        let log = Log::open(&folder.path().join("etcd.log")).unwrap();
        let process = Process::start(shell("exec sleep 1000"), &lock, log).await.unwrap();
        // The parent's own descriptor closes, as after a kill; the child has its own.
        drop(lock);
        assert!(Lock::attempt(folder.path()).unwrap().is_none());
        process.stop(Duration::from_secs(10)).await.unwrap();
        assert!(Lock::attempt(folder.path()).unwrap().is_some());
    }
}
