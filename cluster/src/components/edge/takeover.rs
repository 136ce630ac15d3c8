//! The proxy's side of its socket: it is found by the next server process, and gives its listeners to the next proxy.
//!
//! A proxy goes on when its server process is killed. One whose server was stopped in order waits for the next server
//! for a bounded time. One that another proxy has taken over from serves its open connections for a bounded time.

use std::io::{self, Read, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use corten_gateway::data::Signals;
use corten_listen::{Gate, Limits};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::{DIRECTORY, Proxy, words};
use crate::descriptors;

/// The time for which a proxy stays after its server process was stopped in order.
const SUCCESSOR_TIME: Duration = Duration::from_hours(1);
/// The time for which open connections of a proxy go on after another has taken over.
const DRAIN_TIME: Duration = Duration::from_hours(1);
/// The interval at which the proxy checks that its directory is there.
const DIRECTORY_CHECK: Duration = Duration::from_secs(10);
/// The most connections to the socket at once.
const MAX_CONNECTIONS: usize = 16;
const BACKLOG: i32 = 16;

/// The socket of a proxy.
pub struct Socket {
    pub proxy: Arc<Proxy>,
    pub signals: Signals,
    /// Whether the last server process has stopped.
    server_stopped: watch::Sender<bool>,
}

impl Socket {
    pub fn new(proxy: Arc<Proxy>, signals: Signals) -> Socket {
        Socket { proxy, signals, server_stopped: watch::channel(false).0 }
    }

    /// Answers server processes and the next proxy until the shutdown.
    pub async fn serve(self, descriptor: RawFd) -> Result<()> {
        let socket = descriptors::take(descriptor).context("--control-fd is no open descriptor")?;
        rustix::net::listen(&socket, BACKLOG).context("cannot listen on the control socket")?;
        let listener = std::os::unix::net::UnixListener::from(socket);
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let gate = Gate::new(Limits::anonymous(MAX_CONNECTIONS));
        let socket = Arc::new(self);
        let shutdown = socket.signals.shutdown.clone();
        let accepting = async {
            loop {
                let (stream, slot) = gate.accept(&listener).await;
                // A connection of the next proxy is silent until that one serves.
                slot.request_arrived();
                let socket = Arc::clone(&socket);
                tokio::spawn(async move {
                    tokio::select! {
                        answered = socket.answer(stream) => {
                            if let Err(error) = answered {
                                tracing::debug!(%error, "a connection to the control socket ended");
                            }
                        }
                        () = slot.closed() => {}
                    }
                });
            }
        };
        tokio::select! {
            () = accepting => {}
            () = socket.deserted() => {
                tracing::info!("no server process came back: the proxy ends");
                shutdown.cancel();
            }
            () = removed() => {
                tracing::info!("the directory of the proxy was removed: it ends");
                shutdown.cancel();
            }
            () = shutdown.cancelled() => {}
        }
        Ok(())
    }

    /// Waits until no server process has come for a while after one stopped in order.
    async fn deserted(&self) {
        let mut stopped = self.server_stopped.subscribe();
        loop {
            let is_alone = *stopped.borrow_and_update();
            tokio::select! {
                () = tokio::time::sleep(SUCCESSOR_TIME), if is_alone => return,
                changed = stopped.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn answer(&self, mut stream: UnixStream) -> io::Result<()> {
        if stream.peer_cred()?.uid() != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        while let Some(word) = words::read(&mut stream).await? {
            match word.as_str() {
                words::HELLO => words::write(&mut stream, self.state()).await?,
                words::ATTACH => self.set_stopped(&mut stream, false).await?,
                words::STOPPING => self.set_stopped(&mut stream, true).await?,
                words::LISTENERS => stream = self.send_listeners(stream).await?,
                words::RETIRE => {
                    self.retire().await;
                    words::write(&mut stream, words::DONE).await?;
                }
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            }
        }
        Ok(())
    }

    fn state(&self) -> &'static str {
        match self.signals.retired.is_cancelled() {
            true => words::DRAINING,
            false if self.proxy.serves() => words::SERVING,
            false => words::STARTING,
        }
    }

    async fn set_stopped(&self, stream: &mut UnixStream, is_stopped: bool) -> io::Result<()> {
        self.server_stopped.send_replace(is_stopped);
        words::write(stream, words::DONE).await
    }

    async fn send_listeners(&self, stream: UnixStream) -> io::Result<UnixStream> {
        let listeners = self.proxy.edge.listeners().await?;
        let stream = stream.into_std()?;
        let sent = tokio::task::spawn_blocking(move || {
            stream.set_nonblocking(false)?;
            stream.set_write_timeout(Some(words::PATIENCE))?;
            corten_edge::send_listeners(&stream, &listeners)?;
            stream.set_nonblocking(true)?;
            Ok::<_, io::Error>(stream)
        });
        UnixStream::from_std(sent.await.map_err(io::Error::other)??)
    }

    /// Stops to accept, and ends the process once its last connection has ended.
    async fn retire(&self) {
        self.signals.retired.cancel();
        self.proxy.edge.retire().await;
        tracing::info!("another process serves Gateways now; open connections go on");
        let proxy = Arc::clone(&self.proxy);
        let shutdown = self.signals.shutdown.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(DRAIN_TIME, proxy.edge.idle()).await;
            shutdown.cancel();
        });
    }
}

/// Waits until the directory that this process inherited is removed.
async fn removed() {
    let directory = format!("/proc/self/fd/{DIRECTORY}");
    // The kernel's way to show that an open file was removed.
    let is_deleted = |path: PathBuf| path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)");
    let is_removed = || std::fs::read_link(&directory).is_ok_and(is_deleted);
    while !is_removed() {
        tokio::time::sleep(DIRECTORY_CHECK).await;
    }
}

/// The proxy that this one takes over from.
pub struct Predecessor(BlockingStream);

impl Predecessor {
    pub fn new(descriptor: RawFd) -> Result<Predecessor> {
        let stream = BlockingStream::from(descriptors::take(descriptor).context("--predecessor-fd is not open")?);
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(words::PATIENCE))?;
        stream.set_write_timeout(Some(words::PATIENCE))?;
        Ok(Predecessor(stream))
    }

    /// Returns the sockets of the other proxy's listeners, from which it still accepts.
    pub fn listeners(&self) -> io::Result<Vec<OwnedFd>> {
        writeln!(&self.0, "{}", words::LISTENERS)?;
        corten_edge::receive_listeners(&self.0)
    }

    /// Tells the other proxy that this one accepts.
    pub async fn retire(self) {
        let retired = tokio::task::spawn_blocking(move || {
            writeln!(&self.0, "{}", words::RETIRE)?;
            (&self.0).read_exact(&mut [0; words::DONE.len() + 1])
        });
        match retired.await.map_err(io::Error::other).and_then(|retired| retired) {
            Ok(()) => tracing::info!("this process has taken over the listeners of the one before"),
            Err(error) => tracing::warn!(%error, "the process before this one cannot be told to stop accepting"),
        }
    }
}
