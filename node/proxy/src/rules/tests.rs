//! The elements of Services, as strings.

use std::fmt::Write as _;

use corten_nftables::Data;
use expect_test::{Expect, expect};

use super::*;
use crate::service::ServiceKey;
use crate::slice::SlicePort;

fn service(change: impl FnOnce(&mut Service)) -> Service {
    let mut service = Service {
        cluster_ip: Ipv4Addr::new(10, 96, 0, 1).into(),
        ports: vec![ServicePort { name: "http".to_owned(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        external_ips: BTreeSet::new(),
        load_balancer_ips: BTreeSet::new(),
        source_ranges: Vec::new(),
        internal_local: false,
        external_local: false,
        affinity: None,
        health_check_port: None,
    };
    change(&mut service);
    service
}

fn endpoint(last: u8, node: &str) -> Endpoint {
    Endpoint {
        address: Ipv4Addr::new(10, 244, 0, last).into(),
        node_name: Some(node.to_owned()),
        ready: true,
        serving: true,
        terminating: false,
        zone_hints: BTreeSet::new(),
        node_hints: BTreeSet::new(),
    }
}

fn slice(endpoints: &[Endpoint]) -> Slice {
    Slice {
        service: ServiceKey { namespace: "default".to_owned(), name: "web".to_owned() },
        ports: vec![SlicePort { name: "http".to_owned(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: endpoints.to_vec(),
    }
}

/// Formats a value as dotted groups of four bytes.
fn dotted(value: &Value) -> String {
    let group = |bytes: &[u8]| bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(".");
    value.as_bytes().chunks(4).map(group).collect::<Vec<_>>().join(" ")
}

fn check(service: &Service, slices: &[Slice], expected: Expect) {
    let rules = desired(service, slices.iter(), &NodeTopology { node: "self".to_owned(), zone: None });
    let mut out = String::new();
    for (name, element) in &rules.elements {
        let end = element.end.as_ref().map(|end| format!(" - {}", dotted(end))).unwrap_or_default();
        let data = match &element.data {
            Some(Data::Value(value)) => format!(" : {}", dotted(value)),
            other => other.as_ref().map(|data| format!(" : {data:?}")).unwrap_or_default(),
        };
        writeln!(out, "{} {}{end}{data}", name.as_str(), dotted(&element.key)).unwrap();
    }
    for shape in &rules.shapes {
        writeln!(out, "chain {}", shape.name()).unwrap();
    }
    expected.assert_eq(&out);
}

#[test]
fn a_cluster_address_with_two_endpoints() {
    check(
        &service(|_| {}),
        &[slice(&[endpoint(2, "self"), endpoint(3, "other")])],
        expect![[r#"
            services 10.96.0.1 6.0.0.0 0.80.0.0 : 0.0.0.0 0.0.0.0 2.0.0.0 0.0.0.0
            endpoints 10.96.0.1 6.0.0.0 0.80.0.0 0.0.0.0 : 10.244.0.2 31.144.0.0
            endpoints 10.96.0.1 6.0.0.0 0.80.0.0 1.0.0.0 : 10.244.0.3 31.144.0.0
            hairpin 10.244.0.2 10.244.0.2
            chain pick-2
            chain cluster-pick-2
        "#]],
    );
}

#[test]
fn without_endpoints_it_is_refused() {
    check(
        &service(|_| {}),
        &[],
        expect![[r#"
            unavailable 10.96.0.1 6.0.0.0 0.80.0.0 : 0.0.0.0 1.0.0.0
        "#]],
    );
}

#[test]
fn local_traffic_inside_with_endpoints_elsewhere_is_dropped() {
    check(
        &service(|service| service.internal_local = true),
        &[slice(&[endpoint(3, "other")])],
        expect![[r#"
            unavailable 10.96.0.1 6.0.0.0 0.80.0.0 : 0.0.0.0 2.0.0.0
        "#]],
    );
}

#[test]
fn node_ports_and_addresses_of_the_outside_with_local_policy() {
    let service = service(|service| {
        service.external_local = true;
        service.ports[0].node_port = Some(30080);
        service.external_ips.insert(Ipv4Addr::new(192, 0, 2, 1).into());
    });
    check(
        &service,
        &[slice(&[endpoint(2, "self"), endpoint(3, "other")])],
        expect![[r#"
            services 10.96.0.1 6.0.0.0 0.80.0.0 : 0.0.0.0 0.0.0.0 2.0.0.0 0.0.0.0
            services 192.0.2.1 6.0.0.0 0.80.0.0 : 0.0.0.0 2.0.0.0 2.0.0.0 1.0.0.0
            node-ports 6.0.0.0 117.128.0.0 : 0.0.0.0 6.0.0.0 2.0.0.0 1.0.0.0
            endpoints 0.0.0.0 6.0.0.0 117.128.0.0 0.0.0.0 : 10.244.0.2 31.144.0.0
            endpoints 0.0.0.0 6.0.0.0 117.128.0.0 0.0.1.0 : 10.244.0.2 31.144.0.0
            endpoints 0.0.0.0 6.0.0.0 117.128.0.0 1.0.0.0 : 10.244.0.3 31.144.0.0
            endpoints 10.96.0.1 6.0.0.0 0.80.0.0 0.0.0.0 : 10.244.0.2 31.144.0.0
            endpoints 10.96.0.1 6.0.0.0 0.80.0.0 1.0.0.0 : 10.244.0.3 31.144.0.0
            endpoints 192.0.2.1 6.0.0.0 0.80.0.0 0.0.0.0 : 10.244.0.2 31.144.0.0
            endpoints 192.0.2.1 6.0.0.0 0.80.0.0 0.0.1.0 : 10.244.0.2 31.144.0.0
            endpoints 192.0.2.1 6.0.0.0 0.80.0.0 1.0.0.0 : 10.244.0.3 31.144.0.0
            hairpin 10.244.0.2 10.244.0.2
            chain pick-2
            chain pick-local-1
            chain pick-node-port-2
            chain pick-node-port-local-1
            chain cluster-pick-2
            chain external-local-pick-local-1-or-pick-2
            chain external-local-pick-node-port-local-1-or-pick-node-port-2
        "#]],
    );
    check(
        &service,
        &[slice(&[endpoint(3, "other")])],
        expect![[r#"
            services 10.96.0.1 6.0.0.0 0.80.0.0 : 0.0.0.0 0.0.0.0 1.0.0.0 0.0.0.0
            services 192.0.2.1 6.0.0.0 0.80.0.0 : 0.0.0.0 2.0.0.0 1.0.0.0 0.0.0.0
            node-ports 6.0.0.0 117.128.0.0 : 0.0.0.0 6.0.0.0 1.0.0.0 0.0.0.0
            unavailable 192.0.2.1 6.0.0.0 0.80.0.0 : 0.0.0.0 3.0.0.0
            unavailable-node-ports 6.0.0.0 117.128.0.0 : 0.0.0.0 3.0.0.0
            endpoints 0.0.0.0 6.0.0.0 117.128.0.0 0.0.0.0 : 10.244.0.3 31.144.0.0
            endpoints 10.96.0.1 6.0.0.0 0.80.0.0 0.0.0.0 : 10.244.0.3 31.144.0.0
            endpoints 192.0.2.1 6.0.0.0 0.80.0.0 0.0.0.0 : 10.244.0.3 31.144.0.0
            chain pick-1
            chain pick-node-port-1
            chain cluster-pick-1
            chain external-local-none-or-pick-1
            chain external-local-none-or-pick-node-port-1
        "#]],
    );
}

#[test]
fn affinity_and_source_ranges() {
    let service = service(|service| {
        service.affinity = Some(60);
        service.load_balancer_ips.insert(Ipv4Addr::new(192, 0, 2, 1).into());
        service.source_ranges = vec![(Ipv4Addr::new(198, 51, 100, 0).into(), 24)];
    });
    check(
        &service,
        &[slice(&[endpoint(3, "other")])],
        expect![[r#"
            services 10.96.0.1 6.0.0.0 0.80.0.0 : 0.0.0.0 224.1.0.0 1.0.0.0 0.0.0.0
            services 192.0.2.1 6.0.0.0 0.80.0.0 : 0.0.0.0 225.1.0.0 1.0.0.0 0.0.0.0
            endpoints 10.96.0.1 6.0.0.0 0.80.0.0 0.0.0.0 : 10.244.0.3 31.144.0.0
            endpoints 192.0.2.1 6.0.0.0 0.80.0.0 0.0.0.0 : 10.244.0.3 31.144.0.0
            affinity-endpoints 10.244.0.3 31.144.0.0 10.96.0.1 6.0.0.0 0.80.0.0
            affinity-endpoints 10.244.0.3 31.144.0.0 192.0.2.1 6.0.0.0 0.80.0.0
            restricted 192.0.2.1 6.0.0.0 0.80.0.0
            sources 192.0.2.1 6.0.0.0 0.80.0.0 198.51.100.0 - 192.0.2.1 6.0.0.0 0.80.0.0 198.51.100.255
            chain pick-1-affinity-60
            chain cluster-pick-1-affinity-60
            chain external-pick-1-affinity-60
        "#]],
    );
}

#[test]
fn the_order_of_slices_and_endpoints_does_not_matter() {
    let topology = NodeTopology { node: "self".to_owned(), zone: None };
    let a = endpoint(2, "self");
    let b = endpoint(3, "other");
    let c = endpoint(4, "other");
    let one = [slice(&[a.clone(), b.clone()]), slice(std::slice::from_ref(&c))];
    let other = [slice(&[c, b]), slice(&[a])];
    assert_eq!(desired(&service(|_| {}), one.iter(), &topology), desired(&service(|_| {}), other.iter(), &topology));
}

#[test]
fn a_pod_in_two_slices_counts_once_and_as_ready() {
    let topology = NodeTopology::default();
    let mut leaving = endpoint(2, "other");
    leaving.ready = false;
    let twice = [slice(&[leaving]), slice(&[endpoint(2, "other")])];
    let once = [slice(&[endpoint(2, "other")])];
    assert_eq!(desired(&service(|_| {}), twice.iter(), &topology), desired(&service(|_| {}), once.iter(), &topology));
}
