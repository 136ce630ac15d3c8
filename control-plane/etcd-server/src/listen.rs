//! The listeners: a unix socket for root, and TLS for clients with a certificate.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use crate::Server;

/// The time for the handshake of TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted, such as for lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
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

/// Serves a unix socket until the shutdown.
pub async fn serve_unix(
    server: Server,
    listener: UnixListener,
    shutdown: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let (connections, incoming) = mpsc::channel(CONNECTIONS_AHEAD);
    let gate = Arc::new(Semaphore::new(server.limits.connections));
    let accept = async {
        loop {
            let Ok(permit) = gate.clone().acquire_owned().await else { return };
            let Some(stream) = accepted(listener.accept().await).await else { continue };
            let connection: Connection<UnixStream> = Connection { stream, _permit: permit };
            if connections.send(Ok::<_, io::Error>(connection)).await.is_err() {
                return;
            }
        }
    };
    serve(&server, ReceiverStream::new(incoming), accept, shutdown).await
}

/// Serves TLS until the shutdown. The configuration demands certificates of its clients: there are no other rights.
pub async fn serve_tls(
    server: Server,
    listener: TcpListener,
    config: Arc<ServerConfig>,
    shutdown: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let (connections, incoming) = mpsc::channel(CONNECTIONS_AHEAD);
    let gate = Arc::new(Semaphore::new(server.limits.connections));
    let acceptor = TlsAcceptor::from(config);
    let accept = async {
        loop {
            let Ok(permit) = gate.clone().acquire_owned().await else { return };
            let Some(stream) = accepted(listener.accept().await).await else { continue };
            let acceptor = acceptor.clone();
            let connections = connections.clone();
            tokio::spawn(async move {
                // A client that does not finish its handshake, or has no certificate, is dropped.
                if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                    let connection: Connection<TlsStream<TcpStream>> = Connection { stream, _permit: permit };
                    // The server may have ended.
                    let _ = connections.send(Ok::<_, io::Error>(connection)).await;
                }
            });
        }
    };
    serve(&server, ReceiverStream::new(incoming), accept, shutdown).await
}

async fn serve<S>(
    server: &Server,
    incoming: ReceiverStream<io::Result<Connection<S>>>,
    accept: impl Future<Output = ()>,
    shutdown: CancellationToken,
) -> Result<(), tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // Watches last for as long as their clients, so connections are not waited for.
    let serving = server.router().serve_with_incoming(incoming);
    tokio::select! {
        served = serving => served,
        () = accept => Ok(()),
        () = shutdown.cancelled() => Ok(()),
    }
}

/// Returns the accepted stream; after an error it pauses, since most errors of this kind last.
async fn accepted<S, A>(accepted: io::Result<(S, A)>) -> Option<S> {
    match accepted {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            tracing::warn!(%error, "a client of the etcd API cannot be accepted");
            tokio::time::sleep(ACCEPT_RETRY).await;
            None
        }
    }
}

/// A connection that counts for the limit for as long as it is open.
#[derive(Debug)]
struct Connection<S> {
    stream: S,
    _permit: OwnedSemaphorePermit,
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
