//! Serves a gRPC service of the kubelet on a unix socket, for plugins and monitoring agents of the node.

use std::convert::Infallible;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use corten_listen::{Gate, Limits};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::codegen::Service;

use super::authority::Rewritten;
use crate::error::{Error, Result};

/// The number of connections; every peer is root.
const LIMITS: Limits = Limits::anonymous(256);

/// Binds a socket that only root may use, in a directory that is created if it is missing.
pub fn listen(socket: &Path) -> Result<UnixListener> {
    let directory = socket.parent().unwrap_or(socket);
    std::fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
    // An earlier kubelet may have left its socket.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).map_err(Error::file("listen on", socket))?;
    std::fs::set_permissions(socket, Permissions::from_mode(0o600)).map_err(Error::file("chmod", socket))?;
    Ok(listener)
}

/// Serves every connection until shutdown.
pub async fn serve<S>(listener: UnixListener, service: S, stop: CancellationToken)
where
    S: Service<http::Request<Incoming>, Response = http::Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let connections = TaskTracker::new();
    let gate = Gate::new(LIMITS);
    loop {
        let (socket, slot) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = gate.accept(&listener) => accepted,
        };
        // The mode of the socket allows only root to connect.
        slot.authenticated();
        let service = service.clone();
        let stop = stop.clone();
        connections.spawn(async move {
            let _slot = slot;
            let answer = hyper::service::service_fn(move |request| service.clone().call(request));
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::select! {
                () = stop.cancelled() => {}
                _ = http.serve_connection(TokioIo::new(Rewritten::new(socket)), answer) => {}
            }
        });
    }
    connections.close();
    connections.wait().await;
}
