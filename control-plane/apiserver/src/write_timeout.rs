//! A connection that gives up on a peer that does not take what it is sent.
//!
//! A watch or a list to a client that has stopped reading would stay for ever, with all that it holds: its peer is
//! alive, so no keep-alive finds out. Reading has no such bound here: a quiet client is not a slow one, and the time
//! for heads and bodies is bounded where they are read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A stream whose writes fail once they have made no progress for a time.
pub struct WriteTimeout<S> {
    stream: S,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
    stalled: bool,
}

impl<S> WriteTimeout<S> {
    pub fn new(stream: S, patience: Duration) -> WriteTimeout<S> {
        WriteTimeout { stream, patience, timer: Box::pin(tokio::time::sleep(patience)), stalled: false }
    }

    /// Passes progress on, and turns too long a wait into an error.
    fn watch<T>(&mut self, context: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.stalled = false;
            return poll;
        }
        if !self.stalled {
            self.stalled = true;
            self.timer.as_mut().reset(Instant::now() + self.patience);
        }
        std::task::ready!(self.timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take what it is sent")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_ends_the_writer() {
        let patience = Duration::from_secs(60);
        let (near, far) = tokio::io::duplex(16);
        let mut near = WriteTimeout::new(near, patience);
        let began = Instant::now();
        let error = near.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed().as_secs(), patience.as_secs());
        drop(far);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_does_not() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut near = WriteTimeout::new(near, Duration::from_secs(60));
        let reader = tokio::spawn(async move {
            let mut read = [0; 8];
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_secs(59)).await;
                far.read_exact(&mut read).await.unwrap();
            }
        });
        near.write_all(&[0; 160]).await.unwrap();
        reader.await.unwrap();
    }
}
