//! Expansion: a claim that requests more than it has is expanded by the driver, and then by the node if the file system
//! must grow.
//!
//! The size under way is in `status.allocatedResources`: a smaller request does not undo it.

use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;
use corten_meta::time::{now, rfc3339};
use corten_meta::{Key, Quantity, Value};
use corten_plugins::csi;
use corten_plugins::csi::controller_service_capability::rpc::Type as Rpc;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;

use crate::driver::CallError;
use crate::secrets;
use crate::topology;
use crate::worker::{Loop, Next, Watch};
use crate::world::{World, is_deleted};

pub struct Resizer {
    world: Arc<World>,
}

/// The decision about a claim.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Keep,
    /// The driver must expand the volume to a number of bytes.
    Expand(i64),
}

fn bytes(quantity: Option<&Written>) -> i64 {
    quantity.and_then(|quantity| Quantity::parse(&quantity.0).ok()).map_or(0, |quantity| quantity.value())
}

fn text(bytes: i64) -> String {
    Quantity::from_bytes(bytes).to_string()
}

/// Decides about a claim that is bound to a volume of the driver.
fn decide(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Decision {
    let status = claim.status.clone().unwrap_or_default();
    let spec = claim.spec.clone().unwrap_or_default();
    let requests = spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
    let requested = bytes(requests.get("storage"));
    let has = bytes(status.capacity.as_ref().and_then(|capacity| capacity.get("storage")));
    let size = bytes(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get("storage")));
    let allocated = bytes(status.allocated_resources.as_ref().and_then(|all| all.get("storage")));
    let state = status.allocated_resource_statuses.as_ref().and_then(|all| all.get("storage")).map(String::as_str);
    if status.phase.as_deref() != Some("Bound") || is_deleted(claim) || requested <= has {
        return Decision::Keep;
    }
    // The node's turn, unless more is requested than it is growing to.
    if size >= requested && matches!(state, Some("NodeResizePending" | "NodeResizeInProgress")) {
        return Decision::Keep;
    }
    // A size that turned out infeasible may be lowered; one that is under way is finished first.
    let is_under_way = state == Some("ControllerResizeInProgress") && allocated > requested;
    Decision::Expand(if is_under_way { allocated } else { requested })
}

impl Loop for Resizer {
    fn name(&self) -> &'static str {
        "resizer"
    }

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own(self.world.cache::<PersistentVolumeClaim>()),
            Watch::read(self.world.cache::<PersistentVolume>()),
            Watch::read(self.world.cache::<Node>()),
        ]
    }

    fn work<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Next> {
        self.sync(key).boxed()
    }
}

impl Resizer {
    pub fn new(world: Arc<World>) -> Resizer {
        Resizer { world }
    }

    async fn sync(&self, key: &Key) -> Next {
        let Some(claim) = self.world.get::<PersistentVolumeClaim>(&key.namespace, &key.name) else {
            return Next::Done;
        };
        let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let Some(volume) = self.world.get::<PersistentVolume>("", &name) else { return Next::Done };
        let driver = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).map(|csi| csi.driver.as_str());
        if driver != Some(&self.world.driver.name) || !topology::is_ours(&self.world, &volume) {
            return Next::Done;
        }
        match decide(&claim, &volume) {
            Decision::Keep => Next::Done,
            Decision::Expand(wanted) => match self.expand(&claim, &volume, wanted).await {
                Ok(next) => next,
                Err(error) => Next::from(Err(error)),
            },
        }
    }

    async fn expand(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        wanted: i64,
    ) -> Result<Next, corten_client::Error> {
        let name = volume.name();
        let message = format!("External resizer is resizing volume {name}");
        self.world.normal(claim, "Resizing", message);
        self.world.patch_status(claim, progress(claim, wanted, "ControllerResizeInProgress")).await?;
        let expanded = match self.call(volume, wanted).await {
            Ok(expanded) => expanded,
            Err(error) => {
                let driver = &self.world.driver.name;
                let message = format!("resize volume \"{name}\" by resizer \"{driver}\" failed: {error}");
                self.world.warning(claim, "VolumeResizeFailed", message.clone());
                if error.is_infeasible() {
                    let mut status = progress(claim, wanted, "ControllerResizeInfeasible");
                    status["conditions"] = conditions(claim, &[("ControllerResizeError", &message)], &["Resizing"]);
                    self.world.patch_status(claim, status).await?;
                }
                return Ok(Next::Retry);
            }
        };
        let size = expanded.capacity_bytes.max(wanted);
        self.world.patch(volume, json!({"spec": {"capacity": {"storage": text(size)}}})).await?;
        if expanded.node_expansion_required {
            let mut status = progress(claim, wanted, "NodeResizePending");
            let message = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
            let gone = ["Resizing", "ControllerResizeError"];
            status["conditions"] = conditions(claim, &[("FileSystemResizePending", message)], &gone);
            self.world.patch_status(claim, status).await?;
            let message = "Require file system resize of volume on node";
            self.world.normal(claim, "FileSystemResizeRequired", message);
            return Ok(Next::Done);
        }
        let gone = ["Resizing", "FileSystemResizePending", "ControllerResizeError"];
        let status = json!({
            "capacity": {"storage": text(size)},
            "allocatedResources": {"storage": text(size)},
            "allocatedResourceStatuses": null,
            "conditions": conditions(claim, &[], &gone),
        });
        self.world.patch_status(claim, status).await?;
        self.world.normal(claim, "VolumeResizeSuccessful", "Resize volume succeeded");
        Ok(Next::Done)
    }

    async fn call(
        &self,
        volume: &PersistentVolume,
        wanted: i64,
    ) -> Result<csi::ControllerExpandVolumeResponse, CallError> {
        if !self.world.driver.has(Rpc::ExpandVolume) {
            // The node does all of it.
            return Ok(csi::ControllerExpandVolumeResponse { capacity_bytes: wanted, node_expansion_required: true });
        }
        let source = volume.spec.as_ref().and_then(|spec| spec.csi.clone()).unwrap_or_default();
        let secret = secrets::of_field(source.controller_expand_secret_ref.as_ref());
        let secrets = secrets::read(&self.world, secret.as_ref()).await;
        let secrets = secrets.map_err(|error| CallError::new(tonic::Code::Unavailable, &error))?;
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: source.volume_handle,
            capacity_range: Some(csi::CapacityRange { required_bytes: wanted, limit_bytes: 0 }),
            secrets,
            volume_capability: None,
        };
        self.world.driver.expand_volume(request).await
    }
}

