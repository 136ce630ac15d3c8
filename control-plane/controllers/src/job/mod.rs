//! The Job controller: runs pods until enough of them succeed, or the Job fails.
//!
//! The steps: [`account`] counts terminated pods, each exactly once; [`finish`] decides whether the Job is finished;
//! [`manage`] creates and deletes pods. Invariant: a terminated pod is in the status before its finalizer is removed,
//! so no crash counts it twice or never.

mod account;
mod finish;
pub(crate) mod indexes;
mod manage;
mod orphans;
mod per_index;

use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_client::Change;
use corten_meta::{Key, Object, Selector};
use jiff::Timestamp;
use serde_json::json;

use crate::metrics;
use crate::runtime::{Action, Controller, Count, Label, Plan, PodRow, RESULT, ResourceType, View, Watch};
use crate::workload::condition::{self, count, finished_condition};
use crate::workload::owner::{self, claim, matching_orphan, new_orphan, owners_of};
use crate::workload::pods;

pub use orphans::UncountedPods;

pub const TRACKING: &str = "batch.kubernetes.io/job-tracking";
const SUSPENDED: &str = "Suspended";

pub struct JobController;

pub struct Observed {
    job: Job,
    candidates: Vec<PodRow>,
}

impl Controller for JobController {
    type Observed = Observed;

    const NAME: &'static str = "job-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Job>(), Watch::mapped::<Pod>(of_pod)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let job: Job = view.typed(key)?;
        let uid = job.metadata.uid.clone()?;
        let candidates = match manager_of(&job) {
            Some(_) => Vec::new(),
            None => view.claimable_rows(&key.namespace, &uid, &selector(&job)),
        };
        Some(Observed { job, candidates })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let job = &observed.job;
        if let Some(manager) = manager_of(job) {
            let counts = vec![Count::begin(&metrics::FOREIGN_JOBS, [manager.into()])];
            return Plan { counts, ..Plan::nothing() };
        }
        let claimed = claim(job, &selector(job), &observed.candidates);
        if is_finished(job) || job.metadata.deletion_timestamp.is_some() {
            return release_all(&claimed.owned);
        }
        let mut pass = Pass {
            job,
            spec: job.spec.clone().unwrap_or_default(),
            pods: claimed.owned,
            status: job.status.clone().unwrap_or_default(),
            now,
            plan: Plan::from(claimed.actions),
        };
        pass.run();
        pass.plan
    }
}

/// Returns the external manager of the Job, if it has one.
fn manager_of(job: &Job) -> Option<&str> {
    job.spec.as_ref()?.managed_by.as_deref().filter(|by| *by != "kubernetes.io/job-controller")
}

fn of_pod(view: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys = owners_of(change, Job::KIND);
    if let Some(pod) = new_orphan(change) {
        keys.extend(matching_orphan::<Job>(view, pod, |job| Some(selector(job))));
    }
    keys
}

/// Returns the selector. A Job without one owns only the pods that refer to it.
fn selector(job: &Job) -> Selector {
    let spec = job.spec.as_ref();
    match spec.and_then(|spec| spec.selector.as_ref()) {
        Some(wanted) => owner::selector(wanted),
        None => {
            let uid = job.metadata.uid.clone().unwrap_or_default();
            Selector::from_set(&[("batch.kubernetes.io/controller-uid".to_owned(), uid)].into())
        }
    }
}

pub fn is_finished(job: &Job) -> bool {
    finished_condition(job).is_some()
}

/// Removes the finalizer of all pods: the Job is finished, and nothing else would remove it.
fn release_all(pods: &[PodRow]) -> Plan {
    Plan::from(pods.iter().filter(|pod| is_tracked(&pod.object)).map(|pod| release(&pod.object)).collect::<Vec<_>>())
}

fn is_tracked(pod: &Object) -> bool {
    pod.header.finalizers.iter().any(|finalizer| finalizer == TRACKING)
}

fn release(pod: &Object) -> Action {
    let kept: Vec<&String> = pod.header.finalizers.iter().filter(|finalizer| *finalizer != TRACKING).collect();
    let (uid, version) = (&pod.header.uid, pod.revision.to_string());
    Action::Patch {
        resource: ResourceType::of::<Pod>(),
        key: pod.key(),
        patch: json!({"metadata": {"uid": uid, "resourceVersion": version, "finalizers": kept}}),
        subresource: None,
    }
}

