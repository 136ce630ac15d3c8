//! Requests that end on a node: logs, exec, attach, port-forward to kubelets, proxy to kubelets, pods and services.
//!
//! The server authorizes and finds the way; bytes are passed through as they are. Streams (WebSocket or SPDY)
//! are upgraded on both sides and joined: the kubelet speaks their protocol, not the API server.

mod backend;
mod kubelet;
mod locate;

use corten_api::Role;
use corten_meta::Status;

pub use kubelet::Kubelets;

use crate::body::{Reply, RequestBody};
use crate::handlers::Target;

/// Finds the backend of the request and passes it on.
pub async fn connect(target: &Target<'_>, role: Role, body: RequestBody) -> Result<Reply, Status> {
    let backend = match role {
        Role::Proxy => locate::proxied(target).await?,
        _ => locate::of_pod(target, role).await?,
    };
    backend::forward(target, backend, body).await
}
