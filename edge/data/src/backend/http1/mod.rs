//! Connections of HTTP/1.1 to endpoints.
//!
//! A connection has no task of its own: the task of the request polls it, so a request costs no switch between tasks and no
//! channel. An idle connection is polled by nothing; it is polled once when it is taken, which finds that the endpoint
//! closed it.
//!
//! Invariant: a connection takes another request only if both bodies of the last one were passed on whole.

mod chunked;
mod decode;
mod encode;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Method, Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::request_body::{BodyError, RequestBody};
use crate::stream::Stream;
use decode::{Framing, Piece};

/// The bytes that are read at once at first, and at most.
const FIRST_READ: usize = 8 * 1024;
const MAX_READ: usize = 256 * 1024;

/// Bytes that are no response of HTTP/1.1.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the endpoint's response is invalid")]
pub(crate) struct Invalid;

pub(crate) struct Http1Connection {
    stream: Stream,
    /// Bytes that were read and not used yet.
    read: BytesMut,
    /// Bytes that are still to be written.
    out: BytesMut,
    /// The request's body that is still to be passed on.
    sending: Option<Sending>,
    /// The position in the response's body.
    receiving: Framing,
    /// The bytes that the next read takes at most.
    read_size: usize,
    /// Whether the endpoint keeps the connection after the response.
    is_kept: bool,
    /// Whether requests of other clients may follow.
    is_shared: bool,
    /// Whether the connection has served a request before.
    pub(crate) is_reused: bool,
}

struct Sending {
    body: RequestBody,
    framing: encode::Framing,
}

impl fmt::Debug for Http1Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Http1Connection").field("is_reused", &self.is_reused).finish_non_exhaustive()
    }
}

/// A request that got no response.
#[derive(Debug)]
pub(crate) struct SendError {
    /// Whether the endpoint sent something that is no response.
    pub(crate) is_invalid: bool,
    /// Whether a byte of the request was sent.
    pub(crate) is_sent: bool,
    /// Whether the request is still whole: no part of its body may be lost.
    pub(crate) is_whole: bool,
}

/// The failure of a connection in the middle of a message.
#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("the request's body ended early: {0}")]
    Body(BodyError),
}

impl Http1Connection {
    /// Begins HTTP on a new connection.
    pub(super) fn new(stream: Stream, is_shared: bool) -> Http1Connection {
        Http1Connection {
            stream,
            read: BytesMut::new(),
            out: BytesMut::new(),
            sending: None,
            receiving: Framing::EMPTY,
            read_size: FIRST_READ,
            is_kept: true,
            is_shared,
            is_reused: false,
        }
    }

