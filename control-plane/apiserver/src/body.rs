//! Bodies of requests and responses, inside the process and at the HTTP edge.
//!
//! A watch stays a stream of shared objects until it leaves the process: in-process callers take the events as they
//! are, and only the HTTP edge encodes them as frames. A list stays shared objects likewise, and is joined piece by
//! piece while it is sent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use corten_meta::{Object, Status};
use futures::stream::{BoxStream, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Body as _;

use crate::cache::event::{Delivery, EventEncoder, WatchEvent};
use crate::cache::{ResourceCache, Watcher};

/// The longest time that the body of a request may take to arrive.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// The bytes of an unwanted body that are read and discarded, so that its sender comes to read the response.
const DRAIN_BYTES: usize = 16 << 20;
/// The most unread bytes of a body after which the connection is kept.
const KEPT_BYTES: usize = 256 << 10;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The size of the pieces that a list is joined in: few enough to send, small enough to stay in the processor's cache.
pub const LIST_CHUNK: usize = 64 * 1024;
/// The most events that leave in one piece, of a watch whose events are converted.
const WATCH_CHUNK: usize = 64;

/// The response of the pipeline.
pub type Reply = http::Response<Body>;

pub enum RequestBody {
    /// The whole body at once, of an in-process call.
    Full(Bytes),
    /// A body from the network that is not read yet.
    Incoming(Incoming),
}

/// A body from the network. A body that no handler takes goes back to the connection, which waits for it.
pub struct Incoming {
    body: Option<hyper::body::Incoming>,
    unread: Option<Unread>,
}

impl Incoming {
    pub fn take(mut self) -> Option<hyper::body::Incoming> {
        self.body.take()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let (Some(body), Some(unread)) = (self.body.take(), &self.unread) {
            *unread.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

/// The slot that an unread body comes back to.
#[derive(Clone, Default)]
pub struct Unread(Arc<Mutex<Option<hyper::body::Incoming>>>);

impl Unread {
    /// Hands out a body that comes back if no handler reads it. An empty body has no slot to come back to.
    pub fn lend(body: hyper::body::Incoming) -> (RequestBody, Option<Unread>) {
        let unread = (!body.is_end_stream()).then(Unread::default);
        (RequestBody::Incoming(Incoming { body: Some(body), unread: unread.clone() }), unread)
    }

    /// Reads the rest of an unread body, and returns whether the connection can take another request.
    pub async fn finish(self) -> bool {
        let Some(body) = self.take() else { return true };
        let drained = tokio::time::timeout(DRAIN_TIMEOUT, drain(body)).await;
        drained.is_ok_and(|read| read <= KEPT_BYTES)
    }

    /// Takes the body back that no handler has read.
    pub fn take(&self) -> Option<hyper::body::Incoming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl RequestBody {
    /// Returns the body as another server gets it.
    pub fn passed_on(self) -> UnsyncBoxBody<Bytes, hyper::Error> {
        let full = |bytes| Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
        match self {
            RequestBody::Full(bytes) => full(bytes),
            RequestBody::Incoming(incoming) => incoming.take().map_or_else(Default::default, BodyExt::boxed_unsync),
        }
    }

    /// Reads the whole body, at most `limit` bytes of it.
    pub async fn read(self, limit: usize) -> Result<Bytes, Status> {
        let bytes = match self {
            RequestBody::Full(bytes) if bytes.len() <= limit => bytes,
            RequestBody::Full(_) => return Err(too_large(limit)),
            RequestBody::Incoming(incoming) => {
                let Some(incoming) = incoming.take() else { return Ok(Bytes::new()) };
                let read = tokio::time::timeout(READ_TIMEOUT, read_incoming(incoming, limit)).await;
                read.map_err(|_| Status::timeout("request did not complete within the allotted timeout", 0))??
            }
        };
        Ok(bytes)
    }
}

async fn read_incoming(mut incoming: hyper::body::Incoming, limit: usize) -> Result<Bytes, Status> {
    let limited = http_body_util::Limited::new(&mut incoming, limit);
    match limited.collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(e) if e.is::<http_body_util::LengthLimitError>() => {
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, drain(incoming)).await;
            Err(too_large(limit))
        }
        Err(e) => Err(Status { code: 500, message: broken(&*e).to_owned(), ..Status::default() }),
    }
}

/// Returns upstream's words for a body that does not arrive as its head announced.
fn broken(error: &(dyn std::error::Error + 'static)) -> &'static str {
    let first = std::iter::successors(Some(error), |error| error.source()).last().map(ToString::to_string);
    match first.unwrap_or_default() {
        text if text.starts_with("Invalid chunk size") => "invalid byte in chunk length",
        text if text.starts_with("Invalid chunk") => "malformed chunked encoding",
        _ => "unexpected EOF",
    }
}

/// Reads and discards the rest of a body, and returns how many bytes it was. A client that is still sending does not
/// read: a closed connection would lose the response.
async fn drain(mut incoming: hyper::body::Incoming) -> usize {
    let mut read = 0;
    while let Some(Ok(frame)) = incoming.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > DRAIN_BYTES {
            break;
        }
    }
    read
}

fn too_large(limit: usize) -> Status {
    Status::request_too_large(&format!("limit is {limit}"))
}

/// The source of a watch's events.
pub enum Source {
    /// Events of the cache, as they happened.
    Cache(Box<Watcher>),
    /// Events that are converted to the client's version first.
    Converted(BoxStream<'static, Delivery>),
}

/// A running watch.
pub struct Watch {
    pub(crate) source: Source,
    pub(crate) encode: EventEncoder,
    /// The cache that counts the events that leave the process.
    pub(crate) cache: Arc<ResourceCache>,
    /// Values that are dropped when the watch ends: its count among the requests under way, its audit event.
    pub(crate) until_end: Vec<Box<dyn Send>>,
}

impl Watch {
    /// Returns the events as they are, for callers of the same process.
    pub fn events(self) -> BoxStream<'static, WatchEvent> {
        let until_end = self.until_end;
        let event = move |delivery: Delivery| {
            let _until_end = &until_end;
            delivery.event
        };
        match self.source {
            Source::Cache(watcher) => watcher.deliveries().map(event).boxed(),
            Source::Converted(deliveries) => deliveries.map(event).boxed(),
        }
    }

    /// Returns the events one by one, each encoded on its own.
    pub(crate) fn messages(self) -> BoxStream<'static, Bytes> {
        let Watch { source, encode, cache, until_end } = self;
        let message = move |delivery: Delivery| {
            let _until_end = &until_end;
            let frame = encode(&delivery);
            cache.storage.watches.observe(std::iter::once(frame.len()));
            frame
        };
        match source {
            Source::Cache(watcher) => watcher.deliveries().map(message).boxed(),
            Source::Converted(deliveries) => deliveries.map(message).boxed(),
        }
    }

    /// Returns the encoded events. Those that are ready together leave in one piece: fewer, fuller packets.
    pub(crate) fn frames(self) -> BoxStream<'static, Bytes> {
        let Watch { source, encode, cache, until_end } = self;
        match source {
            Source::Cache(watcher) => futures::stream::unfold((watcher, encode, until_end), |mut all| async move {
                let frames = all.0.frames(&all.1).await;
                frames.map(|frames| (frames, all))
            })
            .boxed(),
            Source::Converted(deliveries) => {
                let join = move |deliveries: Vec<Delivery>| {
                    let _until_end = &until_end;
                    let mut frames: Vec<Bytes> = deliveries.iter().map(|delivery| encode(delivery)).collect();
                    cache.storage.watches.observe(frames.iter().map(Bytes::len));
                    if frames.len() == 1 { frames.swap_remove(0) } else { frames.concat().into() }
                };
                deliveries.ready_chunks(WATCH_CHUNK).map(join).boxed()
            }
        }
    }
}

/// A list whose objects are joined when it is sent.
#[derive(Clone)]
pub struct List {
    /// The document up to and including the bracket that opens the items.
    pub(crate) head: Vec<u8>,
    pub(crate) objects: Vec<Arc<Object>>,
    /// Whether each item has its apiVersion and kind; items of built-in kinds leave them to the list.
    pub(crate) typed_items: bool,
}

impl List {
    const TAIL: &'static [u8] = b"]}\n";

    /// Estimates the bytes of the list.
    pub(crate) fn size(&self) -> usize {
        self.head.len() + self.objects.iter().map(|object| object.bytes.len() + 40).sum::<usize>()
    }

    /// Returns the whole list at once.
    pub fn join(self) -> Bytes {
        let size = self.size();
        let mut chunks = self.chunks(size);
        chunks.next().unwrap_or_default()
    }

    /// Returns the list in pieces of about this size.
    pub(crate) fn chunks(self, size: usize) -> impl Iterator<Item = Bytes> + Send + 'static {
        let List { head, objects, typed_items } = self;
        let count = objects.len();
        let mut next = 0;
        let mut begun = Some(head);
        let mut ended = false;
        std::iter::from_fn(move || {
            if ended {
                return None;
            }
            let mut piece = Vec::with_capacity(size + 4096);
            piece.extend(begun.take().unwrap_or_default());
            while next < count && piece.len() < size {
                if next > 0 {
                    piece.push(b',');
                }
                if typed_items {
                    objects[next].write_wire(&mut piece);
                } else {
                    objects[next].write_item(&mut piece);
                }
                next += 1;
            }
            if next == count {
                piece.extend_from_slice(List::TAIL);
                ended = true;
            }
            Some(piece.into())
        })
    }
}

/// The body of a response.
pub enum Body {
    Full(Bytes),
    List(List),
    Watch(Watch),
    Stream(BoxStream<'static, Result<Bytes, std::io::Error>>),
}

/// The body as hyper sends it.
pub type HttpBody = http_body_util::combinators::UnsyncBoxBody<Bytes, std::io::Error>;

impl Body {
    pub fn empty() -> Body {
        Body::Full(Bytes::new())
    }

    /// Estimates the bytes of the body, if its length is known.
    pub(crate) fn size(&self) -> Option<usize> {
        match self {
            Body::Full(bytes) => Some(bytes.len()),
            Body::List(list) => Some(list.size()),
            Body::Watch(_) | Body::Stream(_) => None,
        }
    }

    /// Returns the bytes of a body that is no stream.
    pub(crate) fn bytes(&self) -> Option<Bytes> {
        match self {
            Body::Full(bytes) => Some(bytes.clone()),
            Body::List(list) => Some(list.clone().join()),
            Body::Watch(_) | Body::Stream(_) => None,
        }
    }

    /// Returns the same body with its list joined, for callers that need its bytes.
    pub fn joined(self) -> Body {
        match self {
            Body::List(list) => Body::Full(list.join()),
            other => other,
        }
    }

    /// Turns the body into the HTTP body; watches are encoded here and only here.
    pub fn into_http(self) -> HttpBody {
        let stream = match self {
            Body::Full(bytes) => {
                return http_body_util::Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
            }
            Body::List(list) => futures::stream::iter(list.chunks(LIST_CHUNK)).map(Ok).boxed(),
            Body::Watch(watch) => watch.frames().map(Ok).boxed(),
            Body::Stream(stream) => stream,
        };
        http_body_util::StreamBody::new(stream.map(|r| r.map(http_body::Frame::data))).boxed_unsync()
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Body::Full(bytes) => write!(f, "Full({} bytes)", bytes.len()),
            Body::List(list) => write!(f, "List({} objects)", list.objects.len()),
            Body::Watch(_) => f.write_str("Watch"),
            Body::Stream(_) => f.write_str("Stream"),
        }
    }
}
