//! Taint eviction: deletes the pods that do not tolerate a NoExecute taint, or no longer do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use corten_api::placement::tolerates;
use corten_client::Change;
use corten_meta::{Key, Object};
use jiff::Timestamp;

use crate::metrics;
use crate::runtime::{Action, Controller, Plan, ResourceType, View, Watch, decode, key_of, mentions};
use crate::workload::condition::{disruption_target, mark_pod};
use crate::workload::pods;

#[derive(Default)]
pub struct TaintEvictionController {
    /// The time at which a taint without `timeAdded` was first seen, by node and taint: a toleration must not start
    /// anew with every reconcile.
    met: Mutex<HashMap<(String, String, String), Timestamp>>,
}

pub struct Observed {
    pod: Pod,
    /// The NoExecute taints of the pod's node, each with the time since which it applies.
    taints: Vec<(Taint, Timestamp)>,
}

impl Controller for TaintEvictionController {
    type Observed = Observed;

    const NAME: &'static str = "node-controller";
    const COMPONENT: &'static str = "taint-eviction-controller";
    /// False: only this controller knows when it first saw a taint.
    const REMEMBERS: bool = false;

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Pod>(), Watch::mapped::<Node>(of_node)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let row = view.rows(vec![view.get(ResourceType::of::<Pod>(), key)?]).pop()?;
        let name = pods::node_name(&row).to_owned();
        if !pods::is_active(&row) || name.is_empty() {
            return None;
        }
        let node = view.get(ResourceType::of::<Node>(), &Key { namespace: String::new(), name: name.clone() })?;
        let taints = no_execute(&node);
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let now = crate::runtime::now();
        met.retain(|(node, taint, value), _| {
            *node != name || taints.iter().any(|t| t.key == *taint && t.value.clone().unwrap_or_default() == *value)
        });
        let since = |taint: Taint| {
            let id = (name.clone(), taint.key.clone(), taint.value.clone().unwrap_or_default());
            let first = *met.entry(id).or_insert(now);
            let since = taint.time_added.as_ref().map_or(first, |time| time.0);
            (taint, since)
        };
        let taints: Vec<(Taint, Timestamp)> = taints.into_iter().map(since).collect();
        // Every change of a pod enqueues it, and hardly any is on a tainted node: the others are not decoded.
        if taints.is_empty() { None } else { Some(Observed { pod: decode(&row.object)?, taints }) }
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        match evict_after(&observed.pod, &observed.taints, now) {
            None => Plan::nothing(),
            Some(wait) if !wait.is_zero() => Plan::later(wait),
            Some(_) => evict(observed, now),
        }
    }
}

fn no_execute(node: &Arc<Object>) -> Vec<Taint> {
    if !mentions(node, "\"NoExecute\"") {
        return Vec::new();
    }
    let taints = decode::<Node>(node).and_then(|node| node.spec).and_then(|spec| spec.taints).unwrap_or_default();
    taints.into_iter().filter(|taint| taint.effect == "NoExecute").collect()
}

fn of_node(view: &dyn View, change: &Change) -> Vec<Key> {
    let taints = |object: &Option<Arc<Object>>| object.as_ref().map(no_execute).unwrap_or_default();
    if change.new.is_none() || taints(&change.old) == taints(&change.new) {
        return Vec::new();
    }
    view.on_node(&change.key.name).iter().map(key_of).collect()
}

/// Returns when the pod must be deleted: never, now (zero) or after a while.
fn evict_after(pod: &Pod, taints: &[(Taint, Timestamp)], now: Timestamp) -> Option<Duration> {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let mut soonest: Option<Duration> = None;
    for (taint, since) in taints {
        let matching: Vec<&Toleration> = tolerations.iter().filter(|toleration| tolerates(toleration, taint)).collect();
        if matching.is_empty() {
            return Some(Duration::ZERO);
        }
        let seconds = matching.iter().filter_map(|toleration| toleration.toleration_seconds).min();
        let Some(seconds) = seconds else { continue };
        let passed: Duration = now.duration_since(*since).try_into().unwrap_or(Duration::ZERO);
        let left = Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).saturating_sub(passed);
        soonest = Some(soonest.map_or(left, |already| already.min(left)));
    }
    soonest
}

fn evict(observed: &Observed, now: Timestamp) -> Plan {
    let (pod, mut plan) = (&observed.pod, Plan::nothing());
    plan.count(&metrics::TAINT_DELETIONS, [], 1.0);
    if let Some(since) = observed.taints.iter().map(|(_, since)| *since).min() {
        plan.count(&metrics::TAINT_DELETION_SECONDS, [], now.duration_since(since).as_secs_f64().max(0.0));
    }
    plan.push(Action::normal(
        pod,
        "TaintManagerEviction",
        format!("Marking for deletion Pod {}/{}", pod.namespace(), pod.name()),
    ));
    if pods::condition(pod, "DisruptionTarget").is_none() {
        let condition =
            disruption_target("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", now);
        plan.push(mark_pod(pod, condition, None));
    }
    plan.push(Action::delete(pod));
    plan
}
