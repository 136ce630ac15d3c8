//! NodeDeclaredFeatures: a node is feasible only if its kubelet declares the features that the pod needs.
//!
//! Kubelets of an older version run beside a newer control plane; they would ignore a field that they do not know.

use crate::framework::{ClusterEvent, Plugin, PreFilter, State, Verdict};
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct NodeDeclaredFeatures;

impl Plugin for NodeDeclaredFeatures {
    fn is_local(&self) -> bool {
        true
    }

    fn pre_filter(&self, pod: &PodRow, _: &mut Snapshot) -> PreFilter {
        if pod.demand.features.is_empty() { PreFilter::Skip } else { PreFilter::Continue(Box::new(())) }
    }

    fn filter(&self, _: &State, pod: &PodRow, node: &NodeRow, _: &Snapshot) -> Verdict {
        match declares_all(pod, node) {
            true => Verdict::Fits,
            false => Verdict::unresolvable("node(s) didn't match Pod's required features"),
        }
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, _: &Snapshot) -> bool {
        match event {
            ClusterEvent::NodeAdded(node) => declares_all(pod, node),
            ClusterEvent::NodeUpdated(node, change) => change.declared_features && declares_all(pod, node),
            _ => false,
        }
    }
}

fn declares_all(pod: &PodRow, node: &NodeRow) -> bool {
    pod.demand.features.iter().all(|needed| node.declared_features.iter().any(|declared| declared == needed))
}
