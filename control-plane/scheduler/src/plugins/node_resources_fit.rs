//! NodeResourcesFit: the node has left what the pod asks for; of those that have, the least allocated is best.

use std::borrow::Cow;

use crate::framework::{ClusterEvent, MAX_SCORE, Plugin, PreFilter, PreScore, State, Verdict};
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct NodeResourcesFit;

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn pre_filter(&self, _: &PodRow, _: &Snapshot) -> PreFilter {
        PreFilter::Continue(Box::new(()))
    }

    fn filter(&self, _: &State, pod: &PodRow, node: &NodeRow) -> Verdict {
        let (mut reasons, mut unresolvable) = (Vec::new(), false);
        if node.pods.len() as i64 + 1 > node.allocatable.pods {
            reasons.push(Cow::Borrowed("Too many pods"));
        }
        let mut check = |name: &str, reason: Cow<'static, str>| {
            let (wanted, total) = (pod.requests.get(name), node.allocatable.get(name));
            if wanted > 0 && wanted > total - node.requested.get(name) {
                reasons.push(reason);
                unresolvable |= wanted > total;
            }
        };
        check("cpu", Cow::Borrowed("Insufficient cpu"));
        check("memory", Cow::Borrowed("Insufficient memory"));
        check("ephemeral-storage", Cow::Borrowed("Insufficient ephemeral-storage"));
        for name in pod.requests.scalar.keys() {
            check(name, Cow::Owned(format!("Insufficient {name}")));
        }
        match (reasons.is_empty(), unresolvable) {
            (true, _) => Verdict::Fits,
            (false, false) => Verdict::Unschedulable(reasons),
            (false, true) => Verdict::Unresolvable(reasons),
        }
    }

    fn pre_score(&self, _: &PodRow, _: &Snapshot, _: &[&NodeRow]) -> PreScore {
        PreScore::Ready(Box::new(()))
    }

    /// The mean share of processor time and memory that stays free with the pod on the node.
    fn score(&self, _: &State, pod: &PodRow, node: &NodeRow) -> i64 {
        let free = |name: &str| {
            let (used, total) = (node.scoring.get(name) + pod.scoring.get(name), node.allocatable.get(name));
            (total > 0).then(|| if used > total { 0 } else { (total - used) * MAX_SCORE / total })
        };
        let shares: Vec<i64> = ["cpu", "memory"].into_iter().filter_map(free).collect();
        if shares.is_empty() { 0 } else { shares.iter().sum::<i64>() / shares.len() as i64 }
    }

    fn wakes(&self, event: ClusterEvent) -> bool {
        matches!(event, ClusterEvent::NodeAdded | ClusterEvent::NodeUpdated | ClusterEvent::PodRemoved)
    }
}
