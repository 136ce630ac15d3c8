//! What the cluster does about its nodes: give each a pod range, notice silence, taint, and clear away what is lost.

mod heartbeats;
pub mod ipam;
pub mod lifecycle;
pub mod pod_gc;
pub mod taint_eviction;
pub mod ttl;
mod zones;

pub use heartbeats::Heartbeats;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;
use serde_json::json;

use crate::runtime::Action;
use crate::workload::condition;

/// The status of the Ready condition, `Unknown` when the node never told.
pub fn ready_status(node: &Node) -> &str {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready")
        .map_or("Unknown", |ready| &ready.status)
}

/// Writes one pod condition (and a phase), guarded against whoever wrote in between.
pub fn mark_pod(pod: &Pod, new: PodCondition, phase: Option<&str>) -> Action {
    let mut updated = pod.clone();
    condition::set(&mut updated.status.get_or_insert_default().conditions, new);
    let value = updated.to_value();
    let mut status = json!({"conditions": value["status"]["conditions"]});
    if let Some(phase) = phase {
        status["phase"] = json!(phase);
    }
    Action::patch_status(pod, json!({"metadata": {"resourceVersion": pod.metadata.resource_version}, "status": status}))
}

/// The condition that says why a pod is about to be taken down.
pub fn disruption_target(reason: &str, message: &str, now: Timestamp) -> PodCondition {
    PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(now)),
        ..PodCondition::default()
    }
}

#[cfg(test)]
mod tests;
