//! The kernel entries that the Node objects call for. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;

use crate::cidr::Cidr;
use crate::links::{Forwarding, Neighbour, Route, RouteLink};
use crate::wireguard::{ANNOTATION, Key, Tunnel};

/// The labels of nodes that run the control plane; no node may set one on itself. Users may remove the first.
const CONTROL_PLANE: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-restriction.kubernetes.io/corten-server"];

/// The data that we keep of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The creation time of its object, in seconds.
    pub created: i64,
    pub control_plane: bool,
    /// Its pod CIDRs, one per family.
    pub pod_cidrs: Vec<Cidr>,
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
    /// Its public key of WireGuard.
    pub key: Option<Key>,
}

/// The link that encapsulates packets to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overlay {
    pub link: u32,
    /// Whether it is carried over IPv4.
    pub ipv4: bool,
    pub wireguard: bool,
}

impl Peer {
    /// Reads a node from its object; `claims` decides which of its claims count.
    pub fn of(node: &Node) -> Peer {
        let spec = node.spec.as_ref();
        let cidrs = spec.into_iter().flat_map(|spec| spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr));
        let mut pod_cidrs: Vec<Cidr> = cidrs.filter_map(|cidr| cidr.parse().ok()).collect();
        pod_cidrs.sort_unstable();
        pod_cidrs.dedup();
        let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        let internal = addresses.filter(|address| address.type_ == "InternalIP");
        let addresses: Vec<IpAddr> = internal.filter_map(|address| address.address.parse().ok()).collect();
        let metadata = &node.metadata;
        let annotations = metadata.annotations.as_ref();
        let has_label = |key: &&str| metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(*key));
        Peer {
            created: metadata.creation_timestamp.as_ref().map_or(i64::MAX, |created| created.0.as_second()),
            control_plane: CONTROL_PLANE.iter().any(has_label),
            pod_cidrs,
            addresses,
            key: annotations.and_then(|all| all.get(ANNOTATION)).and_then(|key| Key::parse(key)),
        }
    }
}

/// An entry in the kernel. Later variants build on earlier ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entry {
    Forwarding(Forwarding),
    Neighbour(Neighbour),
    Tunnel(Tunnel),
    Route(Route),
    /// The end of packets for a range whose address no more specific route leads to.
    Fence(Cidr),
}

impl Entry {
    /// Reports whether its link is the one that leads to its node.
    pub fn is_by_uplink(&self) -> bool {
        matches!(self, Entry::Route(Route { link: RouteLink::Uplink, .. }))
    }

    /// Reports whether adding this entry replaces the other.
    pub fn replaces(&self, other: &Entry) -> bool {
        match (self, other) {
            (Entry::Forwarding(this), Entry::Forwarding(other)) => this.mac == other.mac,
            (Entry::Neighbour(this), Entry::Neighbour(other)) => this.address == other.address,
            (Entry::Tunnel(this), Entry::Tunnel(other)) => this.key == other.key,
            (Entry::Route(this), Entry::Route(other)) => this.destination == other.destination,
            (Entry::Fence(this), Entry::Fence(other)) => this == other,
            _ => false,
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Forwarding(entry) => write!(f, "the forwarding entry to node {}", entry.node),
            Entry::Neighbour(entry) => write!(f, "the neighbour {}", entry.address),
            Entry::Tunnel(entry) => write!(f, "the tunnel to node {}", entry.node),
            Entry::Route(entry) => write!(f, "the route to {} via {}", entry.destination, entry.via),
            Entry::Fence(range) => write!(f, "the fence around {range}"),
        }
    }
}

/// Returns the entries of the other nodes, through the overlay or without one. No two of them have the same range.
pub(crate) fn wanted<'a>(peers: impl IntoIterator<Item = &'a Peer>, overlay: Option<Overlay>) -> BTreeSet<Entry> {
    let mut by_range: BTreeMap<Cidr, &Peer> = BTreeMap::new();
    for peer in peers {
        by_range.extend(peer.pod_cidrs.iter().map(|cidr| (*cidr, peer)));
    }
    by_range
        .into_iter()
        .flat_map(|(destination, peer)| match overlay {
            Some(overlay) => through_overlay(destination, peer, overlay),
            None => direct(destination, peer),
        })
        .collect()
}

fn direct(destination: Cidr, peer: &Peer) -> Vec<Entry> {
    let same_family = |address: &&IpAddr| address.is_ipv4() == destination.address().is_ipv4();
    let via = peer.addresses.iter().find(same_family);
    via.map(|via| Entry::Route(Route { destination, via: *via, link: RouteLink::Uplink })).into_iter().collect()
}

fn through_overlay(destination: Cidr, peer: &Peer, overlay: Overlay) -> Vec<Entry> {
    let node = peer.addresses.iter().find(|address| address.is_ipv4() == overlay.ipv4);
    let (Some(first), Some(node)) = (peer.pod_cidrs.first(), node) else { return Vec::new() };
    let mac = tunnel_mac(first);
    let address = tunnel_address(&destination);
    let route = Entry::Route(Route { destination, via: address, link: RouteLink::Link(overlay.link) });
    if overlay.wireguard {
        let ranges = peer.pod_cidrs.clone();
        let tunnel = peer.key.map(|key| Entry::Tunnel(Tunnel { key, node: *node, ranges }));
        return tunnel.map(|tunnel| vec![tunnel, route]).unwrap_or_default();
    }
    vec![Entry::Forwarding(Forwarding { mac, node: *node }), Entry::Neighbour(Neighbour { address, mac }), route]
}

