//! The TTL controller: tells kubelets by an annotation how long they may cache Secrets and ConfigMaps, depending on the
//! size of the cluster.
//!
//! In a large cluster, reading them again for every pod would be most of the load. The steps overlap, so that a cluster
//! at the edge of one does not alternate; the node's annotation shows the current step.

use corten_api::k8s_openapi::api::core::v1::Node;
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;
use serde_json::json;

use crate::runtime::{Action, Controller, Plan, ResourceType, View, Watch};

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";
/// The fewest and the most nodes of a step, and its seconds.
const STEPS: [(usize, usize, u32); 5] =
    [(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

pub struct TtlController;

pub struct Observed {
    node: Node,
    count: usize,
}

impl Controller for TtlController {
    type Observed = Observed;

    const NAME: &'static str = "ttl-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::mapped::<Node>(of_node)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        Some(Observed { node: view.typed(key)?, count: view.list(ResourceType::of::<Node>(), "").len() })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let current = observed.node.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
        let current: Option<u32> = current.and_then(|seconds| seconds.parse().ok());
        let wanted = seconds(current.unwrap_or(0), observed.count);
        if current == Some(wanted) {
            return Plan::nothing();
        }
        let patch = json!({"metadata": {"annotations": {ANNOTATION: wanted.to_string()}}});
        Plan::from(Action::patch(&observed.node, patch))
    }
}

/// Returns a new node, or all nodes when the cluster leaves a step.
fn of_node(view: &dyn View, change: &Change) -> Vec<Key> {
    if change.old.is_some() && change.new.is_some() {
        return vec![change.key.clone()];
    }
    let all = view.list(ResourceType::of::<Node>(), "");
    let edge = STEPS.iter().any(|(fewest, most, _)| all.len() + 1 == *fewest || all.len() == most.saturating_add(1));
    if edge { all.iter().map(|node| node.key()).collect() } else { vec![change.key.clone()] }
}

/// Returns the seconds for this many nodes, given the current seconds.
fn seconds(current: u32, count: usize) -> u32 {
    let mut step = STEPS.iter().position(|(.., seconds)| *seconds == current).unwrap_or(0);
    while count > STEPS[step].1 {
        step += 1;
    }
    while count < STEPS[step].0 {
        step -= 1;
    }
    STEPS[step].2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_left_only_well_beyond_its_edge() {
        for (current, count, expected) in [
            (0, 100, 0),
            (0, 101, 15),
            (15, 95, 15),
            (15, 89, 0),
            (0, 5000, 300),
            (300, 1801, 300),
            (300, 10, 0),
            (7, 1, 0),
        ] {
            assert_eq!(seconds(current, count), expected, "{count} nodes after {current} s");
        }
    }
}
