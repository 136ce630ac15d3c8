//! The interface between a client and its API server: one in this process, or one behind TLS.

use crate::Error;
use bytes::{Bytes, BytesMut};
use corten_meta::{Object, Status};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use std::sync::Arc;

/// Sends a request and answers with the head of the response and its body.
///
/// Contract: an answer of the server, also a failure, is `Ok`; `Err` means that there was no answer. The future and the
/// body own their data, so a request may outlive the transport's borrower. Dropping either ends the request.
pub trait Transport: Send + Sync + 'static {
    fn send(&self, request: http::Request<Bytes>) -> BoxFuture<'static, Result<http::Response<Body>, Error>>;
}

/// The body of a response.
pub enum Body {
    /// The complete body.
    Full(Bytes),
    /// Bytes as they arrive.
    Stream(BoxStream<'static, Result<Bytes, Error>>),
    /// A watch in process: objects shared with the server's cache, never encoded.
    Events(BoxStream<'static, Result<WatchEvent, Error>>),
}

/// One event of a watch.
#[derive(Debug, Clone)]
pub enum WatchEvent {
    Added(Arc<Object>),
    Modified(Arc<Object>),
    /// The last state of the object, with the revision of its deletion.
    Deleted(Arc<Object>),
    /// Everything up to `revision` is sent; `initial_events_end` closes the initial events of a streaming list.
    Bookmark {
        revision: u64,
        initial_events_end: bool,
    },
    /// The server ended the watch.
    Error(Status),
}

impl Body {
    pub fn empty() -> Body {
        Body::Full(Bytes::new())
    }

    /// Returns the complete body.
    pub async fn into_bytes(self) -> Result<Bytes, Error> {
        match self {
            Body::Full(bytes) => Ok(bytes),
            Body::Stream(mut stream) => {
                let Some(first) = stream.next().await.transpose()? else {
                    return Ok(Bytes::new());
                };
                let mut all = BytesMut::from(first);
                while let Some(chunk) = stream.next().await.transpose()? {
                    all.extend_from_slice(&chunk);
                }
                Ok(all.freeze())
            }
            Body::Events(_) => Err(Error::Decode("expected a document, found a stream of events".into())),
        }
    }

    /// Returns the events of a watch, decoded frame by frame if they come as bytes.
    pub fn into_events(self) -> BoxStream<'static, Result<WatchEvent, Error>> {
        match self {
            Body::Events(events) => events,
            Body::Stream(stream) => crate::watch::decode(stream),
            Body::Full(bytes) => crate::watch::decode(futures::stream::iter([Ok(bytes)]).boxed()),
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Body::Full(bytes) => write!(f, "Full({} bytes)", bytes.len()),
            Body::Stream(_) => f.write_str("Stream"),
            Body::Events(_) => f.write_str("Events"),
        }
    }
}
