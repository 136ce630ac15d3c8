//! References of routes to backends.

use std::sync::Arc;

use corten_meta::Key;
use corten_routing::{BackendKey, BackendProtocol, BackendRef, Filter};

use super::certificates::Problem;
use super::references::{self, From};
use crate::objects::{Objects, Reference, ServicePort};

/// Protocols of Service ports (appProtocol) that speak HTTP/2 in the clear.
const H2C: &str = "kubernetes.io/h2c";
/// Protocols of Service ports that are HTTP/1.1.
const WEB_SOCKET: [&str; 2] = ["kubernetes.io/ws", "kubernetes.io/wss"];

/// Returns the port of a Service that a route refers to.
pub fn resolve(objects: &Objects, from: From<'_>, to: &Reference) -> Result<BackendKey, Problem> {
    let kind = if to.kind.is_empty() { "Service" } else { &to.kind };
    if !to.group.is_empty() || kind != "Service" {
        return Err(Problem::new("InvalidKind", format!("{kind} {} is no Service", to.name)));
    }
    let to = Reference { kind: kind.to_owned(), ..to.clone() };
    let namespace = to.namespace.clone().unwrap_or_else(|| from.namespace.to_owned());
    let key = Key::new(namespace, to.name.clone());
    if !references::is_permitted(objects, from, &to) {
        let message = format!("no ReferenceGrant allows the reference to Service {key}");
        return Err(Problem::new("RefNotPermitted", message));
    }
    let not_found = |message: String| Problem::new("BackendNotFound", message);
    let service = objects.services.get(&key).ok_or_else(|| not_found(format!("Service {key} does not exist")))?;
    let number = to.port.ok_or_else(|| not_found(format!("the reference to Service {key} names no port")))?;
    let port = service.spec.ports.iter().find(|port| port.port == number);
    let port = port.ok_or_else(|| not_found(format!("Service {key} has no port {number}")))?;
    if service.spec.type_ == "ExternalName" {
        return Err(not_found(format!("Service {key} is an external name")));
    }
    protocol_of(port)?;
    Ok(BackendKey { namespace: key.namespace.as_str().into(), service: key.name.as_str().into(), port: number })
}

/// Returns the protocol of a Service's port; None where it says nothing, and the kind of the route decides.
pub fn protocol_of(port: &ServicePort) -> Result<Option<BackendProtocol>, Problem> {
    match port.app_protocol.as_deref() {
        Some(H2C) => Ok(Some(BackendProtocol::Http2)),
        Some(name) if WEB_SOCKET.contains(&name) => Ok(Some(BackendProtocol::Http1)),
        Some(name) if name.starts_with("kubernetes.io/") => {
            let message = format!("appProtocol {name} is not supported");
            Err(Problem::new("UnsupportedProtocol", message))
        }
        _ => Ok(None),
    }
}

/// Returns a reference that answers every request with 500.
pub fn invalid(weight: u32) -> BackendRef {
    BackendRef { weight, key: None, filters: Arc::new([]) }
}

/// Returns a reference to a backend with its filters.
pub fn reference(weight: u32, key: Option<BackendKey>, filters: Vec<Filter>) -> BackendRef {
    BackendRef { weight, key, filters: filters.into() }
}
