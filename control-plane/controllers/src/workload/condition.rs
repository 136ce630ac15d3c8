//! Status conditions: set by type, with a transition time that changes only with the status.

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{DeploymentCondition, ReplicaSetCondition};
use corten_api::k8s_openapi::api::batch::v1::{Job, JobCondition};
use corten_api::k8s_openapi::api::core::v1::{NamespaceCondition, Node, NodeCondition, Pod, PodCondition};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as StandardCondition, Time};
use jiff::Timestamp;
use serde_json::json;

use crate::runtime::Action;

/// The fields that all condition types share.
pub trait Condition: Clone {
    fn kind(&self) -> &str;
    fn status(&self) -> &str;
    fn reason(&self) -> &str;
    fn transition_time(&mut self) -> &mut Option<Time>;
}

macro_rules! condition {
    ($($kind:ty),*) => {$(
        impl Condition for $kind {
            fn kind(&self) -> &str { &self.type_ }
            fn status(&self) -> &str { &self.status }
            fn reason(&self) -> &str { self.reason.as_deref().unwrap_or("") }
            fn transition_time(&mut self) -> &mut Option<Time> { &mut self.last_transition_time }
        }
    )*};
}
condition!(DeploymentCondition, ReplicaSetCondition, JobCondition, NamespaceCondition, NodeCondition, PodCondition);

pub fn find<'a, C: Condition>(conditions: &'a Option<Vec<C>>, kind: &str) -> Option<&'a C> {
    conditions.iter().flatten().find(|condition| condition.kind() == kind)
}

/// Sets a condition, unless it has the same status and reason already. Keeps the transition time if the status is the
/// same.
pub fn set<C: Condition>(conditions: &mut Option<Vec<C>>, mut condition: C) {
    if let Some(current) = find(conditions, condition.kind()) {
        if current.status() == condition.status() && current.reason() == condition.reason() {
            return;
        }
        if current.status() == condition.status() {
            *condition.transition_time() = current.clone().transition_time().take();
        }
    }
    remove(conditions, condition.kind());
    conditions.get_or_insert_default().push(condition);
}

pub fn remove<C: Condition>(conditions: &mut Option<Vec<C>>, kind: &str) {
    if let Some(all) = conditions {
        all.retain(|condition| condition.kind() != kind);
        if all.is_empty() {
            *conditions = None;
        }
    }
}

/// Returns a count as Go encodes it: zero is omitted.
pub fn count(value: i32) -> Option<i32> {
    (value != 0).then_some(value)
}

/// A `metav1.Condition` without its times.
pub struct StatusCondition<'a> {
    pub kind: &'a str,
    pub status: &'a str,
    pub reason: &'a str,
    pub message: &'a str,
}

/// Sets a `metav1.Condition`; the transition time changes only with the status.
pub fn set_status(
    conditions: &mut Option<Vec<StandardCondition>>,
    new: &StatusCondition<'_>,
    observed_generation: Option<i64>,
    now: Timestamp,
) {
    let all = conditions.get_or_insert_default();
    let place = all.iter().position(|condition| condition.type_ == new.kind);
    let since = place.map(|place| &all[place]).filter(|old| old.status == new.status);
    let condition = StandardCondition {
        type_: new.kind.to_owned(),
        status: new.status.to_owned(),
        reason: new.reason.to_owned(),
        message: new.message.to_owned(),
        observed_generation,
        last_transition_time: since.map_or(Time(now), |old| old.last_transition_time.clone()),
    };
    match place {
        Some(place) => all[place] = condition,
        None => all.push(condition),
    }
}

/// Returns the condition that reports how the Job finished.
pub fn finished_condition(job: &Job) -> Option<&JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True")
}

/// Returns the status of the Ready condition; `Unknown` if the node has not reported one.
pub fn ready_status(node: &Node) -> &str {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready")
        .map_or("Unknown", |ready| &ready.status)
}

/// Patches one pod condition and, if given, the phase. Fails if another writer changed the pod since it was read.
pub fn mark_pod(pod: &Pod, new: PodCondition, phase: Option<&str>) -> Action {
    let mut updated = pod.clone();
    set(&mut updated.status.get_or_insert_default().conditions, new);
    let value = updated.to_value();
    let mut status = json!({"conditions": value["status"]["conditions"]});
    if let Some(phase) = phase {
        status["phase"] = json!(phase);
    }
    Action::patch_status(pod, json!({"metadata": {"resourceVersion": pod.metadata.resource_version}, "status": status}))
}

/// Returns the condition with the reason for which a pod is about to be deleted.
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
