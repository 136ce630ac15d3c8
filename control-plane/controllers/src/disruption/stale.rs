//! Clears the condition DisruptionTarget of a pod that was not deleted: the disruption did not happen.

use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{Pod, PodCondition};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_meta::Key;
use jiff::Timestamp;

use crate::runtime::{Controller, Plan, ResourceType, View, Watch, decode, mentions};
use crate::workload::condition::mark_pod;
use crate::workload::pods;

const TIMEOUT: Duration = Duration::from_secs(2 * 60);
const MARK: &str = "DisruptionTarget";

pub struct StaleDisruptionController;

impl Controller for StaleDisruptionController {
    type Observed = Pod;

    const NAME: &'static str = "disruption-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Pod>()]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Pod> {
        // Every change of a pod enqueues it, and hardly any has the condition: the others are not decoded.
        decode(&view.get(ResourceType::of::<Pod>(), key).filter(|pod| mentions(pod, MARK))?)
    }

    fn reconcile(&self, pod: &Pod, now: Timestamp) -> Plan {
        let marked = pods::condition(pod, MARK).filter(|mark| mark.status == "True");
        let Some(mark) = marked.filter(|_| pods::is_active(pod)) else { return Plan::nothing() };
        // The kubelet may take as long as it needs to terminate the pod.
        if mark.reason.as_deref() == Some("TerminationByKubelet") {
            return Plan::nothing();
        }
        let since = mark.last_transition_time.as_ref().map_or(now, |time| time.0);
        let passed: Duration = now.duration_since(since).try_into().unwrap_or(Duration::ZERO);
        match TIMEOUT.checked_sub(passed).filter(|left| !left.is_zero()) {
            Some(left) => Plan::later(left),
            None => {
                let cleared = PodCondition {
                    type_: MARK.to_owned(),
                    status: "False".to_owned(),
                    last_transition_time: Some(Time(now)),
                    ..PodCondition::default()
                };
                Plan::from(mark_pod(pod, cleared, None))
            }
        }
    }
}
