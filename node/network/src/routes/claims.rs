//! The decision which pod CIDRs and addresses of the other nodes are trusted. Pure.
//!
//! A Node object claims a node's pod CIDRs and addresses, and a compromised node may claim anything: the pod CIDR of
//! another node, the address of the API server. So a claim counts only if
//!
//! - the range is in the cluster's pod CIDRs, as long as this node's own, and not this node's own;
//! - the address may be a node's: none of this node, of pods, of Services, of loopback, or multicast, and the API
//!   server's only for a node that runs it;
//! - no other node had it before: of two nodes, the one that has it already, else the older one.
//!
//! Every node decides for itself; as Node objects are the same for all, they decide alike.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use corten_meta::address::is_canonical_global_unicast;

use super::plan::Peer;
use crate::cidr::Cidr;

/// The facts that this node knows without other nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Ground {
    pub cluster_cidrs: Vec<Cidr>,
    pub service_cidrs: Vec<Cidr>,
    /// The pod CIDRs of this node.
    pub pod_cidrs: Vec<Cidr>,
    pub addresses: Vec<IpAddr>,
    pub api_servers: Vec<IpAddr>,
}

/// The owners of ranges and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Owners {
    ranges: BTreeMap<Cidr, String>,
    addresses: BTreeMap<IpAddr, String>,
}

/// A claim that does not count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Refused {
    pub node: String,
    pub claim: Claim,
    pub reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claim {
    Range(Cidr),
    Address(IpAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    OutsideCluster,
    WrongLength,
    OwnRange,
    OwnAddress,
    Unusable,
    OfPodsOrServices,
    ApiServer,
    Taken,
}

impl Claim {
    /// Returns the reason of the event that reports it.
    pub fn event(self) -> &'static str {
        match self {
            Claim::Range(_) => "PodCIDRRefused",
            Claim::Address(_) => "NodeAddressRefused",
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.claim {
            Claim::Range(range) => write!(f, "pod range {range}")?,
            Claim::Address(address) => write!(f, "address {address}")?,
        }
        write!(f, " of node {} is not routed: {}", self.node, self.reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::OutsideCluster => "it is not within the cluster's pod range",
            Reason::WrongLength => "its length is not that of a node's pod range",
            Reason::OwnRange => "it is this node's own",
            Reason::OwnAddress => "it is an address of this node",
            Reason::Unusable => "it is no address that a node can have",
            Reason::OfPodsOrServices => "it is within the range of pods or Services",
            Reason::ApiServer => "it is the API server's",
            Reason::Taken => "another node has it",
        })
    }
}

/// The other nodes with the claims that count, and the refused claims.
pub(super) struct Decision {
    pub peers: Vec<Peer>,
    pub owners: Owners,
    pub refused: BTreeSet<Refused>,
}

/// Decides on the claims of the other nodes. `before` holds the owners until now.
pub(super) fn decide(ground: &Ground, peers: &BTreeMap<String, Peer>, before: &Owners) -> Decision {
    let mut refused = BTreeSet::new();
    let mut refuse = |node: &str, claim: Claim, reason: Reason| {
        refused.insert(Refused { node: node.to_owned(), claim, reason });
    };
    let mut ranges: Vec<Candidate<Cidr>> = Vec::new();
    let mut addresses: Vec<Candidate<IpAddr>> = Vec::new();
    for (node, peer) in peers {
        for range in &peer.pod_cidrs {
            match ground.range_problem(*range) {
                Some(reason) => refuse(node, Claim::Range(*range), reason),
                None => ranges.push(Candidate { claim: *range, node, created: peer.created }),
            }
        }
        for address in &peer.addresses {
            match ground.address_problem(*address, peer) {
                Some(reason) => refuse(node, Claim::Address(*address), reason),
                None => addresses.push(Candidate { claim: *address, node, created: peer.created }),
            }
        }
    }
    let owners = Owners {
        ranges: first_owners(&ranges, &before.ranges),
        addresses: first_owners(&addresses, &before.addresses),
    };
    for candidate in ranges.iter().filter(|range| !owners.has_range(range.node, &range.claim)) {
        refuse(candidate.node, Claim::Range(candidate.claim), Reason::Taken);
    }
    for candidate in addresses.iter().filter(|address| !owners.has_address(address.node, &address.claim)) {
        refuse(candidate.node, Claim::Address(candidate.claim), Reason::Taken);
    }
    let peers = peers.iter().map(|(node, peer)| owners.reduce(node, peer)).collect();
    Decision { peers, owners, refused }
}

