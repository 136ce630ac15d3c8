//! The limits of every listener of the cluster: how many connections are open at once, how many of them belong to
//! unauthenticated peers, how long a TLS handshake and the first request may take, and how big a request head may be.
//!
//! A server accepts through its [`Gate`], which gives each connection a [`Slot`]. A server must never accept from a
//! listener directly: a peer that opens connections and says nothing would take every file descriptor of the process.

mod gate;
pub mod head;
mod http;
mod relay;

pub use gate::{Accept, Gate, Limits, Slot};
pub use http::{HEADER_TIMEOUT, MAX_STREAMS, http, http1};
pub use relay::relay;

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The longest time for a TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Completes the server's side of a TLS handshake within [`HANDSHAKE_TIMEOUT`].
pub async fn handshake<S>(acceptor: &TlsAcceptor, stream: S) -> io::Result<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(finished) => finished,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long")),
    }
}
