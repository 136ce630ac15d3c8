//! The addresses of the cluster DNS of a node.

use std::net::{IpAddr, SocketAddr};

use corten_meta::Value;

use super::network::{assigned_ranges, gateways};
use crate::cli::NetworkBackend;

/// The port of cluster DNS on a node's own addresses, where another server may use 53.
pub const DNS_BESIDE_PLUGINS: u16 = 1053;

/// The port of CoreDNS's metrics.
pub const DNS_METRICS: u16 = 9153;

/// Returns the addresses of a node's DNS: the pods' gateways, or with CNI plugins the node's own addresses.
pub fn dns_endpoints(backend: NetworkBackend, gateways: &[IpAddr], node: &[IpAddr]) -> Vec<SocketAddr> {
    let (addresses, port) = if backend.own().is_some() { (gateways, 53) } else { (node, DNS_BESIDE_PLUGINS) };
    addresses.iter().map(|address| SocketAddr::new(*address, port)).collect()
}

/// Returns the addresses of the DNS of a node, from its Node object.
pub fn dns_of(node: &Value, backend: NetworkBackend) -> Vec<SocketAddr> {
    let addresses = node.pointer("/status/addresses").and_then(Value::as_array).into_iter().flatten();
    let internal = addresses.filter(|address| address["type"] == "InternalIP");
    let own: Vec<IpAddr> = internal.filter_map(|address| address["address"].as_str()?.parse().ok()).collect();
    let gateways = assigned_ranges(node).map(|ranges| gateways(&ranges)).unwrap_or_default();
    dns_endpoints(backend, &gateways, &own)
}
