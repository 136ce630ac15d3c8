//! The kinds that keep a number of pods of one template: ReplicaSet, and ReplicationController before it.
//!
//! They differ only in their names and in their selector; this module has the differences.

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use corten_api::k8s_openapi::api::core::v1::{
    PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use corten_meta::Selector;

use crate::workload::owner::selector;

/// A kind with replicas of a pod template.
pub trait Replicated: Typed {
    /// The service account and component of its controller.
    const CONTROLLER: &'static str;
    fn replicas(&self) -> i32;
    /// Returns the selector; none for an object without a spec, which is ignored.
    fn selector(&self) -> Option<Selector>;
    fn template(&self) -> Option<&PodTemplateSpec>;
    fn min_ready_seconds(&self) -> i32;
    fn conditions(&self) -> Option<Vec<ReplicaSetCondition>>;
    /// Returns the object with this status; fields that the kind lacks are left out.
    fn with_status(&self, status: ReplicaSetStatus) -> Self;
}

impl Replicated for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn selector(&self) -> Option<Selector> {
        self.spec.as_ref().map(|spec| selector(&spec.selector))
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn conditions(&self) -> Option<Vec<ReplicaSetCondition>> {
        self.status.as_ref()?.conditions.clone()
    }

    fn with_status(&self, status: ReplicaSetStatus) -> ReplicaSet {
        ReplicaSet { status: Some(status), ..self.clone() }
    }
}

impl Replicated for ReplicationController {
    const CONTROLLER: &'static str = "replication-controller";

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    /// Returns a selector of equal labels; without labels it selects nothing.
    fn selector(&self) -> Option<Selector> {
        let labels = self.spec.as_ref()?.selector.clone().filter(|labels| !labels.is_empty());
        let select = |labels| selector(&LabelSelector { match_labels: Some(labels), match_expressions: None });
        Some(labels.map_or_else(Selector::nothing, select))
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn conditions(&self) -> Option<Vec<ReplicaSetCondition>> {
        let same = |condition: ReplicationControllerCondition| ReplicaSetCondition {
            type_: condition.type_,
            status: condition.status,
            reason: condition.reason,
            message: condition.message,
            last_transition_time: condition.last_transition_time,
        };
        Some(self.status.as_ref()?.conditions.clone()?.into_iter().map(same).collect())
    }

    fn with_status(&self, status: ReplicaSetStatus) -> ReplicationController {
        let same = |condition: ReplicaSetCondition| ReplicationControllerCondition {
            type_: condition.type_,
            status: condition.status,
            reason: condition.reason,
            message: condition.message,
            last_transition_time: condition.last_transition_time,
        };
        let status = ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            conditions: status.conditions.map(|all| all.into_iter().map(same).collect()),
        };
        ReplicationController { status: Some(status), ..self.clone() }
    }
}
