//! The data that the proxy keeps of a Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use corten_nftables::{IpFamily, Protocol};
use k8s_openapi::api::core::v1 as core;

const LOCAL: &str = "Local";
/// The label of Services of another proxy.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// Namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
}

/// A range of addresses: the first address and the prefix length.
pub type Range = (IpAddr, u8);

/// A Service with a virtual address, of one IP family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub cluster_ip: IpAddr,
    pub ports: Vec<ServicePort>,
    pub external_ips: BTreeSet<IpAddr>,
    pub load_balancer_ips: BTreeSet<IpAddr>,
    /// The source ranges of the load balancer addresses; empty for all.
    pub source_ranges: Vec<Range>,
    pub internal_local: bool,
    pub external_local: bool,
    /// The seconds that a client stays with its endpoint.
    pub affinity: Option<u32>,
    /// The port where load balancers check whether this node has an endpoint.
    pub health_check_port: Option<u16>,
}

impl Service {
    /// Reads a Service from its object; returns `None` if it has nothing to proxy (headless, ExternalName, of another
    /// family or another proxy).
    pub fn from_object(service: &core::Service, ip: IpFamily) -> Option<Service> {
        let labels = service.metadata.labels.as_ref();
        if labels.is_some_and(|labels| labels.contains_key(PROXY_NAME_LABEL)) {
            return None;
        }
        let spec = service.spec.as_ref()?;
        if spec.type_.as_deref() == Some("ExternalName") {
            return None;
        }
        let cluster_ips = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
        let cluster_ip = of_version(cluster_ips, ip).next()?;
        let is = |policy: &Option<String>, value: &str| policy.as_deref() == Some(value);
        Some(Service {
            cluster_ip,
            ports: spec.ports.iter().flatten().filter_map(port).collect(),
            external_ips: of_version(spec.external_ips.iter().flatten(), ip).collect(),
            load_balancer_ips: load_balancer_ips(service, ip),
            source_ranges: source_ranges(spec, ip),
            internal_local: is(&spec.internal_traffic_policy, LOCAL),
            external_local: is(&spec.external_traffic_policy, LOCAL),
            affinity: is(&spec.session_affinity, "ClientIP").then(|| affinity_seconds(spec)),
            health_check_port: health_check_port(spec),
        })
    }
}

fn of_version<'a>(addresses: impl Iterator<Item = &'a String>, ip: IpFamily) -> impl Iterator<Item = IpAddr> {
    addresses.filter_map(|address| address.parse().ok()).filter(move |address| ip.holds(*address))
}

/// Returns the health check port. Load balancers use it only where the policy makes the answer depend on the node.
fn health_check_port(spec: &core::ServiceSpec) -> Option<u16> {
    let is_used =
        spec.type_.as_deref() == Some("LoadBalancer") && spec.external_traffic_policy.as_deref() == Some(LOCAL);
    spec.health_check_node_port.filter(|_| is_used).and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0)
}

fn port(port: &core::ServicePort) -> Option<ServicePort> {
    Some(ServicePort {
        name: port.name.clone().unwrap_or_default(),
        protocol: protocol(port.protocol.as_deref())?,
        port: u16::try_from(port.port).ok()?,
        node_port: port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0),
    })
}

/// Returns a protocol by its Kubernetes name; TCP if there is none.
pub(crate) fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name.unwrap_or("TCP") {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

fn load_balancer_ips(service: &core::Service, ip: IpFamily) -> BTreeSet<IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.into_iter().flat_map(|status| status.ingress.iter().flatten());
    // In mode Proxy the load balancer sends to nodes and pods, never to its own address.
    let direct = ingress.filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"));
    of_version(direct.filter_map(|ingress| ingress.ip.as_ref()), ip).collect()
}

/// Returns the ranges without those that another range covers: the kernel takes no overlaps. Where all are of the other
/// family, no client of this one is allowed: the range of only the unspecified address means that.
fn source_ranges(spec: &core::ServiceSpec, ip: IpFamily) -> Vec<Range> {
    let mut ranges: Vec<Range> =
        spec.load_balancer_source_ranges.iter().flatten().filter_map(|cidr| range(cidr)).collect();
    let restricted = !ranges.is_empty();
    ranges.retain(|(address, _)| ip.holds(*address));
    if restricted && ranges.is_empty() {
        return vec![(ip.unspecified(), ip.bits())];
    }
    uncovered(ranges)
}

