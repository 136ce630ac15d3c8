//! Conditions as every status carries them: set by type, with a transition time that moves only when the status does.

use corten_api::k8s_openapi::api::apps::v1::{DeploymentCondition, ReplicaSetCondition};
use corten_api::k8s_openapi::api::batch::v1::JobCondition;
use corten_api::k8s_openapi::api::core::v1::{NamespaceCondition, NodeCondition, PodCondition};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

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

/// Sets a condition unless one with the same status and reason is there; keeps the transition time of a same status.
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

/// A count as Go writes it: zero is left out.
pub fn count(value: i32) -> Option<i32> {
    (value != 0).then_some(value)
}