/// One reconcile of a Job; `status` is the status to write.
struct Pass<'a> {
    job: &'a Job,
    spec: JobSpec,
    pods: Vec<PodRow>,
    status: JobStatus,
    now: Timestamp,
    plan: Plan,
}

impl Pass<'_> {
    fn run(&mut self) {
        self.begin();
        self.count_failed_indexes();
        self.account();
        let ending = self.outcome();
        let suspended = self.spec.suspend.unwrap_or(false);
        let deletions = match (&ending, suspended) {
            (Some(_), _) | (None, true) => self.delete_active(usize::MAX),
            (None, false) => Vec::new(),
        };
        if ending.is_none() {
            self.mark_suspended(suspended);
        }
        let creations = if ending.is_none() && !suspended { self.manage() } else { Vec::new() };
        self.count_active();
        if let Some(ending) = ending {
            self.end(ending);
        }
        // The counts are written before any action that would lose them.
        self.write_status();
        self.count_sync(!deletions.is_empty(), creations.len());
        self.plan.actions.extend(deletions);
        self.plan.actions.extend(creations);
    }

    fn mode(&self) -> Label {
        if self.is_indexed() { "Indexed".into() } else { "NonIndexed".into() }
    }

    fn count_sync(&mut self, deletes: bool, created: usize) {
        let action = match (deletes, created) {
            (true, _) => "pods_deleted",
            (false, 0) => "tracking",
            (false, _) => "pods_created",
        };
        let labels = [self.mode(), RESULT, action.into()];
        self.plan.count(&metrics::JOB_SYNCS, labels.clone(), 1.0);
        self.plan.counts.push(Count::took(&metrics::JOB_SYNC_SECONDS, labels));
        if created > 0 {
            let replaces = self.pods.iter().any(|pod| !pods::is_active(pod));
            let reason = match self.spec.pod_replacement_policy.as_deref() {
                _ if !replaces => "new",
                Some("Failed") => "recreate_failed",
                _ => "recreate_terminating_or_failed",
            };
            self.plan.count(&metrics::JOB_PODS_CREATED, [reason.into(), "succeeded".into()], created as f64);
        }
    }

    fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    fn active(&self) -> impl Iterator<Item = &PodRow> {
        self.pods.iter().filter(pods::is_active)
    }

    fn terminating(&self) -> usize {
        self.pods.iter().filter(|pod| pods::is_terminating(pod) && !pods::is_terminal(pod)).count()
    }

    /// Sets the start time at the first reconcile, and resets it while the Job is suspended.
    fn begin(&mut self) {
        if self.status.start_time.is_none() && !self.spec.suspend.unwrap_or(false) {
            self.status.start_time = Some(Time(self.now));
        }
        if let (Some(started), Some(deadline)) = (&self.status.start_time, self.spec.active_deadline_seconds) {
            let passed = self.now.duration_since(started.0).as_secs();
            if passed < deadline {
                self.plan.requeue(Duration::from_secs(deadline.saturating_sub(passed).unsigned_abs()));
            }
        }
    }

    fn mark_suspended(&mut self, suspended: bool) {
        let was =
            condition::find(&self.status.conditions, SUSPENDED).is_some_and(|condition| condition.status == "True");
        let (status, reason, message) = match (was, suspended) {
            (false, true) => ("True", "JobSuspended", "Job suspended"),
            (true, false) => ("False", "JobResumed", "Job resumed"),
            _ => return,
        };
        self.set_condition(SUSPENDED, status, reason, message);
        self.status.start_time = (!suspended).then_some(Time(self.now));
        self.plan.push(Action::normal(self.job, if suspended { "Suspended" } else { "Resumed" }, message));
    }

    fn set_condition(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let condition = JobCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_probe_time: Some(Time(self.now)),
            last_transition_time: Some(Time(self.now)),
        };
        condition::set(&mut self.status.conditions, condition);
    }

    fn count_active(&mut self) {
        let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        self.status.active = count(number(self.active().count()));
        self.status.ready = Some(number(self.active().filter(pods::is_ready).count()));
        self.status.terminating = Some(number(self.terminating()));
    }

    fn write_status(&mut self) {
        if self.job.status.as_ref() != Some(&self.status) {
            let mut job = self.job.clone();
            job.status = Some(self.status.clone());
            self.plan.push(Action::update_status(&job));
        }
    }
}