impl Ground {
    fn range_problem(&self, range: Cidr) -> Option<Reason> {
        let within = |cluster: &Cidr| cluster.length() <= range.length() && cluster.contains(range.address());
        let own = self.pod_cidrs.iter().find(|own| own.is_ipv4() == range.is_ipv4());
        if !self.cluster_cidrs.iter().any(within) {
            return Some(Reason::OutsideCluster);
        }
        match own {
            Some(own) if *own == range => Some(Reason::OwnRange),
            Some(own) if own.length() == range.length() => None,
            // This node has no pods of that family, which could send there.
            _ => Some(Reason::WrongLength),
        }
    }

    fn address_problem(&self, address: IpAddr, peer: &Peer) -> Option<Reason> {
        let ranges = || self.cluster_cidrs.iter().chain(&self.service_cidrs);
        if !is_canonical_global_unicast(address) {
            return Some(Reason::Unusable);
        }
        if self.addresses.contains(&address) {
            return Some(Reason::OwnAddress);
        }
        if ranges().any(|range| range.contains(address)) {
            return Some(Reason::OfPodsOrServices);
        }
        (self.api_servers.contains(&address) && !peer.control_plane).then_some(Reason::ApiServer)
    }
}

/// A claim that may count.
struct Candidate<'a, T> {
    claim: T,
    node: &'a str,
    /// The node's creation time, in seconds.
    created: i64,
}

/// Assigns each claim to the node that has it already, else to the oldest.
fn first_owners<T: Copy + Ord>(candidates: &[Candidate<'_, T>], before: &BTreeMap<T, String>) -> BTreeMap<T, String> {
    let rank = |candidate: &Candidate<'_, T>| {
        let established = before.get(&candidate.claim).is_some_and(|owner| owner == candidate.node);
        (!established, candidate.created, candidate.node.to_owned())
    };
    let mut sorted: Vec<&Candidate<'_, T>> = candidates.iter().collect();
    sorted.sort_by_key(|candidate| rank(candidate));
    let mut owners = BTreeMap::new();
    for candidate in sorted {
        owners.entry(candidate.claim).or_insert_with(|| candidate.node.to_owned());
    }
    owners
}

impl Owners {
    fn has_range(&self, node: &str, range: &Cidr) -> bool {
        self.ranges.get(range).is_some_and(|owner| owner == node)
    }

    fn has_address(&self, node: &str, address: &IpAddr) -> bool {
        self.addresses.get(address).is_some_and(|owner| owner == node)
    }