/// Returns the address of a node's end of the overlay: the first of its range, which no pod has.
pub(crate) fn tunnel_address(pods: &Cidr) -> IpAddr {
    pods.address()
}

/// Returns the hardware address of a node's end of the overlay. It follows from its range, so that nodes need not
/// publish it.
pub(crate) fn tunnel_mac(pods: &Cidr) -> [u8; 6] {
    let [a, b, c, d] = match pods.address() {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let octets = address.octets();
            [octets[4], octets[5], octets[6], octets[7]]
        }
    };
    [0x0a, 0x59, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_api::Typed;
    use serde_json::{Value, json};

    fn node(cidrs: &[&str], addresses: &[&str]) -> Peer {
        let addresses: Vec<_> = addresses.iter().map(|a| json!({"type": "InternalIP", "address": a})).collect();
        let value = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
            "spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs}, "status": {"addresses": addresses}});
        Peer::of(&Node::from_value(value).unwrap())
    }

    #[test]
    fn servers_are_known_without_the_label_of_their_role() {
        let is_server = |labels: Value| {
            let value = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}});
            Peer::of(&Node::from_value(value).unwrap()).control_plane
        };
        assert!(is_server(json!({"node-role.kubernetes.io/control-plane": ""})));
        assert!(is_server(json!({"node-restriction.kubernetes.io/corten-server": ""})));
        assert!(!is_server(json!({"corten.dev/server": ""})));
    }

    fn vxlan(ipv4: bool) -> Option<Overlay> {
        Some(Overlay { link: 7, ipv4, wireguard: false })
    }

    fn entries(peers: &[Peer], overlay: Option<Overlay>) -> Vec<String> {
        wanted(peers, overlay).iter().map(Entry::to_string).collect()
    }

    #[test]
    fn nodes_with_range_and_address_are_routes() {
        let peers = [
            node(&["10.244.1.0/24"], &["192.0.2.2"]),
            node(&[], &["192.0.2.3"]),
            node(&["10.244.2.0/24"], &[]),
            node(&["10.244.3.0/24", "fd00:3::/64"], &["192.0.2.4", "2001:db8::4"]),
        ];
        assert_eq!(
            entries(&peers, None),
            [
                "the route to 10.244.1.0/24 via 192.0.2.2",
                "the route to 10.244.3.0/24 via 192.0.2.4",
                "the route to fd00:3::/64 via 2001:db8::4",
            ]
        );
    }

    #[test]
    fn through_the_overlay_a_node_is_a_route_a_neighbour_and_a_forwarding_entry() {
        let peers = [node(&["10.244.1.0/24"], &["192.0.2.2"])];
        assert_eq!(
            entries(&peers, vxlan(true)),
            [
                "the forwarding entry to node 192.0.2.2",
                "the neighbour 10.244.1.0",
                "the route to 10.244.1.0/24 via 10.244.1.0",
            ]
        );
        let both = [node(&["10.244.1.0/24", "fd00:3::/64"], &["192.0.2.2"])];
        assert_eq!(entries(&both, vxlan(true)).len(), 5, "the families share the forwarding entry");
    }

    #[test]
    fn the_overlay_leads_to_the_address_of_the_family_that_carries_it() {
        let peers = [node(&["fd00:1::/64"], &["192.0.2.2", "2001:db8::2"])];
        assert_eq!(entries(&peers, vxlan(false))[0], "the forwarding entry to node 2001:db8::2");
        assert_eq!(entries(&[node(&["fd00:1::/64"], &["192.0.2.2"])], vxlan(false)), [] as [String; 0]);
    }

    #[test]
    fn through_wireguard_a_node_with_a_key_is_a_tunnel_and_its_routes() {
        let overlay = Some(Overlay { link: 7, ipv4: true, wireguard: true });
        let keyless = node(&["10.244.1.0/24", "fd00:3::/64"], &["192.0.2.2"]);
        assert_eq!(entries(std::slice::from_ref(&keyless), overlay), [] as [String; 0]);
        let peer = Peer { key: Some(Key([1; 32])), ..keyless };
        assert_eq!(
            entries(&[peer], overlay),
            [
                "the tunnel to node 192.0.2.2",
                "the route to 10.244.1.0/24 via 10.244.1.0",
                "the route to fd00:3::/64 via fd00:3::",
            ]
        );
    }

    #[test]
    fn a_new_entry_replaces_the_one_with_its_key() {
        let entry = |node: &str| Entry::Forwarding(Forwarding { mac: [1; 6], node: node.parse().unwrap() });
        assert!(entry("192.0.2.1").replaces(&entry("192.0.2.2")));
        let other = Entry::Neighbour(Neighbour { address: "192.0.2.1".parse().unwrap(), mac: [1; 6] });
        assert!(!entry("192.0.2.1").replaces(&other));
    }
}
