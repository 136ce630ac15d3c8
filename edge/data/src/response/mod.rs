//! Bodies of responses on their way to clients. The common ones cost no allocation.

pub(crate) mod compression;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::access_log::Entry;
use crate::backend::{Http1Connection, InFlight};
use crate::policy::rate::Permit;
use crate::request_body::BodyError;
use compression::Gzip;

/// The body of a response to a client.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    source: ResponseSource,
    /// The time at which the response is cut, whatever was sent.
    deadline: Option<Pin<Box<Sleep>>>,
    log: Option<Box<Entry>>,
    /// Limits that count the request until the body ends. Empty for most.
    permits: Vec<Permit>,
}

#[derive(Debug)]
pub(crate) enum ResponseSource {
    Whole(Option<Bytes>),
    /// The body on a connection of HTTP/1.1, which goes back to its endpoint at the end.
    Http1 {
        /// None once the body has ended.
        connection: Option<Box<Http1Connection>>,
        request: InFlight,
    },
    Http2 {
        body: Incoming,
        /// Freed with the body.
        _slot: crate::backend::StreamSlot,
        _request: InFlight,
    },
    Gzip(Box<Gzip>),
}

impl ResponseBody {
    pub(crate) fn new(source: ResponseSource) -> ResponseBody {
        ResponseBody { source, deadline: None, log: None, permits: Vec::new() }
    }

    pub(crate) fn empty() -> ResponseBody {
        ResponseBody::new(ResponseSource::Whole(None))
    }

    pub(crate) fn whole(bytes: impl Into<Bytes>) -> ResponseBody {
        ResponseBody::new(ResponseSource::Whole(Some(bytes.into())))
    }

    pub(crate) fn set_deadline(&mut self, deadline: tokio::time::Instant) {
        self.deadline = Some(Box::pin(tokio::time::sleep_until(deadline)));
    }

    /// Keeps the permits of the request until the body is dropped.
    pub(crate) fn hold(&mut self, permits: Vec<Permit>) {
        self.permits = permits;
    }

    pub(crate) fn set_log(&mut self, log: Box<Entry>) {
        self.log = Some(log);
    }
}

impl ResponseSource {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self {
            ResponseSource::Whole(bytes) => {
                Poll::Ready(bytes.take().filter(|bytes| !bytes.is_empty()).map(|bytes| Ok(Frame::data(bytes))))
            }
            ResponseSource::Http2 { body, .. } => Pin::new(body).poll_frame(context).map_err(Into::into),
            ResponseSource::Http1 { connection, request } => {
                let Some(open) = connection else { return Poll::Ready(None) };
                let polled = open.poll_body(context);
                match &polled {
                    Poll::Ready(None) => {
                        if let Some(connection) = connection.take() {
                            request.endpoint().give_back(connection);
                        }
                    }
                    Poll::Ready(Some(Err(_))) => *connection = None,
                    _ => {}
                }
                polled
            }
            ResponseSource::Gzip(gzip) => gzip.poll(context),
        }
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        match self {
            ResponseSource::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            ResponseSource::Http1 { connection, .. } => connection.as_ref().is_none_or(|open| open.is_end()),
            ResponseSource::Http2 { body, .. } => body.is_end_stream(),
            ResponseSource::Gzip(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseSource::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            ResponseSource::Http1 { connection, .. } => {
                connection.as_ref().map_or(SizeHint::with_exact(0), |open| open.size_hint())
            }
            ResponseSource::Http2 { body, .. } => body.size_hint(),
            ResponseSource::Gzip(_) => SizeHint::default(),
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = self.source.poll(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(log) = &mut self.log
        {
            log.add_bytes(frame.data_ref().map_or(0, Bytes::len));
        }
        if polled.is_pending()
            && let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err("the response took too long".into())));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}

impl Drop for ResponseSource {
    /// Keeps the connection of a body whose end the server saw by its length.
    fn drop(&mut self) {
        if let ResponseSource::Http1 { connection, request } = self
            && let Some(connection) = connection.take_if(|open| open.is_end())
        {
            request.endpoint().give_back(connection);
        }
    }
}
