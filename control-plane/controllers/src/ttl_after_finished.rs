//! Deletes finished Jobs after their `ttlSecondsAfterFinished`, with their dependents.
//!
//! The resourceVersion is a precondition: if a user has just extended the TTL, a stale cache must not delete the Job.

use std::time::Duration;

use corten_api::k8s_openapi::api::batch::v1::Job;
use corten_client::Propagation;
use corten_meta::Key;
use jiff::Timestamp;

use crate::metrics;
use crate::runtime::{Action, Controller, Plan, View, Watch};
use crate::workload::condition::finished_condition;

pub struct TtlAfterFinishedController;

impl Controller for TtlAfterFinishedController {
    type Observed = Job;

    const NAME: &'static str = "ttl-after-finished-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Job>()]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Job> {
        view.typed(key).filter(|job: &Job| job.metadata.deletion_timestamp.is_none())
    }

    fn reconcile(&self, job: &Job, now: Timestamp) -> Plan {
        let ttl = job.spec.as_ref().and_then(|spec| spec.ttl_seconds_after_finished);
        let finished = finished_condition(job).and_then(|condition| condition.last_transition_time.as_ref());
        let (Some(ttl), Some(finished)) = (ttl, finished) else { return Plan::nothing() };
        let passed: Duration = now.duration_since(finished.0).try_into().unwrap_or(Duration::ZERO);
        let left = Duration::from_secs(u64::try_from(ttl).unwrap_or(0)).saturating_sub(passed);
        match left.is_zero() {
            true => {
                let mut plan = Plan::from(Action::delete_unchanged(job, Some(Propagation::Foreground)));
                let late = passed.saturating_sub(Duration::from_secs(u64::try_from(ttl).unwrap_or(0)));
                plan.count(&metrics::TTL_DELETION, [], late.as_secs_f64());
                plan
            }
            false => Plan::later(left),
        }
    }
}
