//! WireGuard between nodes: pods of two nodes meet in both IP families, and the wire between the nodes has nothing but its
//! datagrams. A deleted link comes back with a key that the other node learns.

#[path = "../../../node/network/tests/wire/mod.rs"]
mod wire;

use std::collections::BTreeSet;
use std::net::IpAddr;

use testkit::cluster::Cluster;
use wire::{Packet, Wire};

use crate::clusters::{Clusters, SECOND, answers, read};

const PORT: u16 = 51820;
const UDP: u8 = 17;

pub fn missing() -> Option<String> {
    corten_network::wireguard::supported().err().map(|error| error.to_string())
}

pub fn pods_meet_encrypted(clusters: &Clusters) {
    let cluster = clusters.two_nodes();
    let one = addresses(cluster, "one");
    let two = addresses(cluster, "two");
    let wire = cluster.machine.in_network(|| Wire::listen("corten-nodes"));
    meet(cluster, &one, &two);
    check_wire(&wire.passed(), cluster, &[one.as_slice(), &two].concat());

    let key = public_key(cluster);
    cluster.machine.ip("link del corten.wg");
    meet(cluster, &one, &two);
    assert_ne!(public_key(cluster), key, "a new link has a key of its own, which is kept nowhere else");
    let links = read(cluster, "/proc/net/dev");
    assert!(links.contains("corten.wg") && !links.contains("corten.vxlan"), "{links}");
}

/// Returns the addresses of a pod, one of each IP family.
fn addresses(cluster: &Cluster, pod: &str) -> Vec<String> {
    let ips = cluster.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.podIPs[*].ip}"]);
    let ips: Vec<String> = ips.split_whitespace().map(str::to_owned).collect();
    assert_eq!(ips.len(), 2, "{ips:?}");
    ips
}

/// Waits until each pod has fetched pages of the other.
fn meet(cluster: &Cluster, one: &[String], two: &[String]) {
    for (pod, other, expected) in [("one", two, "two"), ("two", one, "one")] {
        let others: Vec<&str> = other.iter().map(String::as_str).collect();
        for names in answers(cluster, pod, &others) {
            assert_eq!(names, BTreeSet::from([expected.to_owned()]), "from {pod}");
        }
    }
}

/// Checks that packets of pods passed only inside of WireGuard's, there and back.
fn check_wire(passed: &BTreeSet<Packet>, cluster: &Cluster, pods: &[String]) {
    let pods: Vec<IpAddr> = pods.iter().map(|pod| pod.parse().expect("an address")).collect();
    let plain: Vec<&Packet> =
        passed.iter().filter(|packet| pods.contains(&packet.from) || pods.contains(&packet.to)).collect();
    assert!(plain.is_empty(), "packets of pods are not encrypted: {plain:?}");
    let address = cluster.kubectl(&["get", "node", SECOND, "-o", "jsonpath={.status.addresses[0].address}"]);
    let second: IpAddr = address.parse().expect("an address");
    let is_wireguard = |packet: &&Packet| packet.protocol == UDP && packet.port == PORT;
    assert!(passed.iter().filter(is_wireguard).any(|packet| packet.to == second), "{passed:?}");
    assert!(passed.iter().filter(is_wireguard).any(|packet| packet.from == second), "{passed:?}");
    assert!(!passed.iter().any(|packet| packet.protocol == UDP && packet.port == 8472), "VXLAN: {passed:?}");
}

/// Returns the public key that the first node has published.
fn public_key(cluster: &Cluster) -> String {
    let key = r"jsonpath={.metadata.annotations.corten/wireguard-public-key}";
    cluster.kubectl_until(&["get", "node", crate::clusters::FIRST, "-o", key], |key| !key.is_empty())
}
