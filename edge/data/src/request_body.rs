//! Bodies of requests on their way to endpoints. The common ones cost no allocation.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::mpsc;

/// The error of a body.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request to an endpoint.
#[derive(Debug)]
pub(crate) struct RequestBody {
    source: RequestSource,
    limit: Option<SizeLimit>,
    /// Mirrors that get a copy of every frame.
    copies: Vec<mpsc::Sender<Frame<Bytes>>>,
}

/// The bytes that a body may still have.
#[derive(Clone, Debug)]
pub(crate) struct SizeLimit {
    left: u64,
    is_exceeded: Arc<AtomicBool>,
}

impl SizeLimit {
    pub(crate) fn new(left: u64) -> SizeLimit {
        SizeLimit { left, is_exceeded: Arc::default() }
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
enum RequestSource {
    Whole(WholeBody),
    Incoming(Incoming),
    /// The frames that were read already, in reverse order, then the rest.
    Resumed(Vec<Frame<Bytes>>, Incoming),
    Copied(mpsc::Receiver<Frame<Bytes>>),
}

/// A body in memory, which can be sent again.
#[derive(Clone, Debug, Default)]
pub(crate) struct WholeBody {
    pub(crate) data: Option<Bytes>,
    pub(crate) trailers: Option<HeaderMap>,
}

impl RequestBody {
    fn of(source: RequestSource) -> RequestBody {
        RequestBody { source, limit: None, copies: Vec::new() }
    }

    pub(crate) fn empty() -> RequestBody {
        RequestBody::whole(WholeBody::default())
    }

    pub(crate) fn whole(body: WholeBody) -> RequestBody {
        RequestBody::of(RequestSource::Whole(body))
    }

    /// Returns the body of a client's request.
    pub(crate) fn incoming(body: Incoming) -> RequestBody {
        if body.is_end_stream() {
            return RequestBody::empty();
        }
        RequestBody::of(RequestSource::Incoming(body))
    }

    /// Returns a body of the frames that another body copies.
    pub(crate) fn copied(frames: mpsc::Receiver<Frame<Bytes>>) -> RequestBody {
        RequestBody::of(RequestSource::Copied(frames))
    }

    pub(crate) fn set_limit(&mut self, limit: SizeLimit) {
        self.limit = Some(limit);
    }

    pub(crate) fn copy_to(&mut self, copies: Vec<mpsc::Sender<Frame<Bytes>>>) {
        self.copies = copies;
    }

    /// Reads a body that is no longer than a limit. The error is the body of a longer one, as if it were not read.
    pub(crate) async fn read_whole(mut self, limit: usize) -> Result<Result<WholeBody, RequestBody>, BodyError> {
        let mut read = Vec::new();
        let mut length = 0;
        let mut trailers = None;
        while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut self).poll_frame(context)).await {
            let frame = frame?;
            length += frame.data_ref().map_or(0, Bytes::len);
            match frame.into_trailers() {
                Ok(fields) => trailers = Some(fields),
                Err(data) => read.push(data),
            }
            if length > limit {
                read.reverse();
                self.source = match self.source {
                    RequestSource::Incoming(rest) => RequestSource::Resumed(read, rest),
                    other => other,
                };
                return Ok(Err(self));
            }
        }
        let data: Vec<u8> = read.iter().filter_map(Frame::data_ref).flatten().copied().collect();
        Ok(Ok(WholeBody { data: (!data.is_empty()).then(|| data.into()), trailers }))
    }

    fn poll_source(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.source {
            RequestSource::Whole(body) => {
                let data = body.data.take().filter(|data| !data.is_empty()).map(Frame::data);
                Poll::Ready(data.or_else(|| body.trailers.take().map(Frame::trailers)).map(Ok))
            }
            RequestSource::Resumed(_, body) | RequestSource::Incoming(body) => {
                Pin::new(body).poll_frame(context).map_err(Into::into)
            }
            RequestSource::Copied(frames) => frames.poll_recv(context).map(|frame| frame.map(Ok)),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // Frames that were read before were counted and copied then.
        if let RequestSource::Resumed(frames, _) = &mut self.source
            && let Some(frame) = frames.pop()
        {
            return Poll::Ready(Some(Ok(frame)));
        }
        let frame = match ready!(self.poll_source(context)) {
            Some(Ok(frame)) => frame,
            end => {
                self.copies.clear();
                return Poll::Ready(end);
            }
        };
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        if let Some(limit) = &mut self.limit {
            let Some(left) = limit.left.checked_sub(length) else {
                limit.is_exceeded.store(true, Ordering::Relaxed);
                return Poll::Ready(Some(Err("the request body is too large".into())));
            };
            limit.left = left;
        }
        if !self.copies.is_empty() {
            // A mirror that is slower than the endpoint loses the request.
            self.copies.retain(|copy| copy.try_send(copy_frame(&frame)).is_ok());
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            RequestSource::Whole(body) => body.data.as_ref().is_none_or(Bytes::is_empty) && body.trailers.is_none(),
            RequestSource::Incoming(body) => body.is_end_stream(),
            RequestSource::Resumed(frames, rest) => frames.is_empty() && rest.is_end_stream(),
            RequestSource::Copied(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            RequestSource::Whole(body) if body.trailers.is_none() => {
                SizeHint::with_exact(body.data.as_ref().map_or(0, Bytes::len) as u64)
            }
            RequestSource::Incoming(body) => body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

fn copy_frame(frame: &Frame<Bytes>) -> Frame<Bytes> {
    match (frame.data_ref(), frame.trailers_ref()) {
        (Some(data), _) => Frame::data(data.clone()),
        (None, Some(trailers)) => Frame::trailers(trailers.clone()),
        (None, None) => Frame::data(Bytes::new()),
    }
}
