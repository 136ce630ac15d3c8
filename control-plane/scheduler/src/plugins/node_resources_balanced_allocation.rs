//! NodeResourcesBalancedAllocation: prefers the node whose resources would be used most evenly.

use crate::framework::{MAX_SCORE, Plugin, PreScore, State};
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct NodeResourcesBalancedAllocation;

impl Plugin for NodeResourcesBalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    /// A pod that asks for nothing unbalances nothing.
    fn pre_score(&self, pod: &PodRow, _: &Snapshot, _: &[&NodeRow]) -> PreScore {
        match pod.requests.milli_cpu == 0 && pod.requests.memory == 0 {
            true => PreScore::Skip,
            false => PreScore::Ready(Box::new(())),
        }
    }

    /// Half the scale, moved up or down by what the pod does to the balance.
    fn score(&self, _: &State, pod: &PodRow, node: &NodeRow) -> i64 {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for name in ["cpu", "memory"] {
            let (used, total) = (node.requested.get(name), node.allocatable.get(name));
            if total > 0 {
                without.push((used as f64 / total as f64).min(1.0));
                with.push(((used + pod.requests.get(name)) as f64 / total as f64).min(1.0));
            }
        }
        MAX_SCORE / 2 + (MAX_SCORE / 2 + evenness(&with) - evenness(&without)) / 2
    }
}

/// One minus the standard deviation of the used shares.
fn evenness(shares: &[f64]) -> i64 {
    let deviation = match shares {
        [a, b] => ((a - b) / 2.0).abs(),
        _ => 0.0,
    };
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}
