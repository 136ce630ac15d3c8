//! The container runtime interface, v1: its messages, the kubelet's client and the runtime's server.
//!
//! The kubelet and the runtime meet only here, so either can be swapped for another implementation of CRI v1
//! (containerd, CRI-O, an upstream kubelet). This package holds no behaviour of either side: the messages of
//! `proto/cri.proto`, and the functions that open a channel to a socket.

use std::path::Path;

use tonic::transport::{Channel, Endpoint};

/// Messages, clients and servers of the package `runtime.v1`.
pub mod v1 {
    #![allow(clippy::all, missing_docs)]
    tonic::include_proto!("runtime.v1");
}

pub use v1::image_service_client::ImageServiceClient;
pub use v1::image_service_server::{ImageService, ImageServiceServer};
pub use v1::runtime_service_client::RuntimeServiceClient;
pub use v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};

/// The largest message either side accepts: upstream's limit of the kubelet's CRI client.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The error of a channel to a runtime that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket does not exist, refuses, or is not a CRI endpoint.
    #[error("connect to the container runtime at {socket}: {source}")]
    Connect {
        /// The dialled socket.
        socket: String,
        /// The transport's error.
        source: tonic::transport::Error,
    },
}

/// Opens a channel to the CRI server that listens on `socket`, a path or a `unix://` address.
///
/// The channel reconnects by itself when the runtime restarts; a call before that fails with `Unavailable`.
pub async fn connect(socket: impl AsRef<Path>) -> Result<Channel, Error> {
    let endpoint = endpoint(socket.as_ref())?;
    endpoint.connect().await.map_err(|source| connect_error(socket.as_ref(), source))
}

/// Opens the same channel, dialled at its first call: for a client that starts before the runtime does.
pub fn connect_lazy(socket: impl AsRef<Path>) -> Result<Channel, Error> {
    Ok(endpoint(socket.as_ref())?.connect_lazy())
}

fn endpoint(socket: &Path) -> Result<Endpoint, Error> {
    let shown = socket.display().to_string();
    let path = shown.strip_prefix("unix://").unwrap_or(&shown);
    Endpoint::try_from(format!("unix://{path}")).map_err(|source| connect_error(socket, source))
}

fn connect_error(socket: &Path, source: tonic::transport::Error) -> Error {
    Error::Connect { socket: socket.display().to_string(), source }
}

/// Makes a client of the runtime service with the CRI's message limits.
pub fn runtime_client(channel: Channel) -> RuntimeServiceClient<Channel> {
    RuntimeServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

/// Makes a client of the image service with the CRI's message limits.
pub fn image_client(channel: Channel) -> ImageServiceClient<Channel> {
    ImageServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The channel dials the given path, with or without the scheme, and reaches a server.
    #[tokio::test]
    async fn client_reaches_a_server_over_a_unix_socket() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let socket = directory.path().join("cri.sock");
        let listener = tokio::net::UnixListener::bind(&socket).expect("bind");
        let server = tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(ImageServiceServer::new(OneImage))
                .serve_with_incoming(tokio_stream::wrappers::UnixListenerStream::new(listener)),
        );
        for address in [socket.display().to_string(), format!("unix://{}", socket.display())] {
            let channel = connect(&address).await.expect("connect");
            let listed = image_client(channel).list_images(v1::ListImagesRequest::default()).await.expect("list");
            assert_eq!(listed.into_inner().images[0].id, "sha256:one");
        }
        server.abort();
    }

    #[tokio::test]
    async fn a_missing_socket_is_named_in_the_error() {
        let error = connect("/nowhere/cri.sock").await.expect_err("no such socket");
        assert!(error.to_string().contains("/nowhere/cri.sock"), "{error}");
    }

    /// A message that is not of the method's type fails the call as it does in tonic, and reaches no handler.
    #[tokio::test]
    async fn bytes_of_another_message_are_an_internal_error() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let socket = directory.path().join("cri.sock");
        let listener = tokio::net::UnixListener::bind(&socket).expect("bind");
        let server = tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(ImageServiceServer::new(OneImage))
                .serve_with_incoming(tokio_stream::wrappers::UnixListenerStream::new(listener)),
        );
        let mut client = tonic::client::Grpc::new(connect(&socket).await.expect("connect"));
        client.ready().await.expect("ready");
        let codec = tonic_prost::ProstCodec::<v1::UInt64Value, v1::ListImagesResponse>::default();
        let path = tonic::codegen::http::uri::PathAndQuery::from_static("/runtime.v1.ImageService/ListImages");
        let request = tonic::Request::new(v1::UInt64Value { value: 7 });
        let status = client.unary(request, path, codec).await.expect_err("a number is no filter");
        assert_eq!(status.code(), tonic::Code::Internal, "{status}");
        server.abort();
    }

    struct OneImage;

    #[tonic::async_trait]
    impl ImageService for OneImage {
        async fn list_images(
            &self,
            _: tonic::Request<v1::ListImagesRequest>,
        ) -> Result<tonic::Response<v1::ListImagesResponse>, tonic::Status> {
            let image = v1::Image { id: "sha256:one".into(), ..Default::default() };
            Ok(tonic::Response::new(v1::ListImagesResponse { images: vec![image] }))
        }

        async fn image_status(
            &self,
            _: tonic::Request<v1::ImageStatusRequest>,
        ) -> Result<tonic::Response<v1::ImageStatusResponse>, tonic::Status> {
            Err(tonic::Status::unimplemented("not used by the test"))
        }

        async fn pull_image(
            &self,
            _: tonic::Request<v1::PullImageRequest>,
        ) -> Result<tonic::Response<v1::PullImageResponse>, tonic::Status> {
            Err(tonic::Status::unimplemented("not used by the test"))
        }

        async fn remove_image(
            &self,
            _: tonic::Request<v1::RemoveImageRequest>,
        ) -> Result<tonic::Response<v1::RemoveImageResponse>, tonic::Status> {
            Err(tonic::Status::unimplemented("not used by the test"))
        }

        async fn image_fs_info(
            &self,
            _: tonic::Request<v1::ImageFsInfoRequest>,
        ) -> Result<tonic::Response<v1::ImageFsInfoResponse>, tonic::Status> {
            Err(tonic::Status::unimplemented("not used by the test"))
        }
    }
}
