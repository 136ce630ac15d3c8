//! Node expansion of a volume: after the volume has grown, this node grows its file system, and the claim's status
//! reports the result.
//!
//! The claim's `allocatedResourceStatuses` names the component that acts next. A size that can never be reached is
//! reported as `NodeResizeInfeasible` and not tried again; the resizer then chooses another.

use corten_api::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition};
use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_client::Patch;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Context;
use crate::error::{Error, Result};
use crate::events::NORMAL;
use crate::pod::resources;
use crate::pod::spec;

/// The interval at which claims are checked for a new size.
pub const CHECK_INTERVAL: SignedDuration = SignedDuration::from_secs(60);

const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
const RESIZE_ERROR: &str = "NodeResizeError";
/// The conditions of a claim that is being resized.
const CONDITIONS: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", RESIZE_ERROR];

/// The volume to expand.
pub struct Expansion<'a> {
    claim: &'a PersistentVolumeClaim,
    volume: &'a PersistentVolume,
    size: Quantity,
}

/// The reason why an expansion failed.
#[derive(Debug)]
pub struct Refused {
    pub message: String,
    pub outcome: Outcome,
}

/// The outcome of an attempt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The expansion may still be running.
    Uncertain,
    /// The expansion ended; another attempt may succeed.
    Final,
    /// The expansion ended, and no attempt can succeed.
    Infeasible,
    /// The expansion is not possible while the volume is in use; the pod may use the volume.
    NotNow,
}

impl<'a> Expansion<'a> {
    /// Returns the volume to expand, if this node is the next to act.
    pub fn due(claim: &'a PersistentVolumeClaim, volume: &'a PersistentVolume) -> Option<Expansion<'a>> {
        let size = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?.clone();
        let due = match status_of(claim) {
            Some(status) => matches!(status, PENDING | IN_PROGRESS),
            // Older resizers write no status, but leave the claim smaller than its volume.
            None => {
                let has = claim.status.as_ref()?.capacity.as_ref()?.get("storage")?;
                resources::value(has) < resources::value(&size)
            }
        };
        due.then_some(Expansion { claim, volume, size })
    }

    pub fn bytes(&self) -> i64 {
        resources::value(&self.size)
    }

    /// Reports whether the claim now requests another size than the one of this expansion.
    pub fn is_outdated(&self) -> bool {
        let requests = self.claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
        let requested = requests.and_then(|requests| requests.get("storage"));
        requested.is_some_and(|requested| resources::value(requested) != self.bytes())
    }

    pub async fn begin(&self, context: &Context<'_>) -> Result<()> {
        if status_of(self.claim) == Some(IN_PROGRESS) {
            return Ok(());
        }
        self.patch_status(context, json!({"allocatedResourceStatuses": {"storage": IN_PROGRESS}})).await
    }

    /// Records in the claim's status that the expansion succeeded.
    pub async fn succeed(&self, context: &Context<'_>) -> Result<()> {
        self.patch_status(context, finished(self.claim, &self.size)).await?;
        let message = format!("MountVolume.NodeExpandVolume succeeded for volume {:?} ", self.name());
        context.events.pod(context.pod, NORMAL, "FileSystemResizeSuccessful", &message);
        Ok(())
    }

    /// Records a failure in the claim's status. `failed_before` says that an earlier attempt at this volume ended.
    pub async fn fail(&self, context: &Context<'_>, refused: Refused, failed_before: bool) -> Result<()> {
        let infeasible = refused.outcome == Outcome::Infeasible || (failed_before && self.is_outdated());
        if refused.outcome != Outcome::Uncertain {
            self.patch_status(context, failure(self.claim, &refused.message, infeasible, context.now)).await?;
        }
        if refused.outcome == Outcome::NotNow {
            return Ok(());
        }
        let name = self.name();
        Err(Error::pod(format!("MountVolume.NodeExpandVolume failed for volume {name:?} : {}", refused.message)))
    }

    fn name(&self) -> &str {
        self.volume.metadata.name.as_deref().unwrap_or_default()
    }

    async fn patch_status(&self, context: &Context<'_>, status: Value) -> Result<()> {
        let name = self.claim.metadata.name.as_deref().unwrap_or_default();
        let patch = Patch::Merge(json!({"status": status}));
        let namespace = spec::namespace(context.pod);
        context.client.patch::<PersistentVolumeClaim>(namespace, name, &patch, Some("status")).await?;
        Ok(())
    }
}

