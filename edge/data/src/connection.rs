//! One connection of a client: the PROXY protocol, TLS, and then HTTP or bytes.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use corten_listen::{HANDSHAKE_TIMEOUT, Slot};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::StartHandshake;

use crate::client::{Arrival, ConnectionInfo};
use crate::listener_state::ListenerState;
use crate::quiet::Quiet;
use crate::shared::Shared;
use crate::stream::Stream;
use crate::table::{Protocol, TlsTable};
use crate::tls::{Hello, read_hello};
use crate::{http as requests, lazy_timer, proxy_protocol, tcp};

/// Serves a connection until it ends, or must end.
pub(crate) async fn serve(stream: TcpStream, slot: Slot, listener: Arc<ListenerState>, shared: Arc<Shared>) {
    let state = Arc::clone(&listener);
    let killed = Quiet::new(async move { state.killed().await });
    tokio::select! {
        biased;
        served = begin(stream, slot, listener, shared) => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection ended");
            }
        }
        () = killed => {}
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
    let arrival = Arrival { peer, client, destination };
    let mut info = ConnectionInfo::new(arrival, table.port, listener, shared, slot)?;
    match &table.protocol {
        Protocol::Http(_) => {
            drop(table);
            Box::pin(serve_http(Arc::new(info), Stream::Tcp(stream))).await
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
            info.set_tls(hello.server_name.clone());
            let name = hello.server_name.as_deref().unwrap_or_default();
            if hello.is_challenge
                && let Some(config) = table.challenges.get(name)
            {
                return answer_challenge(stream, hello, Arc::clone(config)).await;
            }
            match names.hosts().find(name).map(Arc::clone) {
                Some(host) => {
                    drop(table);
                    Box::pin(serve_tls(info, stream, hello, &host)).await
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

/// Shows the certificate that answers a challenge of ACME, and closes the connection.
async fn answer_challenge(stream: TcpStream, hello: Hello, config: Arc<rustls::ServerConfig>) -> io::Result<()> {
    let handshake = StartHandshake::from_parts(hello.accepted, stream).into_stream(config);
    let answered = async { handshake.await?.shutdown().await };
    timeout(HANDSHAKE_TIMEOUT, answered).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
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
        TlsTable::Http { config, .. } | TlsTable::Tcp { config, .. } => config.of(&hello.accepted.client_hello()),
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
        _ => Box::pin(serve_http(Arc::new(info), tls)).await,
    }
}

/// The turns of a connection among the tasks of its streams.
///
/// A stream with an answer wakes its connection, which the runtime runs next, before the streams that are ready too. A
/// connection of HTTP/2 lets them go first, so that their answers leave together.
#[derive(Default)]
struct Turns {
    has_waited: bool,
}

impl Turns {
    fn poll<C: Future>(
        &mut self,
        info: &ConnectionInfo,
        connection: Pin<&mut C>,
        context: &mut Context<'_>,
    ) -> Poll<C::Output> {
        self.has_waited = info.is_http2() && !self.has_waited;
        if self.has_waited {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        connection.poll(context)
    }
}

/// Serves HTTP on a stream until the client is gone, or the listener drains and the requests in flight ended.
async fn serve_http(info: Arc<ConnectionInfo>, stream: Stream) -> io::Result<()> {
    let shared = Arc::clone(&info.shared);
    let service = service_fn({
        let info = Arc::clone(&info);
        move |request: http::Request<hyper::body::Incoming>| {
            let info = Arc::clone(&info);
            info.used();
            info.speaks(request.version());
            let (mut head, body) = request.into_parts();
            // Boxed, because the future is large, and hyper moves it more than once.
            Box::pin(async move { Ok::<_, std::convert::Infallible>(requests::handle(&info, &mut head, body).await) })
        }
    });
    let connection = shared.http.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut turns = Turns::default();
    let mut closed = Quiet::new(info.closed());
    let drained = Quiet::new(info.listener.drained());
    let retired = Quiet::new(info.retired());
    let mut ticks = Quiet::new(lazy_timer::ticks());
    tokio::select! {
        biased;
        ended = poll_fn(|context| turns.poll(&info, connection.as_mut(), context)) => {
            return ended.map_err(io::Error::other);
        }
        () = &mut closed => return Ok(()),
        () = drained => connection.as_mut().graceful_shutdown(),
        () = retired => connection.as_mut().graceful_shutdown(),
        () = &mut ticks => {}
    }
    tokio::select! {
        biased;
        ended = poll_fn(|context| turns.poll(&info, connection.as_mut(), context)) => ended.map_err(io::Error::other),
        () = closed => Ok(()),
        () = ticks => Ok(()),
    }
}
