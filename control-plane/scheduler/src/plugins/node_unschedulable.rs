//! NodeUnschedulable: a cordoned node takes only pods that tolerate its taint.

use corten_api::k8s_openapi::api::core::v1::Taint;
use corten_api::placement::tolerates;

use crate::framework::{ClusterEvent, Plugin, PreFilter, State, Verdict};
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct NodeUnschedulable;

impl Plugin for NodeUnschedulable {
    fn is_local(&self) -> bool {
        true
    }

    fn pre_filter(&self, pod: &PodRow, snapshot: &mut Snapshot) -> PreFilter {
        if snapshot.cordoned() == 0 {
            return PreFilter::Skip;
        }
        let cordon =
            Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
        match pod.demand.tolerations.0.iter().any(|toleration| tolerates(toleration, &cordon)) {
            true => PreFilter::Skip,
            false => PreFilter::Continue(Box::new(())),
        }
    }

    fn filter(&self, _: &State, _: &PodRow, node: &NodeRow, _: &Snapshot) -> Verdict {
        if node.unschedulable { Verdict::unresolvable("node(s) were unschedulable") } else { Verdict::Fits }
    }

    fn wakes(&self, _: &PodRow, event: &ClusterEvent<'_>, _: &Snapshot) -> bool {
        match event {
            ClusterEvent::NodeAdded(node) => !node.unschedulable,
            ClusterEvent::NodeUpdated(node, change) => change.unschedulable && !node.unschedulable,
            _ => false,
        }
    }
}
