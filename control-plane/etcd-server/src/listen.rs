//! The listeners: a unix socket for root, and TLS for clients with a certificate.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use corten_listen::{Gate, Limits, Slot};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::Server;

/// The time of requests that are being answered at the shutdown.
const GOODBYE: Duration = Duration::from_secs(5);
/// The connections that may wait for the server.
const CONNECTIONS_AHEAD: usize = 16;

/// Binds a unix socket that only its owner can use. A socket that an earlier process left behind is replaced.
pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves a unix socket until the server's shutdown.
pub async fn serve_unix(server: Server, listener: UnixListener) -> Result<(), tonic::transport::Error> {
    let (connections, incoming) = mpsc::channel(CONNECTIONS_AHEAD);
    let gate = Gate::new(limits(&server));
    let accept = async {
        loop {
            let (stream, slot) = gate.accept(&listener).await;
            // The mode of the socket lets root alone connect.
            slot.authenticated();
            if connections.send(Ok::<_, io::Error>(Connection { stream, _slot: slot })).await.is_err() {
                return;
            }
        }
    };
    serve(&server, ReceiverStream::new(incoming), accept).await
}

/// Serves TLS until the server's shutdown. The configuration demands certificates of its clients: there are no other
/// rights.
pub async fn serve_tls(
    server: Server,
    listener: TcpListener,
    config: Arc<ServerConfig>,
) -> Result<(), tonic::transport::Error> {
    let (connections, incoming) = mpsc::channel(CONNECTIONS_AHEAD);
    let gate = Gate::new(limits(&server));
    let acceptor = TlsAcceptor::from(config);
    let accept = async {
        loop {
            let (stream, slot) = gate.accept(&listener).await;
            tokio::spawn(authenticate(acceptor.clone(), stream, slot, connections.clone()));
        }
    };
    serve(&server, ReceiverStream::new(incoming), accept).await
}

fn limits(server: &Server) -> Limits {
    Limits { connections: server.limits.connections, unauthenticated: server.limits.connections / 4 }
}

/// Passes on a connection whose peer has a certificate; any other is dropped.
async fn authenticate(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    slot: Slot,
    connections: mpsc::Sender<io::Result<Connection<TlsStream<TcpStream>>>>,
) {
    let finished = tokio::select! {
        finished = corten_listen::handshake(&acceptor, stream) => finished,
        () = slot.closed() => return,
    };
    let Ok(stream) = finished else { return };
    slot.authenticated();
    // The server may have ended.
    let _ = connections.send(Ok(Connection { stream, _slot: slot })).await;
}

async fn serve<S>(
    server: &Server,
    incoming: ReceiverStream<io::Result<Connection<S>>>,
    accept: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let shutdown = &server.shutdown;
    let serving = server.router().serve_with_incoming_shutdown(incoming, shutdown.cancelled());
    let accept = async {
        tokio::select! {
            () = accept => {}
            () = shutdown.cancelled() => {}
        }
    };
    // After the shutdown, requests that are being answered get some time; streams end by themselves.
    let patience = async {
        accept.await;
        tokio::time::sleep(GOODBYE).await;
    };
    tokio::select! {
        served = serving => served,
        () = patience => Ok(()),
    }
}

/// A connection that counts for the limit for as long as it is open.
#[derive(Debug)]
struct Connection<S> {
    stream: S,
    _slot: Slot,
}

impl<S> Connected for Connection<S> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

mod stream {
    //! Reading and writing, passed on.

    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::Connection;

    impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(context, buffer)
        }
    }

    impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.stream).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(context)
        }
    }
}
