//! The first request line of a connection, with its invalid characters escaped.
//!
//! Go's server accepts characters in a path or query that no URI may hold, and curl sends them as the user typed them:
//! `?labelSelector=a>1`. Here the HTTP parser refuses them before any handler runs, so this stream escapes them first.
//! Only the first line of a connection is surely a request line. To find a later one means to parse HTTP twice, and a
//! difference between the two parsers allows request smuggling. So later lines stay refused.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that escapes the characters of its first line that the parser would refuse.
pub struct FirstLine<S> {
    stream: S,
    /// Whether the line continues.
    is_within: bool,
    /// Bytes that were read and did not fit into the caller's buffer.
    rest: Bytes,
}

impl<S> FirstLine<S> {
    pub fn new(stream: S) -> FirstLine<S> {
        FirstLine { stream, is_within: true, rest: Bytes::new() }
    }

    /// Escapes the bytes of the last read.
    fn escape(&mut self, buf: &mut ReadBuf<'_>, before: usize) {
        let read = &buf.filled()[before..];
        let end = read.iter().position(|byte| *byte == b'\n');
        self.is_within = end.is_none();
        let (line, behind) = read.split_at(end.unwrap_or(read.len()));
        if !line.iter().any(is_refused) {
            return;
        }
        let mut out = Vec::with_capacity(read.len() * 3);
        for byte in line {
            if is_refused(byte) {
                out.extend_from_slice(format!("%{byte:02X}").as_bytes());
            } else {
                out.push(*byte);
            }
        }
        out.extend_from_slice(behind);
        buf.set_filled(before);
        self.rest = out.into();
        self.hand_out(buf);
    }

    fn hand_out(&mut self, buf: &mut ReadBuf<'_>) {
        let fits = self.rest.len().min(buf.remaining());
        buf.put_slice(&self.rest[..fits]);
        self.rest.advance(fits);
    }
}

fn is_refused(byte: &u8) -> bool {
    matches!(byte, b'<' | b'>' | b'"' | b'`' | b'#' | 0x80..)
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstLine<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.rest.is_empty() {
            self.hand_out(buf);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buf))?;
        if self.is_within {
            self.escape(buf, before);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstLine<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    /// However the bytes are split, the first line is escaped and nothing else.
    #[tokio::test]
    async fn the_first_line_is_escaped() {
        for (sent, expected) in [
            ("GET /a?b=c>1&d=\"e\" HTTP/1.1\r\nX: <>\r\n\r\n", "GET /a?b=c%3E1&d=%22e%22 HTTP/1.1\r\nX: <>\r\n\r\n"),
            ("GET /é#` HTTP/1.1\r\n\r\n<\n>", "GET /%C3%A9%23%60 HTTP/1.1\r\n\r\n<\n>"),
            ("GET /a HTTP/1.1\r\n\r\nGET /<", "GET /a HTTP/1.1\r\n\r\nGET /<"),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\u{80}", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\u{80}"),
            ("GET /<<<<<<<<", "GET /%3C%3C%3C%3C%3C%3C%3C%3C"),
        ] {
            for cut in 0..=sent.len() {
                let (first, second) = sent.as_bytes().split_at(cut);
                let mut stream = FirstLine::new(AsyncReadExt::chain(first, second));
                let mut out = Vec::new();
                let mut piece = [0; 7];
                loop {
                    match stream.read(&mut piece).await.unwrap() {
                        0 => break,
                        length => out.extend_from_slice(&piece[..length]),
                    }
                }
                assert_eq!(String::from_utf8_lossy(&out), expected, "cut at {cut}");
            }
        }
    }
}
