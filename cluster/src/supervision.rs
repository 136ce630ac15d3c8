//! The supervisor of this process, systemd or one like it: notifications of its state, a watchdog, and listening sockets
//! that outlive it.
//!
//! The protocol is `sd_notify(3)`: datagrams to the socket that `NOTIFY_SOCKET` names. A listening socket is given to the
//! supervisor, which hands it to the next process of the service: while the binary is exchanged connections wait in the
//! socket's queue, and none is refused.
//!
//! Must never: leave the supervisor's variables to child processes, which would speak for this one.

use std::ffi::OsString;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::descriptors;

/// The first descriptor that a supervisor hands over.
const FIRST: RawFd = 3;
/// The most descriptors that are taken over.
const MOST: usize = 64;
/// The variables of the protocol.
const VARIABLES: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// The supervisor of this process, as the environment describes it.
static SUPERVISOR: OnceLock<Supervisor> = OnceLock::new();

/// Whether a signal asked this process to stop.
static IS_STOPPING: AtomicBool = AtomicBool::new(false);

/// The supervisor of a process.
#[derive(Default)]
struct Supervisor {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
    /// The variables, for a process that replaces this one.
    variables: Vec<(&'static str, OsString)>,
    /// The listening sockets of the process before this one.
    inherited: Mutex<Vec<OwnedFd>>,
    /// Copies of this process's listening sockets, for one that replaces it.
    kept: Mutex<Vec<OwnedFd>>,
}

/// Reads the supervisor's variables and removes them. Called once, before the process has a second thread.
pub fn adopt() {
    let text = |name: &str| std::env::var(name).ok();
    let is_own = |name: &str| text(name).is_none_or(|pid| pid == std::process::id().to_string());
    let interval = text("WATCHDOG_USEC").filter(|_| is_own("WATCHDOG_PID"));
    let watchdog = interval.and_then(|usec| usec.parse().ok()).map(Duration::from_micros);
    let count = text("LISTEN_FDS").filter(|_| is_own("LISTEN_PID")).and_then(|count| count.parse().ok());
    let count: usize = count.unwrap_or(0);
    let inherited = (FIRST..).take(count.min(MOST)).filter_map(descriptors::take).collect();
    let passed = ["NOTIFY_SOCKET", "WATCHDOG_USEC"].into_iter();
    let variables = passed.filter_map(|name| Some((name, std::env::var_os(name)?))).collect();
    let supervisor =
        Supervisor { socket: connect(), watchdog, variables, inherited: Mutex::new(inherited), kept: Mutex::default() };
    let _ = SUPERVISOR.set(supervisor);
    for name in VARIABLES {
        // SAFETY: the process has one thread.
        unsafe { std::env::remove_var(name) };
    }
}

/// Takes over a descriptor, if it is open.
fn connect() -> Option<UnixDatagram> {
    let path = std::env::var_os("NOTIFY_SOCKET")?;
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => UnixAddress::from_abstract_name(name),
        None => UnixAddress::from_pathname(&path),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect_addr(&address.ok()?).ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

fn supervisor() -> &'static Supervisor {
    SUPERVISOR.get_or_init(Supervisor::default)
}

/// Sends the supervisor a state, such as `READY=1`. Without one nothing happens.
pub fn notify(state: &str) {
    if let Some(socket) = &supervisor().socket
        && let Err(error) = socket.send(state.as_bytes())
    {
        tracing::debug!(state, "the supervisor cannot be notified: {error}");
    }
}

/// Records that this process was asked to stop, and notifies the supervisor.
pub fn stop() {
    IS_STOPPING.store(true, Ordering::Relaxed);
    notify("STOPPING=1");
}

/// Reports whether this process was asked to stop. One that fails, or begins again, was not.
pub fn is_stopping() -> bool {
    IS_STOPPING.load(Ordering::Relaxed)
}

/// Reports whether a service manager has started this process.
pub fn is_service() -> bool {
    supervisor().socket.is_some()
}

/// Notifies the watchdog until the shutdown: the runtime still runs tasks.
pub async fn watch(shutdown: CancellationToken) {
    let Some(interval) = supervisor().watchdog else { return shutdown.cancelled().await };
    loop {
        notify("WATCHDOG=1");
        tokio::select! {
            () = tokio::time::sleep(interval / 3) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// Reports whether the process before this one listened on an address, and its socket is here.
pub fn inherits(address: SocketAddr) -> bool {
    let inherited = supervisor().inherited.lock().unwrap_or_else(PoisonError::into_inner);
    inherited.iter().any(|socket| listens_on(socket, address))
}

fn listens_on(socket: &OwnedFd, address: SocketAddr) -> bool {
    let Ok(copy) = socket.try_clone() else { return false };
    std::net::TcpListener::from(copy).local_addr().is_ok_and(|own| own == address)
}

/// Listens on an address: by the socket of the process before this one, else by a new one, which the supervisor keeps for
/// the next.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    if let Some(socket) = inherited(address) {
        remember(&socket);
        let listener = std::net::TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        tracing::info!(%address, "listening on the socket of the process before this one");
        return Ok(TcpListener::from_std(listener)?);
    }
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    remember(&listener);
    if let Some(socket) = &supervisor().socket
        && let Err(error) = keep(socket, &listener, address)
    {
        tracing::debug!(%address, "the supervisor does not keep the socket: {error}");
    }
    Ok(listener)
}

fn inherited(address: SocketAddr) -> Option<OwnedFd> {
    let mut inherited = supervisor().inherited.lock().unwrap_or_else(PoisonError::into_inner);
    let found = inherited.iter().position(|socket| listens_on(socket, address))?;
    Some(inherited.swap_remove(found))
}

/// Keeps a copy of a listening socket for a process that replaces this one.
fn remember(socket: &impl AsFd) {
    if let Ok(copy) = socket.as_fd().try_clone_to_owned() {
        supervisor().kept.lock().unwrap_or_else(PoisonError::into_inner).push(copy);
    }
}

/// Lets a command that replaces this process have its supervisor and its listening sockets.
pub fn hand_over(command: &mut Command) {
    let own = supervisor();
    command.envs(own.variables.iter().map(|(name, value)| (name, value)));
    let kept = std::mem::take(&mut *own.kept.lock().unwrap_or_else(PoisonError::into_inner));
    if kept.is_empty() {
        return;
    }
    command.env("LISTEN_PID", std::process::id().to_string()).env("LISTEN_FDS", kept.len().to_string());
    if let Err(error) = descriptors::pass(command, FIRST, &kept) {
        tracing::warn!("the listening sockets cannot be handed over: {error}");
    }
}

/// Gives a socket to the supervisor.
fn keep(supervisor: &UnixDatagram, socket: &impl AsFd, address: SocketAddr) -> nix::Result<()> {
    let port = address.port();
    let state = format!("FDSTORE=1\nFDNAME=listen-{port}");
    let descriptors = [socket.as_fd().as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let parts = [IoSlice::new(state.as_bytes())];
    sendmsg::<()>(supervisor.as_raw_fd(), &parts, &rights, MsgFlags::MSG_DONTWAIT, None).map(drop)
}
