//! NodeAffinity: the nodes a pod asks for by label or name, strictly or by preference.

use corten_api::k8s_openapi::api::core::v1::PreferredSchedulingTerm;
use corten_api::placement::{node_term_matches, required_node_terms, selects_node};

use crate::framework::{ClusterEvent, Plugin, PreFilter, PreScore, State, Verdict, normalize};
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct NodeAffinity;

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn pre_filter(&self, pod: &PodRow, _: &Snapshot) -> PreFilter {
        match pod.node_selector.is_empty() && required_node_terms(pod.affinity.as_deref()).is_none() {
            true => PreFilter::Skip,
            false => PreFilter::Continue(Box::new(())),
        }
    }

    fn filter(&self, _: &State, pod: &PodRow, node: &NodeRow) -> Verdict {
        match selects_node(&pod.node_selector, pod.affinity.as_deref(), &node.name, &node.labels) {
            true => Verdict::Fits,
            false => Verdict::unresolvable("node(s) didn't match Pod's node affinity/selector"),
        }
    }

    fn pre_score(&self, pod: &PodRow, _: &Snapshot, _: &[&NodeRow]) -> PreScore {
        if preferred(pod).next().is_some() { PreScore::Ready(Box::new(())) } else { PreScore::Skip }
    }

    fn score(&self, _: &State, pod: &PodRow, node: &NodeRow) -> i64 {
        let matching = preferred(pod).filter(|term| node_term_matches(&term.preference, &node.name, &node.labels));
        matching.map(|term| i64::from(term.weight)).sum()
    }

    fn normalize(&self, _: &State, scores: &mut [i64]) {
        normalize(scores, false);
    }

    fn wakes(&self, event: ClusterEvent) -> bool {
        matches!(event, ClusterEvent::NodeAdded | ClusterEvent::NodeUpdated)
    }
}

fn preferred(pod: &PodRow) -> impl Iterator<Item = &PreferredSchedulingTerm> {
    let node = pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    node.and_then(|node| node.preferred_during_scheduling_ignored_during_execution.as_ref()).into_iter().flatten()
}
