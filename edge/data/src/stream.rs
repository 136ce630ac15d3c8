//! Streams of bytes: plain TCP, or TLS on either side.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    /// The client of this stream is us.
    ToServer(Box<tokio_rustls::client::TlsStream<TcpStream>>),
    /// The server of this stream is us.
    FromClient(Box<tokio_rustls::server::TlsStream<TcpStream>>),
}

/// Calls the method of the stream inside.
macro_rules! inside {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            Stream::Tcp(inner) => {
                let $inner = Pin::new(inner);
                $call
            }
            Stream::ToServer(inner) => {
                let $inner = Pin::new(inner.as_mut());
                $call
            }
            Stream::FromClient(inner) => {
                let $inner = Pin::new(inner.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        inside!(self, inner => inner.poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        inside!(self, inner => inner.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        inside!(self, inner => inner.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Tcp(inner) => inner.is_write_vectored(),
            Stream::ToServer(inner) => inner.is_write_vectored(),
            Stream::FromClient(inner) => inner.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        inside!(self, inner => inner.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        inside!(self, inner => inner.poll_shutdown(context))
    }
}