fn status_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    let statuses = claim.status.as_ref()?.allocated_resource_statuses.as_ref()?;
    statuses.get("storage").map(String::as_str).filter(|status| !status.is_empty())
}

/// Returns the claim's status after the volume has its new size.
fn finished(claim: &PersistentVolumeClaim, size: &Quantity) -> Value {
    let conditions = conditions(claim, |type_| !CONDITIONS.contains(&type_));
    json!({"capacity": {"storage": size.0}, "conditions": conditions, "allocatedResourceStatuses": {"storage": null}})
}

/// Returns the claim's status after a failed attempt.
fn failure(claim: &PersistentVolumeClaim, message: &str, infeasible: bool, now: Timestamp) -> Value {
    let mut conditions = conditions(claim, |type_| type_ != RESIZE_ERROR);
    conditions.push(json!(PersistentVolumeClaimCondition {
        type_: RESIZE_ERROR.to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(Time(now)),
        message: Some(format!("failed to expand pvc with {message}")),
        ..PersistentVolumeClaimCondition::default()
    }));
    let status = if infeasible { INFEASIBLE } else { IN_PROGRESS };
    json!({"conditions": conditions, "allocatedResourceStatuses": {"storage": status}})
}

fn conditions(claim: &PersistentVolumeClaim, keep: impl Fn(&str) -> bool) -> Vec<Value> {
    let present = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    present.filter(|condition| keep(&condition.type_)).map(|condition| json!(condition)).collect()
}

#[cfg(test)]
mod tests {
    use corten_api::Typed;

    use super::*;

    fn claim(status: Option<&str>) -> PersistentVolumeClaim {
        let statuses = status.map(|status| json!({"storage": status}));
        PersistentVolumeClaim::from_value(json!({
            "spec": {"resources": {"requests": {"storage": "2Gi"}}},
            "status": {"capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": statuses, "conditions": [
                {"type": "FileSystemResizePending", "status": "True"}, {"type": "Mine", "status": "True"}]},
        }))
        .unwrap()
    }

    fn volume(size: &str) -> PersistentVolume {
        PersistentVolume::from_value(json!({"spec": {"capacity": {"storage": size}}})).unwrap()
    }

    fn types(status: &Value) -> Vec<&str> {
        status["conditions"].as_array().unwrap().iter().filter_map(|it| it["type"].as_str()).collect()
    }

    #[test]
    fn the_status_names_the_next_component_to_act() {
        for (status, size, due) in [
            (Some(PENDING), "2Gi", true),
            (Some(IN_PROGRESS), "2Gi", true),
            (Some(INFEASIBLE), "2Gi", false),
            (Some("ControllerResizeInProgress"), "2Gi", false),
            (None, "2Gi", true),
            (None, "1Gi", false),
        ] {
            assert_eq!(Expansion::due(&claim(status), &volume(size)).is_some(), due, "{status:?} {size}");
        }
        assert!(Expansion::due(&PersistentVolumeClaim::default(), &volume("1Gi")).is_none());
    }

    #[test]
    fn an_expansion_to_an_old_size_is_outdated() {
        let claim = claim(Some(PENDING));
        for (size, outdated) in [("2Gi", false), ("2048Mi", false), ("3Gi", true)] {
            assert_eq!(Expansion::due(&claim, &volume(size)).unwrap().is_outdated(), outdated, "{size}");
        }
    }

    #[test]
    fn an_expanded_claim_has_no_resize_condition() {
        let status = finished(&claim(Some(IN_PROGRESS)), &Quantity("2Gi".into()));
        assert_eq!(status["capacity"]["storage"], "2Gi");
        assert_eq!(status["allocatedResourceStatuses"]["storage"], Value::Null);
        assert_eq!(types(&status), ["Mine"]);
    }

    #[test]
    fn a_failure_is_one_condition_and_the_others_stay() {
        let mut failed = claim(Some(IN_PROGRESS));
        for infeasible in [false, true] {
            let status = failure(&failed, "no", infeasible, Timestamp::UNIX_EPOCH);
            assert_eq!(types(&status), ["FileSystemResizePending", "Mine", RESIZE_ERROR]);
            assert_eq!(status["conditions"][2]["message"], "failed to expand pvc with no");
            let expected = if infeasible { INFEASIBLE } else { IN_PROGRESS };
            assert_eq!(status["allocatedResourceStatuses"]["storage"], expected);
            let conditions: Vec<PersistentVolumeClaimCondition> =
                serde_json::from_value(status["conditions"].clone()).unwrap();
            failed.status.as_mut().unwrap().conditions = Some(conditions);
        }
    }
}
