//! A range of pod addresses for every node, cut from each of the cluster's: one, or one of either family.
//!
//! Invariant: no two nodes are given the same range. One worker decides, and never before its last write is in the cache.
//! A range that a Node has already cannot be changed; one that is not a range of the cluster's is not taken for one.

use std::collections::BTreeSet;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_meta::Key;
use jiff::Timestamp;
use serde_json::json;

use crate::cidr::Cidr;
use crate::metrics;
use crate::runtime::{Action, Controller, Count, Label, Plan, View, Watch};

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
        (range.prefix == self.prefix(cluster) && range.is_aligned()).then_some(range)
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
