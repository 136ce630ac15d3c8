//! The process of a proxy, which outlives the server process that started it.
//!
//! Each proxy listens on a socket of its own in a directory that only root can enter. The kernel names the process behind a
//! socket (the peer's credentials), so no file with a process id can be stale. A process that holds a connection which the
//! proxy has not closed knows that the proxy still runs.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use super::{DIRECTORY, USER, words};
use crate::{descriptors, private};

/// The time limit of a connection to a proxy.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// The ending of the sockets' names; a number is before it, and later proxies have higher ones.
const EXTENSION: &str = "sock";

/// A running proxy.
pub struct Process {
    pid: Pid,
    handle: AsyncFd<OwnedFd>,
    socket: PathBuf,
}

/// A proxy that was found by its socket, with a connection to it.
pub struct Found {
    pub process: Process,
    pub stream: UnixStream,
    state: String,
}

/// The facts by which a proxy is as a server process would start it.
pub struct Wanted {
    pub arguments: Vec<OsString>,
    /// The directory of its credentials.
    pub directory: PathBuf,
}

impl Process {
    /// Starts a proxy. Its descriptors from [`DIRECTORY`] on are the directory of its credentials, its socket, and the
    /// connection to the proxy that it takes over from.
    pub fn start(
        mut command: Command,
        sockets: &Path,
        directory: OwnedFd,
        predecessor: Option<UnixStream>,
    ) -> Result<Process> {
        private::directory(sockets)?;
        let next = numbered(sockets).last().map_or(1, |(number, _)| number + 1);
        let path = sockets.join(format!("{next}.{EXTENSION}"));
        let mut passed = vec![directory, bind(&path).with_context(|| format!("cannot bind {}", path.display()))?];
        if let Some(stream) = predecessor {
            passed.push(stream.into_std()?.into());
        }
        descriptors::pass(&mut command, DIRECTORY, &passed)?;
        let started = command.spawn().and_then(|child| Process::of(Pid::from_child(&child), path.clone()));
        started.inspect_err(|_| drop(std::fs::remove_file(&path))).context("it cannot be started")
    }

    fn of(pid: Pid, socket: PathBuf) -> io::Result<Process> {
        let descriptor = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        // SAFETY: the value owns the descriptor, and nothing else closes or replaces it.
        let handle = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?;
        Ok(Process { pid, handle, socket })
    }

    /// Waits until the process has ended, and returns how.
    pub async fn ended(&self) -> io::Result<String> {
        drop(self.handle.readable().await?);
        let _ = std::fs::remove_file(&self.socket);
        // A process that an earlier server process started is no child of this one.
        let status = waitid(WaitId::PidFd(self.handle.get_ref().as_fd()), WaitIdOptions::EXITED).ok().flatten();
        Ok(match status.map(|status| (status.exit_status(), status.terminating_signal())) {
            Some((Some(code), _)) => format!("exit status {code}"),
            Some((None, Some(signal))) => format!("signal {signal}"),
            _ => "it is gone".to_owned(),
        })
    }

    /// Stops the process, and waits until it has ended; kills it after the time limit.
    pub async fn stop(&self, patience: Duration) -> Result<()> {
        self.signal(Signal::TERM)?;
        if tokio::time::timeout(patience, self.ended()).await.is_err() {
            self.signal(Signal::KILL)?;
            let ended = tokio::time::timeout(patience, self.ended()).await;
            ensure!(ended.is_ok(), "the proxy of Gateways (pid {}) does not end", self.pid.as_raw_nonzero());
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(self.handle.get_ref(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).context("the proxy of Gateways cannot be stopped"),
        }
    }

    /// Tells the proxy that the server process stops in order.
    pub async fn leave(&self) -> Result<()> {
        let mut stream = tokio::time::timeout(CONNECT_TIME, UnixStream::connect(&self.socket)).await??;
        words::ask(&mut stream, words::STOPPING).await?;
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid.as_raw_nonzero()))
    }
}

