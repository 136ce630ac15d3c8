//! A range of pod addresses for every node, cut from each of the cluster's: one, or one of either family.
//!
//! Invariant: no two nodes are given the same range. One worker decides, and never before its last write is in the cache.
//! A range that a Node has already cannot be changed; one that is not a range of the cluster's is not taken for one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_meta::Key;
use jiff::Timestamp;
use serde_json::json;

use crate::metrics;
use crate::runtime::{Action, Controller, Count, Label, Plan, View, Watch};

/// Ranges beyond this many are not looked through: no cluster has so many nodes.
const MOST_RANGES: u128 = 1 << 16;

/// A network as `10.244.0.0/16` or `fd00::/48`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub base: IpAddr,
    pub prefix: u8,
}

impl Cidr {
    pub fn parse(text: &str) -> Option<Cidr> {
        let (base, prefix) = text.trim().split_once('/')?;
        let (base, prefix): (IpAddr, u8) = (base.parse().ok()?, prefix.parse().ok()?);
        (prefix <= if base.is_ipv4() { 32 } else { 128 }).then_some(Cidr { base, prefix })
    }

    /// One network, or one of each family: what `--cluster-cidr` takes, divided by a comma.
    pub fn parse_list(text: &str) -> Option<Vec<Cidr>> {
        let all: Vec<Cidr> = text.split(',').map(Cidr::parse).collect::<Option<_>>()?;
        let families = all.iter().filter(|one| one.base.is_ipv4()).count();
        (all.len() == 1 || (all.len() == 2 && families == 1)).then_some(all)
    }

    /// Whether the address is one of the network.
    pub fn contains(self, address: IpAddr) -> bool {
        let (bits, width) = bits(address);
        let host_bits = u32::from(width).saturating_sub(self.prefix.into());
        let differing = bits ^ self::bits(self.base).0;
        self.base.is_ipv4() == address.is_ipv4() && differing.checked_shr(host_bits).unwrap_or(0) == 0
    }

    /// Whether every address of the other is one of this network.
    fn covers(self, other: Cidr) -> bool {
        self.prefix <= other.prefix && self.contains(other.base)
    }

    fn overlaps(self, other: Cidr) -> bool {
        self.contains(other.base) || other.contains(self.base)
    }

    /// The subnets of the given size, in order.
    fn subnets(self, prefix: u8) -> impl Iterator<Item = Cidr> {
        let width = if self.base.is_ipv4() { 32 } else { 128 };
        let bits = prefix.saturating_sub(self.prefix);
        let count = if prefix < self.prefix { 0 } else { 1u128.checked_shl(bits.into()).unwrap_or(u128::MAX) };
        let shift = u32::from(width - prefix.min(width));
        let subnet = move |index: u128| {
            let offset = index.checked_shl(shift)?;
            let base = match self.base {
                IpAddr::V4(base) => IpAddr::V4(u32::try_from(u128::from(u32::from(base)) | offset).ok()?.into()),
                IpAddr::V6(base) => IpAddr::V6((u128::from(base) | offset).into()),
            };
            Some(Cidr { base, prefix })
        };
        (0..count.min(MOST_RANGES)).filter_map(subnet)
    }
}

/// The bits of an address, and how many there are.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(v4) => (u32::from(v4).into(), 32),
        IpAddr::V6(v6) => (v6.into(), 128),
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

pub struct NodeIpamController {
    /// The cluster's networks, the first one's family being the main one.
    pub clusters: Vec<Cidr>,
    /// How large a node's range is, by family.
    pub node_prefix_v4: u8,
    pub node_prefix_v6: u8,
}

pub struct Observed {
    node: Node,
    taken: Taken,
}

/// What is no longer free of the cluster's networks.
#[derive(Default)]
struct Taken {
    /// Ranges as they are cut here.
    ranges: BTreeSet<String>,
    /// Ranges of another size that somebody wrote: they overlap several of ours or a part of one.
    others: Vec<Cidr>,
}

impl Taken {
    fn has(&self, range: Cidr) -> bool {
        self.ranges.contains(&range.to_string()) || self.others.iter().any(|other| other.overlaps(range))
    }
}

impl Controller for NodeIpamController {
    type Observed = Observed;

    fn name(&self) -> &'static str {
        "node-controller"
    }

    fn component(&self) -> &'static str {
        "cidrAllocator"
    }

    fn workers(&self) -> usize {
        1
    }

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Node>()]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let node: Node = view.typed(key)?;
        // Who has a range is only counted; for who has none, those of all others matter.
        let others: Vec<Node> = if pod_cidrs(&node).is_empty() { view.all("") } else { Vec::new() };
        Some(Observed { node, taken: self.taken(&others) })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let own = pod_cidrs(&observed.node);
        if let Some(foreign) = own.iter().find(|range| self.cut(range).is_none()) {
            return Plan::from(self.warning(&observed.node, foreign));
        }
        if !own.is_empty() {
            return self.counted();
        }
        let free = |cluster: &Cidr| {
            let mut all = cluster.subnets(self.prefix(cluster)).enumerate();
            let (tries, range) = all.find(|(_, range)| !observed.taken.has(*range))?;
            Some((tries, range.to_string()))
        };
        // A node gets a range of every family or none: half a network would be found out only by its pods.
        match self.clusters.iter().map(free).collect::<Option<(Vec<usize>, Vec<String>)>>() {
            Some((tries, ranges)) => {
                let spec = json!({"podCIDR": ranges.first(), "podCIDRs": ranges});
                let mut plan = Plan::from(Action::patch(&observed.node, json!({ "spec": spec })));
                for (cluster, tries) in self.clusters.iter().zip(tries) {
                    let label = Label::from(cluster.to_string().as_str());
                    plan.count(&metrics::RANGES_GIVEN, [label.clone()], 1.0);
                    plan.count(&metrics::RANGE_TRIES, [label], tries as f64);
                }
                plan
            }
            None => {
                let message = format!("Node {} status is now: CIDRNotAvailable", observed.node.name());
                Plan::from(Action::normal(&observed.node, "CIDRNotAvailable", message))
            }
        }
    }
}

