//! Requests that end on a node: logs, exec, attach, port-forward to kubelets, proxy to kubelets, pods and services.
//!
//! The server authorizes and finds the way; bytes are passed through as they are. Streams (WebSocket or SPDY)
//! are upgraded on both sides and joined: the kubelet speaks their protocol, not the API server.

mod backend;
mod fetch;
mod kubelet;
mod locate;
mod options;
mod unverified;

use corten_api::Role;
use corten_meta::Status;
use http::StatusCode;

pub use fetch::fetch_from_kubelet;
pub use kubelet::Kubelets;

use crate::admission::Operation;
use crate::body::{Body, Reply, RequestBody};
use crate::handlers::Target;

/// Finds the backend of the request and passes it on.
pub async fn connect(target: &Target<'_>, role: Role, body: RequestBody) -> Result<Reply, Status> {
    if role != Role::Log {
        let admission = &target.server.admission;
        admission.pass(target, Operation::Connect, options::of_request(target, role)).await?;
    }
    let backend = match role {
        Role::Proxy => locate::proxied(target).await?,
        _ => match locate::of_pod(target, role).await? {
            Some(backend) => backend,
            // A pod that no node has taken yet has logged nothing.
            None => return Ok(nothing()),
        },
    };
    backend::forward(target, backend, role, body).await
}

fn nothing() -> Reply {
    let mut reply = Reply::new(Body::empty());
    *reply.status_mut() = StatusCode::NO_CONTENT;
    reply
}
