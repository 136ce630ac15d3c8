//! The status of a Deployment: counts, and the Available, Progressing and ReplicaFailure conditions.

use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{DeploymentCondition, DeploymentStatus, ReplicaSet};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;

use super::{Pass, available, bounds, replicas, revisions, size_of, total};
use crate::runtime::Action;
use crate::workload::condition::{self, count, find};

const PROGRESSING: &str = "Progressing";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const NEW_AVAILABLE: &str = "NewReplicaSetAvailable";
const PAUSED: &str = "DeploymentPaused";
/// The deadline that means none: the Deployment never exceeds it.
const NO_DEADLINE: i32 = i32::MAX;

fn new_condition(kind: &str, status: &str, reason: &str, message: String, now: Timestamp) -> DeploymentCondition {
    DeploymentCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

impl Pass<'_> {
    fn deadline(&self) -> Option<i32> {
        self.deployment.spec.as_ref()?.progress_deadline_seconds.filter(|seconds| *seconds != NO_DEADLINE)
    }

    fn status(&self) -> DeploymentStatus {
        self.deployment.status.clone().unwrap_or_default()
    }

    fn write(&mut self, status: DeploymentStatus) {
        if self.deployment.status.as_ref() != Some(&status) {
            let mut updated = self.deployment.clone();
            updated.status = Some(status);
            self.plan.push(Action::update_status(&updated));
        }
    }

    /// Sets the condition for a pause or a resume once; reports whether it planned a write.
    pub(super) fn mark_paused(&mut self) -> bool {
        let mut status = self.status();
        let reason = find(&status.conditions, PROGRESSING).and_then(|condition| condition.reason.clone());
        if self.deadline().is_none() || reason.as_deref() == Some(TIMED_OUT) {
            return false;
        }
        let (reason, message) = match (self.is_paused(), reason.as_deref() == Some(PAUSED)) {
            (true, false) => (PAUSED, "Deployment is paused"),
            (false, true) => ("DeploymentResumed", "Deployment is resumed"),
            _ => return false,
        };
        condition::set(
            &mut status.conditions,
            new_condition(PROGRESSING, "Unknown", reason, message.to_owned(), self.now),
        );
        self.write(status);
        true
    }

    /// Reports progress with the creation of the new ReplicaSet, whose revision becomes the Deployment's.
    pub(super) fn mark_created(&mut self, set: &ReplicaSet) {
        let mut updated = self.deployment.clone();
        if self.deadline().is_some() {
            let created = match &self.observed.failure {
                Some(failure) => {
                    new_condition(PROGRESSING, "False", "ReplicaSetCreateError", failure.message.clone(), self.now)
                }
                None => {
                    let message = format!("Created new replica set \"{}\"", set.name());
                    new_condition(PROGRESSING, "True", "NewReplicaSetCreated", message, self.now)
                }
            };
            condition::set(&mut updated.status.get_or_insert_default().conditions, created);
        }
        // A failed creation ends the plan. So the status goes first, without the revision that does not exist yet.
        let refused = self.observed.failure.is_some();
        if !refused {
            revisions::take_revision(&mut updated, set);
        }
        let at = if refused { 0 } else { self.plan.actions.len() };
        if updated != self.deployment {
            self.plan.actions.insert(at, Action::update_status(&updated));
        }
    }

    fn counted(&self) -> DeploymentStatus {
        let all: Vec<&ReplicaSet> = self.all().collect();
        let sum = |field: fn(&ReplicaSet) -> i32| total(all.iter().map(|set| field(set)));
        let actual = |set: &ReplicaSet| set.status.as_ref().map_or(0, |status| status.replicas);
        let ready = |set: &ReplicaSet| set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
        let terminating =
            |set: &ReplicaSet| set.status.as_ref().and_then(|status| status.terminating_replicas).unwrap_or(0);
        let now_available = sum(available);
        let mut status = DeploymentStatus {
            observed_generation: self.deployment.metadata.generation,
            replicas: count(sum(actual)),
            updated_replicas: count(self.new.as_ref().map_or(0, actual)),
            ready_replicas: count(sum(ready)),
            available_replicas: count(now_available),
            unavailable_replicas: count((sum(size_of) - now_available).max(0)),
            terminating_replicas: Some(sum(terminating)),
            collision_count: self.status().collision_count,
            conditions: self.status().conditions,
        };
        let enough = now_available >= self.replicas() - bounds(&self.deployment).1;
        let condition = match enough {
            true => ("True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
            false => ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability."),
        };
        let (state, reason, message) = condition;
        condition::set(&mut status.conditions, new_condition("Available", state, reason, message.to_owned(), self.now));
        status
    }

    /// Updates counts and availability only, for a paused, scaled or deleted Deployment.
    pub(super) fn sync_status(&mut self) {
        let status = self.counted();
        self.write(status);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.completes(&self.status())
    }

    fn completes(&self, status: &DeploymentStatus) -> bool {
        let wanted = count(replicas(&self.deployment));
        status.updated_replicas == wanted
            && status.replicas == wanted
            && status.available_replicas == wanted
            && status.observed_generation >= self.deployment.metadata.generation
    }

    /// Updates counts and progress; reconciles again when the progress deadline would pass.
    pub(super) fn sync_rollout_status(&mut self) {
        let mut status = self.counted();
        let before = self.status();
        let current = find(&before.conditions, PROGRESSING).cloned();
        let reason = current.as_ref().and_then(|condition| condition.reason.clone()).unwrap_or_default();
        let done = status.replicas == status.updated_replicas && reason == NEW_AVAILABLE;
        match self.deadline() {
            None => condition::remove(&mut status.conditions, PROGRESSING),
            Some(_) if done => {}
            Some(deadline) => self.check_progress(&mut status, &before, current, deadline),
        }
        self.copy_replica_failure(&mut status);
        let settled = self.deployment.status.as_ref() == Some(&status);
        if let (true, Some(deadline)) = (settled, self.deadline()) {
            self.watch_deadline(&status, deadline);
        }
        self.write(status);
    }

    fn check_progress(
        &self,
        status: &mut DeploymentStatus,
        before: &DeploymentStatus,
        current: Option<DeploymentCondition>,
        deadline: i32,
    ) {
        let subject = match &self.new {
            Some(set) => format!("ReplicaSet \"{}\"", set.name()),
            None => format!("Deployment \"{}\"", self.deployment.name()),
        };
        let condition = |state, reason, what: &str| {
            new_condition(PROGRESSING, state, reason, format!("{subject} {what}"), self.now)
        };
        if self.completes(status) {
            condition::set(&mut status.conditions, condition("True", NEW_AVAILABLE, "has successfully progressed."));
        } else if progressed(before, status) {
            let mut progressing = condition("True", "ReplicaSetUpdated", "is progressing.");
            if let Some(current) = current.filter(|current| current.status == "True") {
                progressing.last_transition_time = current.last_transition_time;
            }
            // The condition is replaced even if the reason is the same: the deadline counts from its update time.
            condition::remove(&mut status.conditions, PROGRESSING);
            condition::set(&mut status.conditions, progressing);
        } else if current.is_some_and(|current| timed_out(&current, deadline, self.now)) {
            condition::set(&mut status.conditions, condition("False", TIMED_OUT, "has timed out progressing."));
        }
    }

    fn copy_replica_failure(&self, status: &mut DeploymentStatus) {
        let failure_of = |set: &ReplicaSet| find(&set.status.as_ref()?.conditions, "ReplicaFailure").cloned();
        let failure = self.new.as_ref().and_then(failure_of).or_else(|| self.old.iter().find_map(failure_of));
        let Some(failure) = failure else { return condition::remove(&mut status.conditions, "ReplicaFailure") };
        let copied = DeploymentCondition {
            type_: failure.type_,
            status: failure.status,
            reason: failure.reason,
            message: failure.message,
            last_transition_time: failure.last_transition_time.clone(),
            last_update_time: failure.last_transition_time,
        };
        condition::set(&mut status.conditions, copied);
    }

    fn watch_deadline(&mut self, status: &DeploymentStatus, deadline: i32) {
        let Some(current) = find(&status.conditions, PROGRESSING) else { return };
        if self.completes(status) || current.reason.as_deref() == Some(TIMED_OUT) {
            return;
        }
        let Some(since) = &current.last_update_time else { return };
        let passed: Duration = self.now.duration_since(since.0).try_into().unwrap_or(Duration::ZERO);
        let left = Duration::from_secs(deadline.unsigned_abs().into()).saturating_sub(passed);
        self.plan.requeue(left + Duration::from_secs(1));
    }
}

fn progressed(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let old = |status: &DeploymentStatus| status.replicas.unwrap_or(0) - status.updated_replicas.unwrap_or(0);
    after.updated_replicas > before.updated_replicas
        || old(after) < old(before)
        || after.ready_replicas > before.ready_replicas
        || after.available_replicas > before.available_replicas
}

fn timed_out(progressing: &DeploymentCondition, deadline: i32, now: Timestamp) -> bool {
    match progressing.reason.as_deref() {
        Some(NEW_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => progressing
            .last_update_time
            .as_ref()
            .is_some_and(|since| now.duration_since(since.0).as_secs() > deadline.into()),
    }
}
