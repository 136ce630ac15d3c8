//! One connection of a client: the PROXY protocol, TLS, and then HTTP or bytes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use corten_listen::{HANDSHAKE_TIMEOUT, Slot};
use corten_routing::Network;
use http::HeaderValue;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::StartHandshake;

use crate::backend::Client;
use crate::listener::ListenerState;
use crate::shared::Shared;
use crate::stream::Stream;
use crate::table::{Protocol, TlsTable};
use crate::tls::{Hello, read_hello};
use crate::{http as requests, proxy_protocol, tcp};

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
    slot: Slot,
}

impl ConnectionInfo {
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

    /// Records that the client sent something whole: its connection is not closed in favour of others.
    pub(crate) fn used(&self) {
        self.slot.request_arrived();
        self.slot.authenticated();
    }
}

/// Serves a connection until it ends, or must end.
pub(crate) async fn serve(stream: TcpStream, slot: Slot, listener: Arc<ListenerState>, shared: Arc<Shared>) {
    let killed = Arc::clone(&listener);
    tokio::select! {
        served = begin(stream, slot, listener, shared) => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection ended");
            }
        }
        () = killed.killed() => {}
    }
}

async fn begin(mut stream: TcpStream, slot: Slot, listener: Arc<ListenerState>, shared: Arc<Shared>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let peer = stream.peer_addr()?;
    let table = listener.table();
    let mut client = peer;
    let mut destination = stream.local_addr()?;
    let is_trusted = table.options.trusted_proxies.iter().any(|network| network.contains(peer.ip()));
    if table.options.proxy_protocol && is_trusted {
        let read = timeout(HANDSHAKE_TIMEOUT, proxy_protocol::read(&mut stream)).await;
        if let Some(told) = read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
            client = told.source;
            destination = told.destination;
        }
    }
    let address = client.ip().to_canonical().to_string();
    let mut info = ConnectionInfo {
        peer,
        client,
        destination,
        port: table.port,
        is_tls: false,
        server_name: None,
        listener,
        shared,
        forwarded_for: HeaderValue::from_str(&address).map_err(io::Error::other)?,
        port_value: HeaderValue::from(table.port),
        slot,
    };
    match &table.protocol {
        Protocol::Http(_) => {
            drop(table);
            serve_http(Arc::new(info), Stream::Tcp(stream)).await
        }
        Protocol::Tcp(targets) => {
            info.used();
            let relay = tcp::connect(targets, info.addresses(), &[]).await?;
            drop(table);
            tcp::relay(Stream::Tcp(stream), relay).await
        }
        Protocol::Tls(names) => {
            let hello = timeout(HANDSHAKE_TIMEOUT, read_hello(&mut stream)).await;
            let hello = match hello.map_err(|_| io::Error::from(io::ErrorKind::TimedOut)).and_then(|hello| hello) {
                Ok(hello) => hello,
                Err(error) => {
                    info.shared.metrics.refused("client_hello");
                    return Err(error);
                }
            };
            info.server_name.clone_from(&hello.server_name);
            info.is_tls = true;
            let name = hello.server_name.as_deref().unwrap_or_default();
            match names.find(name).map(Arc::clone) {
                Some(host) => {
                    drop(table);
                    serve_tls(info, stream, hello, &host).await
                }
                None => {
                    info.shared.metrics.refused("server_name");
                    Err(io::Error::new(io::ErrorKind::NotFound, "no listener has the server name"))
                }
            }
        }
        Protocol::Udp(_) => Ok(()),
    }
}

/// Serves a connection whose ClientHello chose a host.
async fn serve_tls(info: ConnectionInfo, stream: TcpStream, hello: Hello, host: &TlsTable) -> io::Result<()> {
    let config = match host {
        TlsTable::Passthrough(targets) => {
            info.used();
            let endpoint = tcp::connect(targets, info.addresses(), &hello.bytes).await?;
            return tcp::relay(Stream::Tcp(stream), endpoint).await;
        }
        TlsTable::Refused => {
            info.shared.metrics.refused("certificate");
            return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no certificate"));
        }
        TlsTable::Http { config, .. } | TlsTable::Tcp { config, .. } => Arc::clone(config),
    };
    let handshake = StartHandshake::from_parts(hello.accepted, stream).into_stream(config);
    let finished = timeout(HANDSHAKE_TIMEOUT, handshake).await;
    let tls = match finished.map_err(|_| io::Error::from(io::ErrorKind::TimedOut)).and_then(|tls| tls) {
        Ok(tls) => Stream::FromClient(Box::new(tls)),
        Err(error) => {
            info.shared.metrics.refused("handshake");
            return Err(error);
        }
    };
    match host {
        TlsTable::Tcp { targets, .. } => {
            info.used();
            let endpoint = tcp::connect(targets, info.addresses(), &[]).await?;
            tcp::relay(tls, endpoint).await
        }
        _ => serve_http(Arc::new(info), tls).await,
    }
}

/// Serves HTTP on a stream until the client is gone, or the listener drains and the requests in flight ended.
async fn serve_http(info: Arc<ConnectionInfo>, stream: Stream) -> io::Result<()> {
    let shared = Arc::clone(&info.shared);
    let service = service_fn({
        let info = Arc::clone(&info);
        move |request| {
            let info = Arc::clone(&info);
            async move {
                info.used();
                Ok::<_, std::convert::Infallible>(requests::handle(&info, request).await)
            }
        }
    });
    let connection = shared.http.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut is_draining = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => return ended.map_err(io::Error::other),
            () = info.slot.closed() => return Ok(()),
            () = info.listener.drained(), if !is_draining => {
                connection.as_mut().graceful_shutdown();
                is_draining = true;
            }
        }
    }
}
