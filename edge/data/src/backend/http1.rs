//! Connections of HTTP/1.1 to endpoints.
//!
//! A connection has no task of its own: the task of the request polls it, so a request costs no switch between tasks. An
//! idle connection is polled by nothing; it is polled once when it is taken, which finds that the endpoint closed it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Connection, Parts, SendRequest};
use hyper_util::rt::TokioIo;

use crate::request_body::RequestBody;
use crate::stream::Stream;

/// The most bytes of a response's head.
const MAX_HEAD: usize = 256 * 1024;
/// The most headers of a response.
const MAX_HEADERS: usize = 256;

pub(crate) struct Http1Connection {
    sender: SendRequest<RequestBody>,
    connection: Connection<TokioIo<Stream>, RequestBody>,
    is_finished: bool,
    /// Whether requests of other clients may follow.
    is_shared: bool,
    /// Whether the connection has served a request before.
    pub(crate) is_reused: bool,
}

impl fmt::Debug for Http1Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Http1Connection").field("is_reused", &self.is_reused).finish_non_exhaustive()
    }
}

/// A request that got no response.
#[derive(Debug)]
pub(crate) struct SendError {
    pub(crate) error: hyper::Error,
    /// The request, if no byte of it was sent.
    pub(crate) unsent: Option<Request<RequestBody>>,
}

/// Begins HTTP on a new connection.
pub(super) async fn open(stream: Stream, is_shared: bool) -> Result<Http1Connection, hyper::Error> {
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    Ok(Http1Connection { sender, connection, is_finished: false, is_shared, is_reused: false })
}

impl Http1Connection {
    /// Moves bytes. Returns true once the connection is closed.
    pub(crate) fn drive(&mut self, context: &mut Context<'_>) -> bool {
        if !self.is_finished {
            self.is_finished = self.connection.poll_without_shutdown(context).is_ready();
        }
        self.is_finished
    }

    /// Reports whether the connection can take another request.
    pub(super) fn is_open(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        self.is_shared && !self.drive(&mut context) && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its response.
    pub(crate) async fn send(&mut self, request: Request<RequestBody>) -> Result<Response<Incoming>, SendError> {
        // A new connection takes its first request only after it was polled.
        std::future::poll_fn(|context| {
            if self.sender.is_ready() || self.drive(context) || self.sender.is_ready() {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
        let mut response = std::pin::pin!(self.sender.try_send_request(request));
        let sent = std::future::poll_fn(|context| {
            let is_finished = self.drive(context);
            match Pin::as_mut(&mut response).poll(context) {
                Poll::Pending if is_finished => Poll::Ready(None),
                polled => polled.map(Some),
            }
        })
        .await;
        self.is_reused = true;
        match sent {
            Some(Ok(response)) => Ok(response),
            Some(Err(mut error)) => {
                let unsent = error.take_message();
                Err(SendError { error: error.into_error(), unsent })
            }
            // The connection answers every request before it ends.
            None => match response.await {
                Ok(response) => Ok(response),
                Err(mut error) => {
                    let unsent = error.take_message();
                    Err(SendError { error: error.into_error(), unsent })
                }
            },
        }
    }

    /// Returns the stream and the bytes that were read from it after a response that changed protocols.
    pub(crate) async fn upgrade(mut self) -> Parts<TokioIo<Stream>> {
        std::future::poll_fn(|context| if self.drive(context) { Poll::Ready(()) } else { Poll::Pending }).await;
        self.connection.into_parts()
    }
}

impl super::Endpoint {
    /// Keeps a connection whose response was read to its end.
    pub(crate) fn give_back(&self, connection: Box<Http1Connection>) {
        self.keep(connection);
    }
}
