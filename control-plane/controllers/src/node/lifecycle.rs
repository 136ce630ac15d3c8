//! The node lifecycle controller: sets the conditions of a silent node to Unknown, taints nodes by their conditions,
//! and marks the pods of a silent node not ready.
//!
//! When no node at all sends heartbeats, the fault is more likely the control plane's: then no node is tainted for
//! eviction.

use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::coordination::v1::Lease;
use corten_api::k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, PodCondition, Taint};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;
use serde_json::json;

use super::heartbeats::Heartbeats;
use super::zones::{Member, next_eviction, zone_of};
use crate::metrics;
use crate::runtime::{Action, Controller, Count, Plan, ResourceType, View, Watch, is_unready, key_of};
use crate::workload::condition::{mark_pod, ready_status};
use crate::workload::pods;

const LEASES: &str = "kube-node-lease";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// The taints that evict pods.
const EVICTING: [&str; 2] = [NOT_READY, UNREACHABLE];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// The taint of each condition status.
const CONDITION_TAINTS: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];
/// The conditions that a kubelet updates, hence Unknown when it is silent.
const HEARTBEAT_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

pub struct NodeLifecycleController {
    pub grace_period: Duration,
    pub startup_grace_period: Duration,
    /// The start time of this process: silence before that does not count.
    pub started: Timestamp,
    pub clock: fn() -> Timestamp,
    pub heartbeats: Heartbeats,
}

pub struct Observed {
    node: Node,
    /// The time of the last heartbeat, by lease or by status.
    heard: Option<Timestamp>,
    /// Pods of a silent node that still count as ready.
    ready_pods: Vec<Pod>,
    any_node_ready: bool,
    /// The nodes in the zone of a node that is not ready.
    zone: Vec<Member>,
}

impl Controller for NodeLifecycleController {
    type Observed = Observed;

    const NAME: &'static str = "node-controller";
    /// One worker: the eviction rate is read from the taints that were written last.
    const WORKERS: usize = 1;
    /// False: the controller times heartbeats by its own clock.
    const REMEMBERS: bool = false;

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::mapped::<Node>(of_node), Watch::read::<Lease>(), Watch::read::<Pod>()]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let Some(node) = view.typed::<Node>(key) else {
            self.heartbeats.forget(&key.name);
            return None;
        };
        let lease: Option<Lease> = view.typed(&Key { namespace: LEASES.to_owned(), name: key.name.clone() });
        let renewed = lease.and_then(|lease| lease.spec?.renew_time).map(|time| time.0);
        let posted = ready_condition(&node).and_then(|ready| ready.last_heartbeat_time.as_ref()).map(|time| time.0);
        let heard = renewed.max(posted).map(|reported| self.heartbeats.heard(&key.name, reported, (self.clock)()));
        let (mut any_node_ready, mut zone) = (true, Vec::new());
        if ready_status(&node) != "True" {
            let all = view.node_rows(view.list(ResourceType::of::<Node>(), ""));
            any_node_ready = all.iter().any(|node| node.facts.ready);
            let here = zone_of(node.metadata.labels.as_ref());
            let near = all.iter().filter(|other| zone_of(Some(&*other.object.header.labels)) == here);
            zone = near.map(|node| Member::of(&node.facts, &EVICTING)).collect();
        }
        let mut ready_pods = Vec::new();
        if ready_status(&node) == "Unknown" {
            ready_pods = view.on_node(&key.name);
            ready_pods.retain(pods::is_ready);
            ready_pods.sort_unstable_by_key(key_of);
        }
        Some(Observed { node, heard, ready_pods, any_node_ready, zone })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let silence = self.silence(observed, now);
        let grace =
            if ready_condition(&observed.node).is_some() { self.grace_period } else { self.startup_grace_period };
        if silence > grace
            && let Some(plan) = mark_unknown(&observed.node, now)
        {
            return plan;
        }
        let mut plan = Plan::nothing();
        count(&mut plan, &observed.node);
        set_taints(&mut plan, observed, now);
        if silence > grace {
            let mark = |pod: &Pod| mark_pod(pod, not_ready(pod, now), None);
            plan.actions.extend(observed.ready_pods.iter().map(mark));
            let tell = |pod: &Pod| Action::warning(pod, "NodeNotReady", "Node is not ready");
            plan.actions.extend(observed.ready_pods.iter().map(tell));
            plan.requeue(self.grace_period);
        } else {
            plan.requeue(grace - silence + Duration::from_millis(10));
        }
        plan
    }
}

/// Returns the zone of a node as upstream's metrics name it.
fn zone_label(node: &Node) -> String {
    match zone_of(node.metadata.labels.as_ref()) {
        (region, zone) if region.is_empty() && zone.is_empty() => String::new(),
        (region, zone) => format!("{region}:\0:{zone}"),
    }
}

/// Counts the reconcile, and the node in its zone.
fn count(plan: &mut Plan, node: &Node) {
    let (zone, unhealthy) = (zone_label(node), ready_status(node) != "True");
    plan.counts.push(Count::took(&metrics::NODE_SYNC_SECONDS, []));
    plan.count(&metrics::ZONE_SIZE, [zone.as_str().into()], 1.0);
    plan.counts.push(Count::mean(&metrics::ZONE_HEALTH, [zone.as_str().into()], if unhealthy { 0.0 } else { 100.0 }));
    plan.count(&metrics::ZONE_UNHEALTHY, [zone.as_str().into()], f64::from(u8::from(unhealthy)));
}