/// Returns the ranges without those that another one covers, the widest first.
pub(crate) fn uncovered(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable_by_key(|(address, length)| (*length, *address));
    let mut kept: Vec<Range> = Vec::new();
    for (address, length) in ranges {
        if !kept.iter().any(|wider| contains(*wider, address)) {
            kept.push((address, length));
        }
    }
    kept
}

pub(crate) fn contains((first, length): Range, address: IpAddr) -> bool {
    first.is_ipv4() == address.is_ipv4() && network(address, length) == first
}

/// Parses a range in the notation 10.0.0.0/8; returns `None` if it is not one.
pub(crate) fn range(cidr: &str) -> Option<Range> {
    let (address, length) = cidr.trim().split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let length: u8 = length.parse().ok()?;
    (length <= IpFamily::of(address).bits()).then(|| (network(address, length), length))
}

fn network(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            std::net::Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            std::net::Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

fn affinity_seconds(spec: &core::ServiceSpec) -> u32 {
    let client_ip = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = client_ip.and_then(|client_ip| client_ip.timeout_seconds);
    seconds.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(DEFAULT_AFFINITY_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_api::Typed;

    fn service(metadata: &str, spec: &str) -> Option<Service> {
        let json = format!(r#"{{"metadata":{{{metadata}}},"spec":{{{spec}}}}}"#);
        Service::from_object(&core::Service::decode(json.as_bytes()).unwrap(), IpFamily::V4)
    }

    #[test]
    fn services_without_a_virtual_address_are_not_proxied() {
        for spec in [
            r#""clusterIP":"None""#,
            r#""clusterIP":"""#,
            r#""type":"ExternalName","externalName":"example.com""#,
            r#""clusterIP":"fd00::1""#,
        ] {
            assert_eq!(service("", spec), None, "{spec}");
        }
        let foreign = r#""labels":{"service.kubernetes.io/service-proxy-name":"other"}"#;
        assert_eq!(service(foreign, r#""clusterIP":"10.96.0.1""#), None);
    }

    #[test]
    fn each_family_has_its_own_addresses() {
        let json = r#"{"metadata":{},"spec":{"clusterIP":"fd00::1","clusterIPs":["fd00::1","10.96.0.7"],
            "externalIPs":["192.0.2.1","2001:db8::1"],"loadBalancerSourceRanges":["2001:db8::/32"]}}"#;
        let object = core::Service::decode(json.as_bytes()).unwrap();
        for (ip, cluster_ip, external, ranges) in [
            (IpFamily::V4, "10.96.0.7", "192.0.2.1", ("0.0.0.0", 32)),
            (IpFamily::V6, "fd00::1", "2001:db8::1", ("2001:db8::", 32)),
        ] {
            let found = Service::from_object(&object, ip).unwrap();
            assert_eq!(found.cluster_ip.to_string(), cluster_ip);
            assert_eq!(found.external_ips, BTreeSet::from([external.parse().unwrap()]));
            assert_eq!(found.source_ranges, [(ranges.0.parse().unwrap(), ranges.1)]);
        }
    }

    #[test]
    fn affinity_has_its_default() {
        let found = service("", r#""clusterIP":"10.96.0.7","sessionAffinity":"ClientIP""#).unwrap();
        assert_eq!(found.affinity, Some(10_800));
    }

    #[test]
    fn covered_source_ranges_are_dropped() {
        let ranges =
            r#""clusterIP":"10.96.0.7","loadBalancerSourceRanges":["10.1.2.3/16","10.0.0.0/8"," 192.0.2.0/24","x"]"#;
        let expected = [("10.0.0.0".parse().unwrap(), 8), ("192.0.2.0".parse().unwrap(), 24)];
        assert_eq!(service("", ranges).unwrap().source_ranges, expected);
    }
}
