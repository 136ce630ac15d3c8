//! The server's half of a call.

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use prost::Message;
use tonic::body::Body;
use tonic::codec::{Codec, EnabledCompressionEncodings};
use tonic::codegen::StdError;
use tonic::server::{ServerStreamingService, StreamingService, UnaryService};
use tonic::{Request, Response, Status};

use crate::message::{Raw, decode_request, encode};

/// Serves the calls of one method.
#[derive(Debug)]
pub struct Grpc<C> {
    codec: C,
    settings: Settings,
}

#[derive(Debug, Default, Clone, Copy)]
struct Settings {
    accepted: EnabledCompressionEncodings,
    sent: EnabledCompressionEncodings,
    max_decoding_message_size: Option<usize>,
    max_encoding_message_size: Option<usize>,
}

impl Settings {
    fn grpc<C: Codec>(self, codec: C) -> tonic::server::Grpc<C> {
        tonic::server::Grpc::new(codec)
            .apply_compression_config(self.accepted, self.sent)
            .apply_max_message_size_config(self.max_decoding_message_size, self.max_encoding_message_size)
    }
}

impl<C: Codec + Clone> Grpc<C> {
    /// Serves with the messages of `codec`.
    pub fn new(codec: C) -> Grpc<C> {
        Grpc { codec, settings: Settings::default() }
    }

    /// Sets the encodings that are accepted and sent.
    pub fn apply_compression_config(
        mut self,
        accepted: EnabledCompressionEncodings,
        sent: EnabledCompressionEncodings,
    ) -> Grpc<C> {
        (self.settings.accepted, self.settings.sent) = (accepted, sent);
        self
    }

    /// Sets the limits of a message that is received and of one that is sent.
    pub fn apply_max_message_size_config(mut self, received: Option<usize>, sent: Option<usize>) -> Grpc<C> {
        self.settings.max_decoding_message_size = received;
        self.settings.max_encoding_message_size = sent;
        self
    }

    /// Serves a call of one message that is answered by one.
    pub async fn unary<S, B>(&mut self, service: S, request: http::Request<B>) -> http::Response<Body>
    where
        S: UnaryService<C::Decode, Response = C::Encode> + Send + 'static,
        S::Future: Send + 'static,
        C::Encode: Message,
        C::Decode: Message + Default,
        B: http_body::Body + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        self.settings.grpc(Raw).unary(Handler::new(service), request).await
    }

    /// Serves a call of one message that is answered by a stream.
    pub async fn server_streaming<S, B>(&mut self, service: S, request: http::Request<B>) -> http::Response<Body>
    where
        S: ServerStreamingService<C::Decode, Response = C::Encode>,
        S::ResponseStream: Send + 'static,
        B: http_body::Body + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        self.settings.grpc(self.codec.clone()).server_streaming(service, request).await
    }

    /// Serves a call of a stream that is answered by a stream.
    pub async fn streaming<S, B>(&mut self, service: S, request: http::Request<B>) -> http::Response<Body>
    where
        S: StreamingService<C::Decode, Response = C::Encode> + Send,
        S::ResponseStream: Send + 'static,
        B: http_body::Body + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        self.settings.grpc(self.codec.clone()).streaming(service, request).await
    }
}

type Answer = BoxFuture<'static, Result<Response<Bytes>, Status>>;

/// A method as a function of bytes: one type for all methods.
struct Handler(Box<dyn FnMut(Request<Bytes>) -> Answer + Send>);

impl Handler {
    fn new<S, M>(mut service: S) -> Handler
    where
        S: UnaryService<M> + Send + 'static,
        S::Future: Send + 'static,
        S::Response: Message,
        M: Message + Default,
    {
        Handler(Box::new(move |request| match decode_request(request) {
            Ok(request) => service.call(request).map(|answer| Ok(answer?.map(encode))).boxed(),
            Err(status) => ready(Err(status)).boxed(),
        }))
    }
}

impl UnaryService<Bytes> for Handler {
    type Response = Bytes;
    type Future = Answer;

    fn call(&mut self, request: Request<Bytes>) -> Answer {
        self.0(request)
    }
}