impl Found {
    /// Reports whether the proxy serves, or is about to.
    pub fn is_current(&self) -> bool {
        self.state != words::DRAINING
    }

    /// Reports whether the proxy has a table.
    pub fn serves(&self) -> bool {
        self.state == words::SERVING
    }

    /// Sends a word to the proxy.
    pub async fn tell(&mut self, word: &str) -> io::Result<()> {
        words::ask(&mut self.stream, word).await.map(drop)
    }

    /// Reports whether the proxy is the one that this process would start: the same program file, the same arguments, the
    /// same directory and the same network. The file of a running program cannot be overwritten, so the same file is the
    /// same build.
    pub fn is(&self, wanted: &Wanted) -> bool {
        let file = |name: &str| self.process.file(name);
        is_same(&file("exe"), Path::new("/proc/self/exe"))
            && is_same(&file(&format!("fd/{DIRECTORY}")), &wanted.directory)
            && self.shares_network()
            && arguments(&file("cmdline")).is_some_and(|own| own.starts_with(&wanted.arguments))
    }

    /// Reports whether the proxy is in this process's network namespace: only then its sockets are of use.
    pub fn shares_network(&self) -> bool {
        is_same(&self.process.file("ns/net"), Path::new("/proc/self/ns/net"))
    }
}

/// Returns the proxies of a directory of sockets, in the order of their start. Sockets of processes that are gone are
/// removed, and a process that does not answer is killed.
pub async fn find(sockets: &Path) -> Vec<Found> {
    let mut found = Vec::new();
    for (_, path) in numbered(sockets) {
        match greet(&path).await {
            Ok(one) => found.extend(one),
            Err(error) => tracing::warn!("the proxy behind {} cannot be used: {error:#}", path.display()),
        }
    }
    found
}

async fn greet(path: &Path) -> Result<Option<Found>> {
    let connected = tokio::time::timeout(CONNECT_TIME, UnixStream::connect(path)).await;
    let mut stream = match connected.context("it does not accept")? {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let _ = std::fs::remove_file(path);
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let peer = stream.peer_cred()?;
    ensure!(peer.uid() == USER, "it runs as user {}", peer.uid());
    let pid = peer.pid().and_then(Pid::from_raw).context("its process is unknown")?;
    let process = Process::of(pid, path.to_owned())?;
    // An answer that comes after the process was opened shows that it is the process which listens.
    match words::ask(&mut stream, words::HELLO).await {
        Ok(state) => Ok(Some(Found { process, stream, state })),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            process.signal(Signal::KILL)?;
            drop(process.ended().await);
            Err(error).context("it did not answer, and was killed")
        }
        // It has ended.
        Err(_) => Ok(None),
    }
}

/// Returns the sockets with their numbers, in order.
fn numbered(sockets: &Path) -> Vec<(u64, PathBuf)> {
    let entries = std::fs::read_dir(sockets).into_iter().flatten().flatten();
    let number = |path: &Path| {
        let is_socket = path.extension().is_some_and(|extension| extension == EXTENSION);
        path.file_stem().filter(|_| is_socket)?.to_str()?.parse().ok()
    };
    let mut found: Vec<(u64, PathBuf)> =
        entries.filter_map(|entry| Some((number(&entry.path())?, entry.path()))).collect();
    found.sort_unstable();
    found
}

/// Binds a socket. The proxy itself begins to listen, so that the kernel names the proxy to its clients.
fn bind(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Reports whether two paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    let identity = |path: &Path| std::fs::metadata(path).map(identity).ok();
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

/// Returns the arguments of a process, without the name of its program.
fn arguments(cmdline: &Path) -> Option<Vec<OsString>> {
    let line = std::fs::read(cmdline).ok()?;
    let words = line.split(|byte| *byte == 0).skip(1);
    Some(words.map(|word| OsString::from_vec(word.to_vec())).collect())
}
