//! The nodes' own addresses as those of load balancers: every Ready node serves the Service's ports.

use std::collections::BTreeSet;
use std::net::IpAddr;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Node;

use super::request::families;
use super::{Observed, Refusal, age, is_local, ports};
use crate::runtime::key_of;

const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Returns the addresses of the nodes that serve a Service.
pub(super) fn addresses(observed: &Observed, kept: &BTreeSet<u16>) -> Result<Vec<IpAddr>, Refusal> {
    let service = &observed.service;
    let wanted = ports(service);
    let is_kept = |number: i32| u16::try_from(number).is_ok_and(|port| kept.contains(&port));
    if let Some(port) = wanted.iter().find(|port| is_kept(port.number)) {
        return Err(Refusal::new(format!(
            "port {} of the nodes is in use by the nodes themselves; choose another, or give the cluster a pool of addresses",
            port.number
        )));
    }
    let older = observed.others.iter().filter(|other| age(other) < age(service) && has_node_addresses(observed, other));
    for other in older {
        if let Some(port) = ports(other).intersection(&wanted).next() {
            let user = key_of(other);
            let message = format!("port {}/{} of the nodes is in use by Service {user}", port.number, port.protocol);
            return Err(Refusal::new(message));
        }
    }
    let families = families(service);
    let local = is_local(service);
    let mut addresses: Vec<IpAddr> = observed
        .nodes
        .iter()
        .filter(|node| serves(node) && (!local || observed.serving_nodes.contains(node.name())))
        .flat_map(node_addresses)
        .filter(|address| families.iter().any(|family| family.has(*address)))
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Reports whether a Service has, or may get, addresses of nodes: none of its addresses is of a pool.
fn has_node_addresses(observed: &Observed, other: &corten_api::k8s_openapi::api::core::v1::Service) -> bool {
    let addresses = super::ingress(other);
    !addresses.iter().any(|address| observed.pools.iter().any(|pool| pool.contains(*address)))
}

/// Reports whether a node takes packets of load balancers.
pub(super) fn serves(node: &Node) -> bool {
    let excluded = node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED));
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.filter(|one| one.type_ == "Ready").any(|one| one.status == "True");
    ready && !excluded && node.metadata.deletion_timestamp.is_none()
}

/// Returns a node's external addresses, else its internal ones.
pub(super) fn node_addresses(node: &Node) -> Vec<IpAddr> {
    let addresses = || node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let of = |kind: &str| -> Vec<IpAddr> {
        addresses().filter(|one| one.type_ == kind).filter_map(|one| one.address.parse().ok()).collect()
    };
    let external = of("ExternalIP");
    if external.is_empty() { of("InternalIP") } else { external }
}
