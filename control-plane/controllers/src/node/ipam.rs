//! The node IPAM controller: allocates a pod CIDR to every node from each cluster CIDR, of one or both IP families.
//!
//! Invariant: no two nodes get the same CIDR. One worker decides, and never before its last write is in the cache. The
//! pod CIDR of a Node cannot be changed; one outside the cluster CIDRs does not count as allocated.

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
    /// The cluster CIDRs; the first one determines the primary IP family.
    pub clusters: Vec<Cidr>,
    /// The prefix length of a node's CIDR, per IP family.
    pub node_prefix_v4: u8,
    pub node_prefix_v6: u8,
}

pub struct Observed {
    node: Node,
    taken: Taken,
}

/// The allocated parts of the cluster CIDRs.
#[derive(Default)]
struct Taken {
    /// CIDRs as this controller allocates them.
    ranges: BTreeSet<String>,
    /// CIDRs of another size that another writer set: they overlap several of ours or a part of one.
    others: Vec<Cidr>,
}

impl Taken {
    fn has(&self, range: Cidr) -> bool {
        self.ranges.contains(&range.to_string()) || self.others.iter().any(|other| other.overlaps(range))
    }
}

impl Controller for NodeIpamController {
    type Observed = Observed;

    const NAME: &'static str = "node-controller";
    const COMPONENT: &'static str = "cidrAllocator";
    const WORKERS: usize = 1;

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Node>()]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let node: Node = view.typed(key)?;
        // A node with a CIDR is only counted; for one without, the CIDRs of all others are read.
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
        // A node gets a CIDR of every family or none: a partial network would fail only later, in its pods.
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
    /// Counts the CIDRs of a node that has them.
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

    /// Parses the CIDR if this controller could have allocated it.
    fn cut(&self, range: &str) -> Option<Cidr> {
        let range = Cidr::parse(range)?;
        let cluster = self.clusters.iter().find(|cluster| cluster.contains(range.base))?;
        (range.prefix == self.prefix(cluster) && range.is_aligned()).then_some(range)
    }

    /// Returns the CIDRs of the nodes that lie in the cluster CIDRs.
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
        // A CIDR that covers a whole cluster CIDR must not prevent all further allocations.
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

    /// Returns the prefix length of the node CIDRs that are allocated from a cluster CIDR.
    fn prefix(&self, cluster: &Cidr) -> u8 {
        if cluster.base.is_ipv4() { self.node_prefix_v4 } else { self.node_prefix_v6 }
    }
}

/// Returns the pod CIDRs of a node.
fn pod_cidrs(node: &Node) -> Vec<String> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let one = spec.pod_cidr.iter().cloned();
    let mut all: Vec<String> = spec.pod_cidrs.iter().flatten().cloned().chain(one).collect();
    all.retain(|range| !range.is_empty());
    all
}
