//! A client's connection as its requests see it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use corten_listen::Slot;
use corten_routing::Network;
use http::{HeaderValue, Version};
use tokio::sync::Notify;

use crate::backend::Client;
use crate::listener_state::ListenerState;
use crate::shared::Shared;

/// The facts of a connection that its requests share.
#[derive(Debug)]
pub(crate) struct ConnectionInfo {
    /// The peer of the socket.
    peer: SocketAddr,
    /// The client: the peer, or the address that a trusted proxy told.
    pub(crate) client: SocketAddr,
    destination: SocketAddr,
    /// The port that clients connect to.
    pub(crate) port: u16,
    is_tls: bool,
    /// The server name of the ClientHello, in lower case.
    pub(crate) server_name: Option<String>,
    pub(crate) listener: Arc<ListenerState>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) forwarded_for: HeaderValue,
    pub(crate) port_value: HeaderValue,
    is_http2: AtomicBool,
    http2: Notify,
    slot: Slot,
}

/// The addresses of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) peer: SocketAddr,
    pub(crate) client: SocketAddr,
    pub(crate) destination: SocketAddr,
}

impl ConnectionInfo {
    pub(crate) fn new(
        arrival: Arrival,
        port: u16,
        listener: Arc<ListenerState>,
        shared: Arc<Shared>,
        slot: Slot,
    ) -> io::Result<ConnectionInfo> {
        let address = arrival.client.ip().to_canonical().to_string();
        Ok(ConnectionInfo {
            peer: arrival.peer,
            client: arrival.client,
            destination: arrival.destination,
            port,
            is_tls: false,
            server_name: None,
            listener,
            shared,
            forwarded_for: HeaderValue::from_str(&address).map_err(io::Error::other)?,
            port_value: HeaderValue::from(port),
            is_http2: AtomicBool::new(false),
            http2: Notify::new(),
            slot,
        })
    }

    /// Records that the client speaks TLS.
    pub(crate) fn set_tls(&mut self, server_name: Option<String>) {
        self.is_tls = true;
        self.server_name = server_name;
    }

    /// Resolves when the connection must close in favour of others, or because the client was silent.
    pub(crate) async fn closed(&self) {
        self.slot.closed().await;
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    pub(crate) fn scheme_value(&self) -> HeaderValue {
        HeaderValue::from_static(self.scheme())
    }

    /// Reports whether the peer is a trusted proxy.
    pub(crate) fn is_trusted(&self, trusted: &[Network]) -> bool {
        !trusted.is_empty() && trusted.iter().any(|network| network.contains(self.peer.ip()))
    }

    pub(crate) fn addresses(&self) -> Client {
        Client { source: self.client, destination: self.destination }
    }

    /// Records the version of a request.
    pub(crate) fn speaks(&self, version: Version) {
        if version == Version::HTTP_2 && !self.is_http2() {
            self.is_http2.store(true, Ordering::Relaxed);
            self.http2.notify_one();
        }
    }

    /// Reports whether the client has sent a request of HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.is_http2.load(Ordering::Relaxed)
    }

    /// Resolves when another process accepts the connections of the listener and this one speaks HTTP/2, which can say
    /// so to its client without losing a request. A connection of HTTP/1.1 says so in its next answer.
    pub(crate) async fn retired(&self) {
        self.listener.retired().await;
        self.http2.notified().await;
    }

    /// Records that the client sent something whole: its connection is not closed in favour of others.
    pub(crate) fn used(&self) {
        self.slot.request_arrived();
        self.slot.authenticated();
    }
}
