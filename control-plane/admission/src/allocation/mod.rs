//! Allocation of cluster IPs and node ports. Pure: the taken ones, and randomness, come in as arguments.
//!
//! The choice is only a proposal. The store makes it exclusive: each address is an IPAddress object that must be absent,
//! all ports are one bitmap that must be unchanged, and both are written together with their Service.

mod addresses;
mod bitmap;
mod ports;

use corten_meta::Value;
use serde_json::json;

pub use addresses::AddressRange;
pub use bitmap::PortBitmap;
pub use ports::choose_port;

/// Returns a random number for the choices below.
pub fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1
}

/// Returns the IPAddress of a Service's cluster IP.
pub fn ip_address(ip: &str, namespace: &str, service: &str, now: jiff::Timestamp) -> Value {
    let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {
            "name": ip,
            "uid": uuid::Uuid::new_v4().to_string(),
            "creationTimestamp": corten_meta::time::rfc3339(now),
            "labels": {
                "ipaddress.kubernetes.io/ip-family": family,
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": { "parentRef": { "resource": "services", "namespace": namespace, "name": service } },
    })
}
