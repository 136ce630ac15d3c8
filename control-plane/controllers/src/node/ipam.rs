//! A range of pod addresses for every node, cut from the cluster's.
//!
//! Invariant: no two nodes hold the same range. One worker decides, and never before its last write is in the cache.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_meta::Key;
use jiff::Timestamp;
use serde_json::json;

use crate::runtime::{Action, Controller, Plan, View, Watch};

/// An IPv4 network as `10.244.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub base: Ipv4Addr,
    pub prefix: u8,
}

impl Cidr {
    pub fn parse(text: &str) -> Option<Cidr> {
        let (base, prefix) = text.split_once('/')?;
        let (base, prefix) = (base.parse().ok()?, prefix.parse().ok()?);
        (prefix <= 32).then_some(Cidr { base, prefix })
    }

    /// The subnets of the given size, in order.
    fn subnets(self, prefix: u8) -> impl Iterator<Item = Cidr> {
        let count = 1u64 << prefix.saturating_sub(self.prefix).min(31);
        let step = 1u64 << (32 - prefix);
        let base = u64::from(u32::from(self.base));
        let subnet = move |index| Some(Cidr { base: Ipv4Addr::from(u32::try_from(base + index * step).ok()?), prefix });
        (0..count).filter_map(subnet)
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

pub struct NodeIpamController {
    pub cluster: Cidr,
    pub node_prefix: u8,
}

pub struct Observed {
    node: Node,
    taken: BTreeSet<String>,
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
        let node: Node = view.typed(key).filter(|node: &Node| pod_cidr(node).is_none())?;
        let all: Vec<Node> = view.all("");
        Some(Observed { node, taken: all.iter().filter_map(pod_cidr).map(str::to_owned).collect() })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let free = self
            .cluster
            .subnets(self.node_prefix)
            .map(|range| range.to_string())
            .find(|range| !observed.taken.contains(range));
        match free {
            Some(range) => {
                Plan::from(Action::patch(&observed.node, json!({"spec": {"podCIDR": range, "podCIDRs": [range]}})))
            }
            None => {
                let message = format!("Node {} status is now: CIDRNotAvailable", observed.node.name());
                Plan::from(Action::normal(&observed.node, "CIDRNotAvailable", message))
            }
        }
    }
}

fn pod_cidr(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.pod_cidr.as_deref().filter(|cidr| !cidr.is_empty())
}
