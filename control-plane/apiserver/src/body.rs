//! Bodies of requests and responses, inside the process and at the HTTP edge.
//!
//! A watch stays a stream of shared objects until it is known that it leaves the process: in-process
//! callers take the events as they are, and only the HTTP edge turns them into text frames.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use corten_meta::{Object, Status};
use futures::stream::{BoxStream, StreamExt};
use http_body_util::BodyExt;

/// How many times the limit is read of a body that is too large before its connection is given up.
const FORGET_FACTOR: usize = 8;
/// How long it is read.
const FORGET_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// The response of the pipeline.
pub type Reply = http::Response<Body>;

/// What a request carries.
pub enum RequestBody {
    /// All of it at once: in-process calls.
    Full(Bytes),
    /// From the network, not read yet.
    Incoming(hyper::body::Incoming),
}

impl RequestBody {
    /// Reads the whole body, at most `limit` bytes of it.
    pub async fn read(self, limit: usize) -> Result<Bytes, Status> {
        let bytes = match self {
            RequestBody::Full(bytes) if bytes.len() <= limit => bytes,
            RequestBody::Full(_) => return Err(too_large(limit)),
            RequestBody::Incoming(incoming) => read_incoming(incoming, limit).await?,
        };
        Ok(bytes)
    }
}

/// Reads a body from the network. Of one that is too large the rest is read and forgotten, within bounds: a client
/// that is still sending would take an early answer for a broken connection.
async fn read_incoming(mut incoming: hyper::body::Incoming, limit: usize) -> Result<Bytes, Status> {
    let mut bytes = BytesMut::new();
    let mut forgotten = 0;
    let deadline = tokio::time::Instant::now() + FORGET_TIMEOUT;
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|e| Status::bad_request(format!("unable to read the request body: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if forgotten == 0 && bytes.len() + data.len() <= limit {
            bytes.extend_from_slice(&data);
            continue;
        }
        forgotten += data.len();
        if forgotten > limit.saturating_mul(FORGET_FACTOR) || tokio::time::Instant::now() > deadline {
            break;
        }
    }
    if forgotten > 0 { Err(too_large(limit)) } else { Ok(bytes.freeze()) }
}

fn too_large(limit: usize) -> Status {
    Status::request_too_large(&format!("limit is {limit}"))
}

/// One event of a watch.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    Added(Arc<Object>),
    Modified(Arc<Object>),
    Deleted(Arc<Object>),
    Bookmark { revision: u64, initial_events_end: bool },
    Error(Status),
}

/// Turns one event into its frame, newline included.
pub type EventEncoder = Arc<dyn Fn(&WatchEvent) -> Vec<u8> + Send + Sync>;

/// A running watch.
pub struct Watch {
    pub events: BoxStream<'static, WatchEvent>,
    pub encode: EventEncoder,
}

/// What a response carries.
pub enum Body {
    Full(Bytes),
    Watch(Watch),
    Stream(BoxStream<'static, Result<Bytes, std::io::Error>>),
}

/// The body as hyper sends it.
pub type HttpBody = http_body_util::combinators::UnsyncBoxBody<Bytes, std::io::Error>;

impl Body {
    /// An empty body.
    pub fn empty() -> Body {
        Body::Full(Bytes::new())
    }

    /// Turns the body into what goes over the network; watches become text here and only here.
    pub fn into_http(self) -> HttpBody {
        let stream = match self {
            Body::Full(bytes) => {
                return http_body_util::Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
            }
            Body::Watch(watch) => {
                let encode = watch.encode;
                // Events that are ready together leave in one frame: fewer, fuller packets.
                let frames = watch.events.ready_chunks(64).map(move |events| {
                    let mut frame = Vec::new();
                    for event in &events {
                        frame.extend_from_slice(&encode(event));
                    }
                    Ok(Bytes::from(frame))
                });
                frames.boxed()
            }
            Body::Stream(stream) => stream,
        };
        http_body_util::StreamBody::new(stream.map(|r| r.map(http_body::Frame::data))).boxed_unsync()
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Body::Full(bytes) => write!(f, "Full({} bytes)", bytes.len()),
            Body::Watch(_) => f.write_str("Watch"),
            Body::Stream(_) => f.write_str("Stream"),
        }
    }
}
