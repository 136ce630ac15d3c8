//! The client's half of a call.

use bytes::Bytes;
use futures::Stream;
use http::Uri;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codec::{Codec, CompressionEncoding, Streaming};
use tonic::codegen::StdError;
use tonic::{Request, Response, Status};

use crate::message::{Raw, decode_response, encode};

/// Makes calls over a channel.
#[derive(Debug, Clone)]
pub struct Grpc<T>(tonic::client::Grpc<T>);

impl<T> Grpc<T> {
    /// Makes a client over `channel`.
    pub fn new(channel: T) -> Grpc<T> {
        Grpc(tonic::client::Grpc::new(channel))
    }

    /// Makes a client over `channel` whose requests name `origin`.
    pub fn with_origin(channel: T, origin: Uri) -> Grpc<T> {
        Grpc(tonic::client::Grpc::with_origin(channel, origin))
    }

    /// Compresses requests.
    pub fn send_compressed(self, encoding: CompressionEncoding) -> Grpc<T> {
        Grpc(self.0.send_compressed(encoding))
    }

    /// Accepts compressed responses.
    pub fn accept_compressed(self, encoding: CompressionEncoding) -> Grpc<T> {
        Grpc(self.0.accept_compressed(encoding))
    }

    /// Limits the size of a message that is received.
    pub fn max_decoding_message_size(self, limit: usize) -> Grpc<T> {
        Grpc(self.0.max_decoding_message_size(limit))
    }

    /// Limits the size of a message that is sent.
    pub fn max_encoding_message_size(self, limit: usize) -> Grpc<T> {
        Grpc(self.0.max_encoding_message_size(limit))
    }
}

impl<T> Grpc<T>
where
    T: GrpcService<Body>,
    T::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<StdError>,
{
    /// Waits until the channel takes a request.
    pub async fn ready(&mut self) -> Result<(), T::Error> {
        self.0.ready().await
    }

    /// Sends one message and returns the one that answers it. The codec names the types of both.
    pub async fn unary<M1, M2, C>(
        &mut self,
        request: Request<M1>,
        path: PathAndQuery,
        _codec: C,
    ) -> Result<Response<M2>, Status>
    where
        C: Codec<Encode = M1, Decode = M2>,
        M1: Message,
        M2: Message + Default,
    {
        let response = self.0.unary(request.map(encode), path, Raw).await?;
        decode_response(response)
    }

    /// Sends one message and returns the stream that answers it.
    pub async fn server_streaming<M1, M2, C>(
        &mut self,
        request: Request<M1>,
        path: PathAndQuery,
        codec: C,
    ) -> Result<Response<Streaming<M2>>, Status>
    where
        C: Codec<Encode = M1, Decode = M2>,
        M1: Send + Sync + 'static,
        M2: Send + Sync + 'static,
    {
        self.0.server_streaming(request, path, codec).await
    }

    /// Sends a stream of messages and returns the stream that answers it.
    pub async fn streaming<S, M1, M2, C>(
        &mut self,
        request: Request<S>,
        path: PathAndQuery,
        codec: C,
    ) -> Result<Response<Streaming<M2>>, Status>
    where
        S: Stream<Item = M1> + Send + 'static,
        C: Codec<Encode = M1, Decode = M2>,
        M1: Send + Sync + 'static,
        M2: Send + Sync + 'static,
    {
        self.0.streaming(request, path, codec).await
    }
}