/// Returns also the nodes that are not ready, if a node becomes ready or stops being so: the state of one may affect
/// their taints, and theirs alone.
fn of_node(view: &dyn View, change: &Change) -> Vec<Key> {
    let status = |object: &Option<std::sync::Arc<corten_meta::Object>>| object.as_ref().map(|node| is_unready(node));
    let mut keys = vec![change.key.clone()];
    if status(&change.old) != status(&change.new) {
        keys.extend(view.unready_nodes().iter().map(|node| node.key()).filter(|key| *key != change.key));
    }
    keys
}

fn ready_condition(node: &Node) -> Option<&NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == "Ready")
}

impl NodeLifecycleController {
    /// Returns the time since the last heartbeat, by lease or status.
    fn silence(&self, observed: &Observed, now: Timestamp) -> Duration {
        let created = observed.node.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let last = [observed.heard, created, Some(self.started)].into_iter().flatten().max();
        now.duration_since(last.unwrap_or(now)).try_into().unwrap_or(Duration::ZERO)
    }
}

/// Sets every heartbeat condition of a silent node to Unknown; none if they already are.
fn mark_unknown(node: &Node, now: Timestamp) -> Option<Plan> {
    let was_ready = ready_status(node) == "True";
    let mut updated = node.clone();
    let conditions = updated.status.get_or_insert_default().conditions.get_or_insert_default();
    for kind in HEARTBEAT_CONDITIONS {
        match conditions.iter_mut().find(|condition| condition.type_ == kind) {
            Some(condition) if condition.status == "Unknown" => {}
            Some(condition) => {
                condition.status = "Unknown".to_owned();
                condition.reason = Some("NodeStatusUnknown".to_owned());
                condition.message = Some("Kubelet stopped posting node status.".to_owned());
                condition.last_transition_time = Some(Time(now));
            }
            None => conditions.push(NodeCondition {
                type_: kind.to_owned(),
                status: "Unknown".to_owned(),
                reason: Some("NodeStatusNeverUpdated".to_owned()),
                message: Some("Kubelet never posted node status.".to_owned()),
                last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                last_transition_time: Some(Time(now)),
            }),
        }
    }
    if updated.status == node.status {
        return None;
    }
    let mut plan = Plan::from(Action::update_status(&updated));
    if was_ready {
        let message = format!("Node {} status is now: NodeNotReady", node.name());
        plan.push(Action::normal(node, "NodeNotReady", message));
    }
    Some(plan)
}

fn not_ready(pod: &Pod, now: Timestamp) -> PodCondition {
    let mut condition = pods::condition(pod, "Ready").cloned().unwrap_or_default();
    condition.status = "False".to_owned();
    condition.last_transition_time = Some(Time(now));
    condition
}

/// Replaces the taints that this controller owns; all others stay.
fn set_taints(plan: &mut Plan, observed: &Observed, now: Timestamp) {
    let node = &observed.node;
    let current = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let wanted = wanted_taints(plan, observed, now);
    let ours = |taint: &Taint| {
        let no_schedule = taint.effect == "NoSchedule"
            && (taint.key == UNSCHEDULABLE || CONDITION_TAINTS.iter().any(|(.., key)| *key == taint.key));
        no_schedule || (taint.effect == "NoExecute" && EVICTING.contains(&taint.key.as_str()))
    };
    let same = |taint: &Taint, (key, effect): &(&str, &str)| taint.key == *key && taint.effect == *effect;
    let mut taints: Vec<Taint> =
        current.iter().filter(|taint| !ours(taint) || wanted.iter().any(|want| same(taint, want))).cloned().collect();
    for want in wanted.iter().filter(|want| !current.iter().any(|taint| same(taint, want))) {
        let time_added = (want.1 == "NoExecute").then_some(Time(now));
        if time_added.is_some() {
            plan.count(&metrics::EVICTIONS, [zone_label(node).as_str().into()], 1.0);
        }
        taints.push(Taint { key: want.0.to_owned(), effect: want.1.to_owned(), time_added, value: None });
    }
    if taints != current {
        let mut updated = node.clone();
        updated.spec.get_or_insert_default().taints = Some(taints);
        let taints = updated.to_value()["spec"]["taints"].take();
        let version = &node.metadata.resource_version;
        plan.push(Action::patch(node, json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}})));
    }
}

fn wanted_taints(plan: &mut Plan, observed: &Observed, now: Timestamp) -> Vec<(&'static str, &'static str)> {
    let node = &observed.node;
    let conditions = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let holds = |(kind, status, _): &&(&str, &str, &'static str)| {
        conditions.iter().any(|c| c.type_ == *kind && c.status == *status)
    };
    let mut wanted: Vec<(&str, &str)> =
        CONDITION_TAINTS.iter().filter(holds).map(|(.., key)| (*key, "NoSchedule")).collect();
    if node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let evicting = match ready_status(node) {
        "False" => NOT_READY,
        "Unknown" if ready_condition(node).is_some() => UNREACHABLE,
        _ => return wanted,
    };
    // A node that is tainted for eviction stays tainted, whatever the rate; only the key may change.
    let begun = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let begun = begun.filter(|taint| taint.effect == "NoExecute").any(|taint| EVICTING.contains(&taint.key.as_str()));
    match next_eviction(&observed.zone, now).filter(|_| observed.any_node_ready) {
        Some(wait) if !begun && !wait.is_zero() => plan.requeue(wait),
        Some(_) => wanted.push((evicting, "NoExecute")),
        None if begun && observed.any_node_ready => wanted.push((evicting, "NoExecute")),
        None => {}
    }
    wanted
}