impl NodeIpamController {
    /// The share of a node that has its ranges.
    fn counted(&self) -> Plan {
        let mut plan = Plan::nothing();
        for cluster in &self.clusters {
            let label = Label::from(cluster.to_string().as_str());
            let ranges = f64::from(self.prefix(cluster).saturating_sub(cluster.prefix)).exp2();
            plan.count(&metrics::RANGES_USED, [label.clone()], 1.0 / ranges);
            plan.counts.push(Count::mean(&metrics::RANGES_THERE, [label.clone()], ranges));
            plan.counts.push(Count::end(&metrics::RANGES_FREED, [label]));
        }
        plan
    }

    /// The range, if it is one that could have been cut here.
    fn cut(&self, range: &str) -> Option<Cidr> {
        let range = Cidr::parse(range)?;
        let cluster = self.clusters.iter().find(|cluster| cluster.contains(range.base))?;
        let host_bits = u32::from(bits(range.base).1 - range.prefix);
        let is_aligned = bits(range.base).0.trailing_zeros() >= host_bits;
        (range.prefix == self.prefix(cluster) && is_aligned).then_some(range)
    }

    /// The ranges of the nodes, as far as they are the cluster's.
    fn taken(&self, nodes: &[Node]) -> Taken {
        let mut taken = Taken::default();
        for text in nodes.iter().flat_map(pod_cidrs) {
            if let Some(range) = self.cut(&text) {
                taken.ranges.insert(range.to_string());
            } else if let Some(range) = Cidr::parse(&text) {
                taken.others.push(range);
            }
        }
        taken.others.retain(|range| self.clusters.iter().any(|cluster| cluster.overlaps(*range)));
        // A range that covers a whole network must not keep every node that joins from its own.
        taken.others.retain(|range| self.clusters.iter().all(|cluster| !range.covers(*cluster)));
        taken
    }

    fn warning(&self, node: &Node, range: &str) -> Action {
        let clusters = self.clusters.iter().map(Cidr::to_string).collect::<Vec<_>>().join(",");
        let message = format!(
            "The pod range {range} of node {} is not one that is cut from {clusters}: no other node routes to it",
            node.name()
        );
        Action::warning(node, "PodCIDROutsideCluster", message)
    }

    /// How large the ranges are that are cut from a network.
    fn prefix(&self, cluster: &Cidr) -> u8 {
        if cluster.base.is_ipv4() { self.node_prefix_v4 } else { self.node_prefix_v6 }
    }
}

/// The ranges that a node has.
fn pod_cidrs(node: &Node) -> Vec<String> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let one = spec.pod_cidr.iter().cloned();
    let mut all: Vec<String> = spec.pod_cidrs.iter().flatten().cloned().chain(one).collect();
    all.retain(|range| !range.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_cut_in_order_and_within_themselves() {
        let cut = |text: &str, prefix: u8, skip: usize| {
            Cidr::parse(text).unwrap().subnets(prefix).nth(skip).map(|range| range.to_string())
        };
        for (network, prefix, skip, expected) in [
            ("10.244.0.0/16", 24, 0, Some("10.244.0.0/24")),
            ("10.244.0.0/16", 24, 255, Some("10.244.255.0/24")),
            ("10.244.0.0/16", 24, 256, None),
            ("10.244.0.0/16", 12, 0, None),
            ("fd00:10:244::/56", 64, 1, Some("fd00:10:244:1::/64")),
            ("fd00:10:244::/56", 64, 256, None),
            ("::/0", 128, 3, Some("::3/128")),
        ] {
            assert_eq!(cut(network, prefix, skip).as_deref(), expected, "{network} by {prefix}");
        }
        let cluster = Cidr::parse("10.244.0.0/16").unwrap();
        for (address, expected) in
            [("10.244.0.0", true), ("10.244.255.255", true), ("10.245.0.0", false), ("fd00::1", false)]
        {
            assert_eq!(cluster.contains(address.parse().unwrap()), expected, "{address}");
        }
        assert!(Cidr::parse("::/0").unwrap().contains("fd00::1".parse().unwrap()));
        assert_eq!(Cidr::parse_list("10.0.0.0/8,fd00::/48").map(|all| all.len()), Some(2));
        assert_eq!(Cidr::parse_list("10.0.0.0/8,11.0.0.0/8"), None);
    }
}