    /// Returns a node without the claims that do not count.
    fn reduce(&self, node: &str, peer: &Peer) -> Peer {
        let mut peer = peer.clone();
        peer.pod_cidrs.retain(|range| self.has_range(node, range));
        peer.addresses.retain(|address| self.has_address(node, address));
        peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ground() -> Ground {
        let ranges = |strings: &[&str]| strings.iter().map(|string| string.parse().unwrap()).collect();
        let addresses = |strings: &[&str]| strings.iter().map(|string| string.parse().unwrap()).collect();
        Ground {
            cluster_cidrs: ranges(&["10.244.0.0/16", "fd00:244::/48"]),
            service_cidrs: ranges(&["10.96.0.0/12", "fd00:96::/112"]),
            pod_cidrs: ranges(&["10.244.0.0/24", "fd00:244::/64"]),
            addresses: addresses(&["192.0.2.1", "2001:db8::1"]),
            api_servers: addresses(&["192.0.2.9"]),
        }
    }

    fn peer(created: i64, ranges: &[&str], addresses: &[&str]) -> Peer {
        Peer {
            created,
            control_plane: false,
            pod_cidrs: ranges.iter().map(|string| string.parse().unwrap()).collect(),
            addresses: addresses.iter().map(|string| string.parse().unwrap()).collect(),
            key: None,
        }
    }

    fn refused(peers: &BTreeMap<String, Peer>, before: &Owners) -> Vec<String> {
        decide(&ground(), peers, before).refused.iter().map(Refused::to_string).collect()
    }

    #[test]
    fn claims_beyond_a_nodes_own_do_not_count() {
        for (claimed, reason) in [
            ("192.0.2.9/32", "it is not within the cluster's pod range"),
            ("0.0.0.0/0", "it is not within the cluster's pod range"),
            ("10.244.0.0/15", "it is not within the cluster's pod range"),
            ("10.244.0.0/16", "its length is not that of a node's pod range"),
            ("10.244.7.0/25", "its length is not that of a node's pod range"),
            ("10.244.7.7/32", "its length is not that of a node's pod range"),
            ("fd00:244::/56", "its length is not that of a node's pod range"),
            ("10.244.0.0/24", "it is this node's own"),
            ("fd00:244::/64", "it is this node's own"),
        ] {
            let peers = BTreeMap::from([("evil".to_owned(), peer(1, &[claimed, "10.244.6.0/24"], &["192.0.2.6"]))]);
            let decision = decide(&ground(), &peers, &Owners::default());
            let range: Cidr = claimed.parse().unwrap();
            let messages: Vec<String> = decision.refused.iter().map(Refused::to_string).collect();
            assert_eq!(messages, [format!("pod range {range} of node evil is not routed: {reason}")]);
            assert_eq!(decision.peers[0].pod_cidrs, ["10.244.6.0/24".parse().unwrap()], "its own range stays");
        }
        for (claimed, reason) in [
            ("192.0.2.1", "it is an address of this node"),
            ("2001:db8::1", "it is an address of this node"),
            ("10.244.9.9", "it is within the range of pods or Services"),
            ("10.96.0.1", "it is within the range of pods or Services"),
            ("fd00:96::1", "it is within the range of pods or Services"),
            ("192.0.2.9", "it is the API server's"),
            ("127.0.0.1", "it is no address that a node can have"),
            ("169.254.169.254", "it is no address that a node can have"),
            ("::1", "it is no address that a node can have"),
            ("::ffff:192.0.2.1", "it is no address that a node can have"),
            ("fe80::1", "it is no address that a node can have"),
            ("224.0.0.1", "it is no address that a node can have"),
            ("0.0.0.0", "it is no address that a node can have"),
        ] {
            let peers = BTreeMap::from([("evil".to_owned(), peer(1, &["10.244.6.0/24"], &[claimed]))]);
            assert_eq!(
                refused(&peers, &Owners::default()),
                [format!("address {claimed} of node evil is not routed: {reason}")]
            );
        }
    }

    #[test]
    fn the_first_owner_keeps_its_claim() {
        let old = peer(10, &["10.244.1.0/24"], &["192.0.2.2"]);
        let late = peer(20, &["10.244.1.0/24"], &["192.0.2.2"]);
        let expected = [
            "pod range 10.244.1.0/24 of node a-late is not routed: another node has it",
            "address 192.0.2.2 of node a-late is not routed: another node has it",
        ];
        let both = BTreeMap::from([("old".to_owned(), old.clone()), ("a-late".to_owned(), late.clone())]);
        assert_eq!(refused(&both, &Owners::default()), expected);
        // An older node that claims it only now is too late.
        let mut none = old.clone();
        none.pod_cidrs.clear();
        none.addresses.clear();
        let first = BTreeMap::from([("old".to_owned(), none), ("a-late".to_owned(), late)]);
        let before = decide(&ground(), &first, &Owners::default()).owners;
        assert_eq!(
            refused(&both, &before),
            [
                "pod range 10.244.1.0/24 of node old is not routed: another node has it",
                "address 192.0.2.2 of node old is not routed: another node has it",
            ]
        );
        // When its owner is deleted, the next one has it.
        let alone = BTreeMap::from([("old".to_owned(), old)]);
        assert_eq!(refused(&alone, &before), [] as [String; 0]);
    }

    #[test]
    fn a_node_that_runs_the_api_server_has_its_address() {
        let mut first = peer(1, &["10.244.1.0/24"], &["192.0.2.9"]);
        first.control_plane = true;
        let decision = decide(&ground(), &BTreeMap::from([("first".to_owned(), first.clone())]), &Owners::default());
        assert_eq!(decision.peers, [first]);
    }
}
