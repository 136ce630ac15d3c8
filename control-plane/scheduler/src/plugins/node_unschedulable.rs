//! NodeUnschedulable: a cordoned node takes only pods that tolerate being there.

use corten_api::k8s_openapi::api::core::v1::Taint;
use corten_api::placement::tolerates;

use crate::framework::{ClusterEvent, Plugin, PreFilter, State, Verdict};
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct NodeUnschedulable;

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn pre_filter(&self, pod: &PodRow, _: &Snapshot) -> PreFilter {
        let cordon =
            Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
        match pod.tolerations.iter().any(|toleration| tolerates(toleration, &cordon)) {
            true => PreFilter::Skip,
            false => PreFilter::Continue(Box::new(())),
        }
    }

    fn filter(&self, _: &State, _: &PodRow, node: &NodeRow) -> Verdict {
        if node.unschedulable { Verdict::unresolvable("node(s) were unschedulable") } else { Verdict::Fits }
    }

    fn wakes(&self, event: ClusterEvent) -> bool {
        matches!(event, ClusterEvent::NodeAdded | ClusterEvent::NodeUpdated)
    }
}
