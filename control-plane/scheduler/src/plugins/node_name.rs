//! NodeName: a pod with `spec.nodeName` fits only that node.

use crate::framework::{ClusterEvent, Plugin, PreFilter, State, Verdict};
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct NodeName;

impl Plugin for NodeName {
    fn is_local(&self) -> bool {
        true
    }

    fn pre_filter(&self, pod: &PodRow, _: &mut Snapshot) -> PreFilter {
        if pod.node_name.is_empty() { PreFilter::Skip } else { PreFilter::Continue(Box::new(())) }
    }

    fn filter(&self, _: &State, pod: &PodRow, node: &NodeRow, _: &Snapshot) -> Verdict {
        match pod.node_name == node.name {
            true => Verdict::Fits,
            false => Verdict::unresolvable("node(s) didn't match the requested node name"),
        }
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, _: &Snapshot) -> bool {
        matches!(event, ClusterEvent::NodeAdded(node) if node.name == pod.node_name)
    }
}
