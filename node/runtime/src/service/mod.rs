//! The gRPC services: each method translates a request and calls the daemon.

mod image;
mod runtime;

use std::sync::Arc;
use std::time::Duration;

use corten_cri::{ImageServiceServer, MAX_MESSAGE_BYTES, RuntimeServiceServer};
use corten_listen::{Gate, Limits, Slot};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::codegen::Service;

use image::Images;
use runtime::Runtime;

use crate::daemon::Daemon;
use crate::streaming::StreamingServer;

/// The time that calls may take to finish at shutdown.
const GRACE: Duration = Duration::from_secs(5);
/// The limit of concurrent connections; every peer is root.
const LIMITS: Limits = Limits::anonymous(1024);

/// The shared state of both services.
#[derive(Clone)]
pub(crate) struct Services {
    pub daemon: Arc<Daemon>,
    pub streaming: StreamingServer,
}

/// Both CRI services on one connection.
#[derive(Clone)]
struct Router {
    runtime: RuntimeServiceServer<Runtime>,
    images: ImageServiceServer<Images>,
}

/// Serves every connection until `shutdown`, then lets running calls finish.
pub(crate) async fn serve(listener: UnixListener, services: Services, shutdown: CancellationToken) {
    let router = Router {
        runtime: RuntimeServiceServer::new(Runtime(services.clone()))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES),
        images: ImageServiceServer::new(Images(services)).max_decoding_message_size(MAX_MESSAGE_BYTES),
    };
    let connections = TaskTracker::new();
    let gate = Gate::new(LIMITS);
    loop {
        let (socket, slot) = tokio::select! {
            accepted = gate.accept(&listener) => accepted,
            () = shutdown.cancelled() => break,
        };
        // The mode of the socket lets root alone connect.
        slot.authenticated();
        connections.spawn(router.clone().serve(socket, slot, shutdown.clone()));
    }
    connections.close();
    let _ = tokio::time::timeout(GRACE, connections.wait()).await;
}

impl Router {
    async fn serve(self, socket: UnixStream, _slot: Slot, shutdown: CancellationToken) {
        let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let mut router = self.clone();
            async move {
                match request.uri().path().starts_with("/runtime.v1.ImageService/") {
                    true => router.images.call(request).await,
                    // The runtime service answers unknown paths as unimplemented.
                    false => router.runtime.call(request).await,
                }
            }
        });
        let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let connection = http.serve_connection(TokioIo::new(socket), service);
        tokio::pin!(connection);
        tokio::select! {
            _ = &mut connection => return,
            () = shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}
