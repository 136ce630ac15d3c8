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

    fn name(&self) -> &'static str {
        "ttl-after-finished-controller"
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::model::{Model, NOW, converges, decide};
    use serde_json::{Value, json};

    fn job(ttl: Value, ended: Option<i64>) -> Model {
        let mut model = Model::default();
        let at =
            |seconds| corten_meta::time::rfc3339(NOW.checked_sub(jiff::SignedDuration::from_secs(seconds)).unwrap());
        let conditions: Vec<Value> = ended
            .iter()
            .map(|seconds| json!({"type": "Complete", "status": "True", "lastTransitionTime": at(*seconds)}))
            .collect();
        model.put(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "default", "name": "j"}, "spec": {"ttlSecondsAfterFinished": ttl}, "status": {"conditions": conditions}}));
        model
    }

    #[test]
    fn a_job_goes_when_its_time_is_over_and_not_before() {
        for (name, mut model, kept, wait) in [
            ("runs", job(json!(5), None), true, None),
            ("no time to live", job(Value::Null, Some(100)), true, None),
            ("just finished", job(json!(60), Some(20)), true, Some(Duration::from_secs(40))),
            ("long finished", job(json!(60), Some(60)), false, None),
            ("at once", job(json!(0), Some(0)), false, None),
        ] {
            let plan = decide(&TtlAfterFinishedController, &model, "default", "j");
            assert_eq!(plan.requeue_after, wait, "{name}");
            let as_seen = |action: &Action| matches!(action, Action::Delete { version: Some(_), .. });
            assert!(plan.actions.iter().all(as_seen), "{name}: who gave it more time meanwhile is heard");
            converges(&TtlAfterFinishedController, &mut model, "default", "j");
            assert_eq!(!model.names("Job").is_empty(), kept, "{name}");
        }
    }
}
