//! The data that the proxy keeps of an EndpointSlice.

use std::collections::BTreeSet;
use std::net::IpAddr;

use corten_meta::address::is_canonical_global_unicast;
use corten_nftables::{IpFamily, Protocol};
use k8s_openapi::api::discovery::v1 as discovery;

use crate::service::{ServiceKey, protocol};

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Namespace and name of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceKey {
    pub namespace: String,
    pub name: String,
}

/// A port that the endpoints of a slice serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    pub address: IpAddr,
    pub node_name: Option<String>,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub zone_hints: BTreeSet<String>,
    pub node_hints: BTreeSet<String>,
}

/// An EndpointSlice whose endpoints are of one IP family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    pub service: ServiceKey,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<Endpoint>,
}

impl Slice {
    /// Reads a slice from its object; returns `None` if it is of no Service or of another family.
    pub fn from_object(slice: &discovery::EndpointSlice, ip: IpFamily) -> Option<Slice> {
        let wanted = if ip == IpFamily::V4 { "IPv4" } else { "IPv6" };
        if slice.address_type != wanted {
            return None;
        }
        let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME_LABEL)?;
        let namespace = slice.metadata.namespace.clone().unwrap_or_default();
        Some(Slice {
            service: ServiceKey { namespace, name: name.clone() },
            ports: slice.ports.iter().flatten().filter_map(port).collect(),
            endpoints: slice.endpoints.iter().flatten().filter_map(|one| endpoint(one, ip)).collect(),
        })
    }
}

fn port(port: &discovery::EndpointPort) -> Option<SlicePort> {
    Some(SlicePort {
        name: port.name.clone().unwrap_or_default(),
        protocol: protocol(port.protocol.as_deref())?,
        port: u16::try_from(port.port?).ok()?,
    })
}

/// Reads an endpoint. Its addresses are equivalent, so the first is enough. The API refuses addresses that no machine
/// has; a packet of a pod that was translated to one would be the node's own, or would reach services on the node's
/// link, such as the metadata of its cloud.
fn endpoint(endpoint: &discovery::Endpoint, ip: IpFamily) -> Option<Endpoint> {
    let is_usable = |address: &IpAddr| ip.holds(*address) && is_canonical_global_unicast(*address);
    let address = endpoint.addresses.first()?.parse().ok().filter(is_usable)?;
    let conditions = endpoint.conditions.as_ref();
    let ready = conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
    let hints = endpoint.hints.as_ref();
    let zones = hints.into_iter().flat_map(|hints| hints.for_zones.iter().flatten());
    let nodes = hints.into_iter().flat_map(|hints| hints.for_nodes.iter().flatten());
    Some(Endpoint {
        address,
        node_name: endpoint.node_name.clone(),
        ready,
        serving: conditions.and_then(|conditions| conditions.serving).unwrap_or(ready),
        terminating: conditions.and_then(|conditions| conditions.terminating).unwrap_or(false),
        zone_hints: zones.map(|zone| zone.name.clone()).collect(),
        node_hints: nodes.map(|node| node.name.clone()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_api::Typed;

    fn slice(json: &str) -> Option<Slice> {
        Slice::from_object(&discovery::EndpointSlice::decode(json.as_bytes()).unwrap(), IpFamily::V4)
    }

    #[test]
    fn conditions_have_their_defaults() {
        let slice = slice(
            r#"{"metadata":{"namespace":"n","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4",
                "ports":[{"name":"http","port":8080}],
                "endpoints":[{"addresses":["10.244.0.2"]},
                             {"addresses":["10.244.0.3"],"conditions":{"ready":false,"terminating":true}},
                             {"addresses":["127.0.0.1"]},{"addresses":["169.254.169.254"]},{"addresses":["0.0.0.0"]},
                             {"addresses":["224.0.0.1"]},{"addresses":["no"]}]}"#,
        )
        .unwrap();
        let conditions: Vec<_> = slice.endpoints.iter().map(|e| (e.ready, e.serving, e.terminating)).collect();
        assert_eq!(conditions, [(true, true, false), (false, false, true)]);
        assert_eq!(slice.ports[0].protocol, Protocol::Tcp);
    }

    #[test]
    fn slices_of_no_service_or_another_family_are_ignored() {
        assert_eq!(slice(r#"{"metadata":{},"addressType":"IPv4","endpoints":[]}"#), None);
        let six = r#"{"metadata":{"labels":{"kubernetes.io/service-name":"w"}},"addressType":"IPv6","endpoints":[]}"#;
        assert_eq!(slice(six), None);
    }
}