    /// Reports whether the connection can take another request.
    pub(super) fn is_open(&mut self) -> bool {
        let is_whole = self.sending.is_none() && self.out.is_empty() && self.receiving.is_end();
        if !self.is_shared || !self.is_kept || !is_whole || !self.read.is_empty() {
            return false;
        }
        let mut byte = [0];
        let mut context = Context::from_waker(Waker::noop());
        // An end, an error and bytes that no request asked for are all the same.
        Pin::new(&mut self.stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Reports whether the endpoint has left a connection that rests as it was.
    pub(super) fn is_silent(&mut self) -> bool {
        self.stream.is_silent()
    }

    /// Sends a request and waits for the head of its response. The body of a request that was sent is taken.
    pub(crate) async fn send(&mut self, request: &mut Request<RequestBody>) -> Result<Response<()>, SendError> {
        self.is_reused = true;
        self.is_kept = false;
        self.out.clear();
        let framing = encode::head(request, &mut self.out);
        let begun = std::future::poll_fn(|context| Pin::new(&mut self.stream).poll_write(context, &self.out)).await;
        match begun {
            Ok(written) if written > 0 => self.out.advance(written),
            _ => return Err(SendError { is_invalid: false, is_sent: false, is_whole: true }),
        }
        let is_bodiless = framing.is_none();
        self.sending = framing.map(|framing| {
            let body = std::mem::replace(request.body_mut(), RequestBody::empty());
            Sending { body, framing }
        });
        let answered = std::future::poll_fn(|context| self.poll_response(context, request.method())).await;
        answered.map_err(|failure| {
            let is_invalid = matches!(failure, Failure::Invalid(_));
            tracing::debug!(error = %failure, "an endpoint gave no response");
            SendError { is_invalid, is_sent: true, is_whole: is_bodiless }
        })
    }

    /// Passes the request on, and reads the head of the response, which may come before the request has ended.
    fn poll_response(&mut self, context: &mut Context<'_>, method: &Method) -> Poll<Result<Response<()>, Failure>> {
        let sent = self.poll_send(context);
        let answered = self.poll_head(context, method);
        match (sent, answered) {
            // An endpoint that does not want the whole body answers before it closes.
            (_, Poll::Ready(Ok(response))) => Poll::Ready(Ok(response)),
            (Poll::Ready(Err(failure)), _) => Poll::Ready(Err(failure)),
            (_, other) => other,
        }
    }

    fn poll_head(&mut self, context: &mut Context<'_>, method: &Method) -> Poll<Result<Response<()>, Failure>> {
        loop {
            if !self.read.is_empty()
                && let Some(head) = decode::take_head(&mut self.read, method)?
            {
                self.receiving = head.body;
                self.is_kept = head.is_kept;
                let mut response = Response::new(());
                *response.status_mut() = head.status;
                *response.headers_mut() = head.headers;
                return Poll::Ready(Ok(response));
            }
            if ready!(self.poll_read(context))? == 0 {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
        }
    }

    /// Writes what is left of the request.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            while !self.out.is_empty() {
                match ready!(Pin::new(&mut self.stream).poll_write(context, &self.out))? {
                    0 => return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into())),
                    written => self.out.advance(written),
                }
            }
            let Some(sending) = &mut self.sending else {
                return Pin::new(&mut self.stream).poll_flush(context).map_err(Into::into);
            };
            let polled = Pin::new(&mut sending.body).poll_frame(context);
            let wrong_length = |_| Failure::Body("its length is not the one that was named".into());
            match polled {
                Poll::Pending => {
                    ready!(Pin::new(&mut self.stream).poll_flush(context))?;
                    return Poll::Pending;
                }
                Poll::Ready(Some(frame)) => {
                    let frame = frame.map_err(Failure::Body)?;
                    sending.framing.frame(frame, &mut self.out).map_err(wrong_length)?;
                }
                Poll::Ready(None) => {
                    sending.framing.end(&mut self.out).map_err(wrong_length)?;
                    self.sending = None;
                }
            }
        }
    }

    /// Reads more bytes; none at the end.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read.capacity() - self.read.len() < self.read_size / 2 {
            self.read.reserve(self.read_size);
        }
        let before = self.read.len();
        let read = ready!(tokio_util::io::poll_read_buf(Pin::new(&mut self.stream), context, &mut self.read))?;
        debug_assert_eq!(self.read.len(), before + read);
        if read >= self.read_size {
            self.read_size = (self.read_size * 2).min(MAX_READ);
        }
        Poll::Ready(Ok(read))
    }

    /// Reads the next frame of the response's body, and passes on what is left of the request.
    pub(crate) fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if (self.sending.is_some() || !self.out.is_empty())
            && let Poll::Ready(Err(failure)) = self.poll_send(context)
        {
            // The response may still come; the connection takes no further request.
            tracing::debug!(error = %failure, "a request was not passed on whole");
            self.sending = None;
            self.out.clear();
            self.is_kept = false;
        }
        loop {
            match self.receiving.next(&mut self.read) {
                Ok(Some(Piece::Data(data))) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(Some(Piece::Trailers(trailers))) => return Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                Ok(Some(Piece::End)) => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
            match ready!(self.poll_read(context)) {
                Ok(0) if self.receiving == Framing::Close => {
                    self.receiving = Framing::EMPTY;
                    return Poll::Ready(None);
                }
                Ok(0) => return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    /// Reports whether the response's body was read to its end.
    pub(crate) fn is_end(&self) -> bool {
        self.receiving.is_end()
    }

    /// Returns the bytes that the response's body still has, if they are known.
    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.receiving {
            Framing::Length(left) => SizeHint::with_exact(left),
            _ if self.is_end() => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }

    /// Returns the stream and the bytes that were read from it after a response that changed protocols.
    pub(crate) fn into_upgraded(self) -> Upgraded {
        Upgraded { stream: self.stream, read: self.read.freeze() }
    }
}

/// A connection that changed protocols.
pub(crate) struct Upgraded {
    pub(crate) stream: Stream,
    pub(crate) read: Bytes,
}

impl super::Endpoint {
    /// Keeps a connection whose response was read to its end.
    pub(crate) fn give_back(&self, connection: Box<Http1Connection>) {
        self.keep(connection);
    }
}

/// Reads a response in pieces of some length, for the fuzzer. Returns its status, its body, and whether it has ended.
pub(crate) fn read_in_pieces(response: &[u8], method: &Method, length: usize) -> Option<ReadResponse> {
    let mut read = BytesMut::new();
    let mut head = None;
    let mut made = ReadResponse::default();
    for piece in response.chunks(length.max(1)) {
        read.extend_from_slice(piece);
        if head.is_none() {
            head = decode::take_head(&mut read, method).ok()?;
        }
        let Some(head) = &mut head else { continue };
        made.status = head.status.as_u16();
        while !head.body.is_end() {
            match head.body.next(&mut read).ok()? {
                Some(Piece::Data(data)) => made.body.extend_from_slice(&data),
                Some(Piece::Trailers(trailers)) => made.trailers = trailers.len(),
                Some(Piece::End) | None => break,
            }
        }
        made.is_whole = head.body.is_end();
    }
    Some(made)
}

/// A response as the fuzzer sees it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReadResponse {
    pub status: u16,
    pub body: Vec<u8>,
    pub trailers: usize,
    pub is_whole: bool,
}
