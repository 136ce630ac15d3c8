//! The pod garbage collector: deletes pods that no kubelet will finish, on nodes that are deleted or out of service,
//! and old terminated pods.

use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, Pod};
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use crate::metrics;
use crate::runtime::{Action, Controller, Count, Label, Plan, ResourceType, View, Watch, decode, key_of, mentions};
use crate::workload::condition::{disruption_target, mark_pod, ready_status};
use crate::workload::pods;

/// A node that is missing for less than this may not have registered yet.
const QUARANTINE: Duration = Duration::from_secs(40);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The key for which the number of terminated pods is checked.
const TERMINATED: &str = "terminated";

/// The metric label for a pod whose node does not exist.
const ORPHANED: &str = "orphaned";

pub struct PodGcController {
    pub terminated_threshold: usize,
}

pub enum Observed {
    Pod {
        pod: Box<Pod>,
        node: Option<Box<Node>>,
    },
    /// All terminated pods, when there are too many.
    Terminated(Vec<Pod>),
}

impl Controller for PodGcController {
    type Observed = Observed;

    const NAME: &'static str = "pod-garbage-collector";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::mapped::<Pod>(of_pod), Watch::mapped::<Node>(of_node)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        if key.namespace.is_empty() {
            if self.terminated_threshold == 0
                || view.list(ResourceType::of::<Pod>(), "").len() <= self.terminated_threshold
            {
                return None;
            }
            let mut ended = view.rows(view.list(ResourceType::of::<Pod>(), ""));
            ended.retain(|pod| pods::is_terminal(pod) && !pods::is_terminating(pod));
            return Some(Observed::Terminated(ended.iter().filter_map(|pod| decode(&pod.object)).collect()));
        }
        let pod = view.rows(vec![view.get(ResourceType::of::<Pod>(), key)?]).pop()?;
        let place = Key::new("", pods::node_name(&pod));
        // Every change of a pod enqueues it, and nearly all pods are on an existing node: those are not decoded.
        let placed = place.name.is_empty() || view.get(ResourceType::of::<Node>(), &place).is_some();
        if placed && !pods::is_terminating(&pod) {
            return None;
        }
        let node: Option<Node> = view.typed(&place);
        Some(Observed::Pod { pod: Box::new(decode(&pod.object)?), node: node.map(Box::new) })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        match observed {
            Observed::Terminated(ended) => self.oldest_ended(ended),
            Observed::Pod { pod, node } => match (pods::node_name(pod.as_ref()), node) {
                ("", _) if pods::is_terminating(pod.as_ref()) => fail_and_delete(pod, "unscheduled", now),
                ("", _) => Plan::nothing(),
                (_, None) => orphaned(pod, now),
                (_, Some(node)) if pods::is_terminating(pod.as_ref()) && is_out_of_service(node) => {
                    fail_and_delete(pod, "out-of-service", now)
                }
                _ => Plan::nothing(),
            },
        }
    }
}

impl PodGcController {
    fn oldest_ended(&self, ended: &[Pod]) -> Plan {
        let mut ended: Vec<&Pod> = ended.iter().collect();
        let evicted = |pod: &Pod| pod.status.as_ref().and_then(|status| status.reason.as_deref()) == Some("Evicted");
        ended.sort_by_key(|pod| {
            (!evicted(pod), pod.metadata.creation_timestamp.as_ref().map(|time| time.0), key_of(*pod))
        });
        let surplus = ended.len().saturating_sub(self.terminated_threshold);
        let mut plan = Plan::nothing();
        for pod in ended.into_iter().take(surplus) {
            delete(&mut plan, pod, "terminated");
        }
        plan
    }
}

/// Returns the pod's key, and the key of the check of terminated pods if it is new.
fn of_pod(_: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys = vec![change.key.clone()];
    if change.old.is_none() {
        keys.push(Key { namespace: String::new(), name: TERMINATED.to_owned() });
    }
    keys
}

fn of_node(view: &dyn View, change: &Change) -> Vec<Key> {
    let tainted = |object: &Option<std::sync::Arc<corten_meta::Object>>| {
        object.as_ref().is_some_and(|node| mentions(node, OUT_OF_SERVICE))
    };
    if change.new.is_some() && !tainted(&change.new) {
        return Vec::new();
    }
    view.on_node(&change.key.name).iter().map(key_of).collect()
}

fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    ready_status(node) != "True" && taints.into_iter().flatten().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// Deletes a pod of a missing node once it is old enough for the node to have registered.
fn orphaned(pod: &Pod, now: Timestamp) -> Plan {
    let created = pod.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let age: Duration = now.duration_since(created).try_into().unwrap_or(Duration::ZERO);
    match QUARANTINE.checked_sub(age).filter(|left| !left.is_zero()) {
        Some(left) => Plan::later(left),
        None => fail_and_delete(pod, ORPHANED, now),
    }
}

fn delete(plan: &mut Plan, pod: &Pod, reason: &str) {
    plan.push(Action::delete_with(pod, Some(0), None, None));
    let labels: [Label; 2] = [pod.namespace().into(), reason.into()];
    plan.counts.push(Count::failure(&metrics::PODS_NOT_COLLECTED, labels.clone()));
    plan.count(&metrics::PODS_COLLECTED, labels, 1.0);
}

fn fail_and_delete(pod: &Pod, reason: &str, now: Timestamp) -> Plan {
    let (node_is_gone, mut plan) = (reason == ORPHANED, Plan::nothing());
    if node_is_gone {
        // The cache may not show a node that has just registered: the server must confirm that there is none.
        plan.push(Action::absent::<Node>(Key::new("", pods::node_name(pod))));
    }
    if !pods::is_terminal(pod) {
        match node_is_gone {
            true => plan.push(mark_pod(
                pod,
                disruption_target("DeletionByPodGC", "PodGC: node no longer exists", now),
                Some("Failed"),
            )),
            false => plan.push(Action::patch_status(pod, serde_json::json!({"status": {"phase": "Failed"}}))),
        }
    }
    delete(&mut plan, pod, reason);
    plan
}
