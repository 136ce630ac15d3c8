//! Requests that end on a node: logs, exec, attach and port-forward to kubelets, proxy to kubelets, pods and services.
//!
//! The server authorizes and locates the backend; bytes are forwarded unchanged, except for the links of proxied pages.
//! Streams (WebSocket or SPDY) are upgraded on both sides and joined: the kubelet implements their protocol, not the
//! API server. Only a log over a WebSocket is the API server's own.

pub(crate) mod backend;
mod destination;
mod fetch;
mod kubelet;
mod kubelet_identity;
pub(crate) mod links;
mod locate;
mod log_socket;
mod options;

use corten_admission::Operation;
use corten_api::Role;
use corten_meta::Status;
use http::{HeaderValue, Method, StatusCode, header};

pub use backend::{is_passed_on, join, passed};
pub use fetch::fetch_from_kubelet;
pub use kubelet::Kubelets;

use crate::body::{Body, Reply, RequestBody};
use crate::websocket::is_upgrade;
use crate::write::Scope;

/// Locates the backend of the request and forwards the request.
pub async fn connect(target: &Scope<'_>, kubelets: &Kubelets, role: Role, body: RequestBody) -> Result<Reply, Status> {
    options::check(target, role)?;
    if role != Role::Log {
        target.admission.pass(target.for_admission(), Operation::Connect, options::of_request(target, role)).await?;
    }
    let backend = match role {
        Role::Proxy => {
            let backend = locate::proxied(target).await?;
            if let Some(redirect) = redirect_to_root(target) {
                return Ok(redirect);
            }
            backend
        }
        _ => match locate::of_pod(target, role).await? {
            Some(backend) => backend,
            // A pod without a node has no logs.
            None => return Ok(empty_log()),
        },
    };
    if !matches!(role, Role::Proxy | Role::Log) && !is_upgrade(&target.context.headers) {
        return Err(Status::bad_request("Upgrade request required"));
    }
    backend::forward(target, kubelets, backend, role, body).await
}

/// Redirects `…/proxy` to `…/proxy/`, so that relative links of the page work.
fn redirect_to_root(target: &Scope<'_>) -> Option<Reply> {
    let context = target.context;
    let reads = matches!(context.method, Method::GET | Method::HEAD) && !is_upgrade(&context.headers);
    if !reads || !context.info.remainder.is_empty() || context.info.path.ends_with('/') {
        return None;
    }
    let query = if context.raw_query.is_empty() { String::new() } else { format!("?{}", context.raw_query) };
    let location = HeaderValue::from_str(&format!("{}/{query}", context.info.path)).ok()?;
    let mut reply = Reply::new(Body::empty());
    *reply.status_mut() = StatusCode::MOVED_PERMANENTLY;
    reply.headers_mut().insert(header::LOCATION, location);
    Some(reply)
}

fn empty_log() -> Reply {
    let mut reply = Reply::new(Body::empty());
    *reply.status_mut() = StatusCode::NO_CONTENT;
    reply
}
