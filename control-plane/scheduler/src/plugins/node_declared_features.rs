//! NodeDeclaredFeatures: a node is feasible only if its kubelet declares the features that the pod needs.
//!
//! Kubelets of an older version run beside a newer control plane; they would ignore a field that they do not know.

use crate::framework::{ClusterEvent, Plugin, Point, PreFilter, State, Verdict};
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct NodeDeclaredFeatures;

impl Plugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatures"
    }

    fn is_local(&self) -> bool {
        true
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::{node, typed_pod};
    use serde_json::json;

    #[test]
    fn restarts_of_all_containers_need_a_kubelet_that_declares_them() {
        let mut snapshot = Snapshot::default();
        let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]);
        let spec = json!({"containers": [{"name": "c", "restartPolicy": "Never", "restartPolicyRules": rules}]});
        let pod = snapshot.row(typed_pod("p", spec));
        let plain = snapshot.row(typed_pod("plain", json!({"containers": [{"name": "c"}]})));
        assert!(matches!(NodeDeclaredFeatures.pre_filter(&plain, &mut snapshot), PreFilter::Skip));
        assert!(matches!(NodeDeclaredFeatures.pre_filter(&pod, &mut snapshot), PreFilter::Continue(_)));

        snapshot.set_node(node("n", "1", json!({})));
        let state: State = Box::new(());
        let verdict = NodeDeclaredFeatures.filter(&state, &pod, snapshot.find("n").unwrap(), &snapshot);
        assert_eq!(verdict, Verdict::unresolvable("node(s) didn't match Pod's required features"));

        let status = json!({"status": {"declaredFeatures": ["RestartAllContainersOnContainerExits"]}});
        let change = snapshot.set_node(node("n", "1", status.clone()));
        let row = snapshot.find("n").unwrap();
        assert!(change.declared_features);
        assert!(NodeDeclaredFeatures.filter(&state, &pod, row, &snapshot).fits());
        assert!(NodeDeclaredFeatures.wakes(&pod, &ClusterEvent::NodeUpdated(row, change), &snapshot));
        assert!(!snapshot.set_node(node("n", "1", status)).any(), "the same features are no change");
    }
}
