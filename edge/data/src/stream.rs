//! Streams of bytes: plain TCP, or TLS on either side.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

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

/// The most bytes in several parts that are joined, so that they are sent by the cheaper call for one part.
const MAX_JOINED: usize = 2048;

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

impl Stream {
    /// Reports whether nothing has arrived: no bytes, no end and no error. Nothing is woken when that changes.
    pub(crate) fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        match self {
            Stream::Tcp(stream) => {
                stream.try_read(&mut byte).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            stream => {
                let mut context = Context::from_waker(Waker::noop());
                Pin::new(stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
            }
        }
    }
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
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > MAX_JOINED || !matches!(*self, Stream::Tcp(_)) {
            return inside!(self, inner => inner.poll_write_vectored(context, parts));
        }
        let mut joined = [0; MAX_JOINED];
        let mut end = 0;
        for part in parts {
            if let Some(place) = joined.get_mut(end..end + part.len()) {
                place.copy_from_slice(part);
                end += part.len();
            }
        }
        self.poll_write(context, joined.get(..end).unwrap_or_default())
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
