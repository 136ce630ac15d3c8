//! Sockets of listeners and the tasks that accept from them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use corten_listen::{Gate, Limits};
use corten_routing::Transport;
use tokio::net::{TcpListener, TcpSocket, UdpSocket};

use crate::listener_state::ListenerState;
use crate::shared::Shared;
use crate::table::Table;
use crate::{connection, udp};

/// The connections that may wait to be accepted.
const BACKLOG: u32 = 4096;

/// The address and transport of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SocketKey {
    pub(crate) address: SocketAddr,
    pub(crate) transport: Transport,
}

/// A socket, before it is served. Its fields keep a socket that another process had.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(Arc<TcpListener>),
    Udp(Arc<UdpSocket>),
}

impl Socket {
    /// Binds a new socket.
    pub(crate) async fn bind(key: SocketKey) -> io::Result<Socket> {
        match key.transport {
            Transport::Tcp => {
                let socket = if key.address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
                socket.set_reuseaddr(true)?;
                socket.bind(key.address)?;
                Ok(Socket::Tcp(Arc::new(socket.listen(BACKLOG)?)))
            }
            Transport::Udp => Ok(Socket::Udp(Arc::new(UdpSocket::bind(key.address).await?))),
        }
    }

    /// Takes over a socket of another process.
    pub(crate) fn inherit(socket: OwnedFd) -> io::Result<Socket> {
        match rustix::net::sockopt::socket_type(&socket)? {
            rustix::net::SocketType::STREAM => {
                let listener = std::net::TcpListener::from(socket);
                listener.set_nonblocking(true)?;
                Ok(Socket::Tcp(Arc::new(TcpListener::from_std(listener)?)))
            }
            rustix::net::SocketType::DGRAM => {
                let socket = std::net::UdpSocket::from(socket);
                socket.set_nonblocking(true)?;
                Ok(Socket::Udp(Arc::new(UdpSocket::from_std(socket)?)))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket is neither of TCP nor of UDP")),
        }
    }

    pub(crate) fn key(&self) -> io::Result<SocketKey> {
        match self {
            Socket::Tcp(listener) => Ok(SocketKey { address: listener.local_addr()?, transport: Transport::Tcp }),
            Socket::Udp(socket) => Ok(SocketKey { address: socket.local_addr()?, transport: Transport::Udp }),
        }
    }

    /// Returns another descriptor of the socket.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        match self {
            Socket::Tcp(listener) => listener.as_fd().try_clone_to_owned(),
            Socket::Udp(socket) => socket.as_fd().try_clone_to_owned(),
        }
    }
}

/// A socket that is served.
#[derive(Debug)]
pub(crate) struct RunningListener {
    /// None if another process accepts from it.
    socket: Option<Socket>,
    state: Arc<ListenerState>,
}

/// The limits of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerLimits {
    pub(crate) connections: usize,
    pub(crate) accept_tasks: usize,
}

impl RunningListener {
    /// Begins to serve a socket.
    pub(crate) fn start(
        socket: Socket,
        table: Arc<Table>,
        shared: &Arc<Shared>,
        limits: ListenerLimits,
    ) -> RunningListener {
        let state = Arc::new(ListenerState::new(table));
        match &socket {
            Socket::Tcp(listener) => {
                let gate = Gate::new(Limits::anonymous(limits.connections));
                for _ in 0..limits.accept_tasks.max(1) {
                    let accepting = accept(Arc::clone(listener), gate.clone(), Arc::clone(&state), Arc::clone(shared));
                    shared.tasks.spawn(accepting);
                }
            }
            Socket::Udp(socket) => {
                let serving =
                    udp::serve(Arc::clone(socket), Arc::clone(&state), Arc::clone(shared), limits.connections);
                shared.tasks.spawn(serving);
            }
        }
        RunningListener { socket: Some(socket), state }
    }

    /// Returns the socket, unless another process has taken it over.
    pub(crate) fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }

    /// Returns the table of new requests.
    pub(crate) fn table(&self) -> Arc<Table> {
        self.state.table()
    }

    /// Takes over a new table. Requests in flight keep theirs.
    pub(crate) fn set_table(&self, table: Arc<Table>) {
        self.state.set_table(table);
    }

    /// Stops to accept, because another process accepts from the socket.
    pub(crate) fn retire(&mut self) {
        self.socket = None;
        self.state.retire();
    }

    /// Stops to accept. Connections end with their requests, and after the grace period in any case.
    pub(crate) fn drain(self, grace: std::time::Duration) {
        self.state.drain();
        let state = self.state;
        tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            state.kill();
        });
    }
}

/// Accepts connections until another process does, or the listener drains.
async fn accept(listener: Arc<TcpListener>, gate: Gate, state: Arc<ListenerState>, shared: Arc<Shared>) {
    loop {
        let accepted = tokio::select! {
            accepted = gate.accept(&*listener) => accepted,
            () = state.retired() => return,
        };
        let (stream, slot) = accepted;
        shared.metrics.connected("tcp");
        // Boxed, because the future is large, and the runtime moves it more than once.
        shared.tasks.spawn(Box::pin(connection::serve(stream, slot, Arc::clone(&state), Arc::clone(&shared))));
    }
}
