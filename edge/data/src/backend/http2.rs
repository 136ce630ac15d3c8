//! Connections of HTTP/2 to endpoints. Several requests share one; an endpoint has as many as its streams need.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use super::Endpoint;
use crate::request_body::RequestBody;
use crate::stream::Stream;

/// The most streams that we open on one connection, though the endpoint allows more.
const MAX_STREAMS: usize = 100;
/// The window of a stream, and of a connection.
const WINDOW: u32 = 1024 * 1024;
/// The interval of pings.
const PING_PERIOD: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Http2Connection {
    sender: SendRequest<RequestBody>,
    streams: Arc<AtomicUsize>,
}

/// A place for one request.
#[derive(Debug)]
pub(crate) struct Http2Stream {
    pub(crate) sender: SendRequest<RequestBody>,
    pub(crate) slot: StreamSlot,
}

/// The count of a stream until it ends.
#[derive(Debug)]
pub(crate) struct StreamSlot(Arc<AtomicUsize>);

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Http2Connection {
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Returns a place on the connection if it has one.
    pub(super) fn stream(&self) -> Option<Http2Stream> {
        if self.streams.fetch_add(1, Ordering::Relaxed) >= MAX_STREAMS {
            self.streams.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Http2Stream { sender: self.sender.clone(), slot: StreamSlot(Arc::clone(&self.streams)) })
    }
}

/// Begins HTTP/2 on a new connection; a shared one serves later requests too.
pub(super) async fn open(
    endpoint: &Arc<Endpoint>,
    stream: Stream,
    is_shared: bool,
) -> Result<Http2Stream, hyper::Error> {
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(PING_PERIOD);
    builder.initial_stream_window_size(WINDOW).initial_connection_window_size(2 * WINDOW);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    // The task ends with the last sender.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to an endpoint ended");
        }
    });
    let streams = Arc::new(AtomicUsize::new(1));
    if is_shared {
        endpoint.keep_http2(Http2Connection { sender: sender.clone(), streams: Arc::clone(&streams) });
    }
    Ok(Http2Stream { sender, slot: StreamSlot(streams) })
}