/// Returns the status of an expansion under way.
fn progress(claim: &PersistentVolumeClaim, wanted: i64, state: &str) -> Value {
    json!({
        "allocatedResources": {"storage": text(wanted)},
        "allocatedResourceStatuses": {"storage": state},
        "conditions": conditions(claim, &[("Resizing", "")], &[]),
    })
}

/// Returns the conditions of a claim with some set and some removed.
pub fn conditions(claim: &PersistentVolumeClaim, set: &[(&str, &str)], removed: &[&str]) -> Value {
    let mut status = claim.to_value()["status"].take();
    let all = status["conditions"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let is_set = |kind: &Value| set.iter().any(|(name, _)| kind == name);
    let is_removed = |kind: &Value| removed.iter().any(|name| kind == name);
    let mut kept: Vec<Value> =
        all.iter().filter(|one| !is_set(&one["type"]) && !is_removed(&one["type"])).cloned().collect();
    for (name, message) in set {
        let before = all.iter().find(|one| one["type"] == *name);
        let since = before.map_or_else(|| json!(rfc3339(now())), |one| one["lastTransitionTime"].clone());
        kept.push(json!({"type": name, "status": "True", "lastTransitionTime": since, "message": message}));
    }
    Value::Array(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(claim: &str, capacity: &str) -> Decision {
        let volume = format!("pv v capacity.storage={capacity}");
        decide(
            &testkit_fixture::typed(&format!("pvc data phase=Bound volume=v {claim}")),
            &testkit_fixture::typed(&volume),
        )
    }

    #[test]
    fn a_claim_that_requests_more_is_expanded_once() {
        assert_eq!(shown("size=1Gi status.capacity.storage=1Gi", "1Gi"), Decision::Keep);
        assert_eq!(shown("size=2Gi status.capacity.storage=1Gi", "1Gi"), Decision::Expand(2 << 30));
        let pending = "status.capacity.storage=1Gi status.allocatedResourceStatuses={storage: NodeResizePending}";
        assert_eq!(shown(&format!("size=2Gi {pending}"), "2Gi"), Decision::Keep);
        assert_eq!(shown(&format!("size=3Gi {pending}"), "2Gi"), Decision::Expand(3 << 30));
    }

    #[test]
    fn a_size_under_way_is_finished_and_an_infeasible_one_is_given_up() {
        let of = |state: &str| {
            format!(
                "size=2Gi status.capacity.storage=1Gi status.allocatedResources.storage=3Gi \
                 status.allocatedResourceStatuses={{storage: {state}}}"
            )
        };
        assert_eq!(shown(&of("ControllerResizeInProgress"), "1Gi"), Decision::Expand(3 << 30));
        assert_eq!(shown(&of("ControllerResizeInfeasible"), "1Gi"), Decision::Expand(2 << 30));
    }

    #[test]
    fn conditions_of_others_stay() {
        let claim = testkit_fixture::typed("pvc data status.conditions=[{type: Resizing}, {type: Other}]");
        let kinds = |value: Value| -> Vec<String> {
            value.as_array().unwrap().iter().map(|one| one["type"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(
            kinds(conditions(&claim, &[("FileSystemResizePending", "m")], &["Resizing"])),
            ["Other", "FileSystemResizePending"]
        );
    }
}
