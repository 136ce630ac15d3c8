//! NodeName: a pod that names its node goes there or nowhere.

use crate::framework::{ClusterEvent, Plugin, PreFilter, State, Verdict};
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn pre_filter(&self, pod: &PodRow, _: &Snapshot) -> PreFilter {
        if pod.node_name.is_empty() { PreFilter::Skip } else { PreFilter::Continue(Box::new(())) }
    }

    fn filter(&self, _: &State, pod: &PodRow, node: &NodeRow) -> Verdict {
        match pod.node_name == node.name {
            true => Verdict::Fits,
            false => Verdict::unresolvable("node(s) didn't match the requested node name"),
        }
    }

    fn wakes(&self, event: ClusterEvent) -> bool {
        event == ClusterEvent::NodeAdded
    }
}
