//! Modification: a claim that names another VolumeAttributesClass is changed by the driver's ControllerModifyVolume.

use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use corten_api::k8s_openapi::api::storage::v1::VolumeAttributesClass;
use corten_client::Change;
use corten_meta::Key;
use corten_plugins::csi;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;
use tonic::Code;

use crate::driver::CallError;
use crate::resize::conditions;
use crate::secrets;
use crate::topology;
use crate::worker::{Loop, Next, Watch};
use crate::world::{World, is_deleted};

pub const MODIFY_SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
pub const MODIFY_SECRET_NAMESPACE: &str = "volume.kubernetes.io/controller-modify-secret-namespace";

pub struct Modifier {
    world: Arc<World>,
}

/// Returns the class that a bound claim must be changed to. A change under way is finished before another.
fn target(claim: &PersistentVolumeClaim) -> Option<String> {
    let status = claim.status.as_ref()?;
    let wanted = claim.spec.as_ref()?.volume_attributes_class_name.clone().filter(|name| !name.is_empty());
    let current = status.current_volume_attributes_class_name.clone();
    let under_way = status.modify_volume_status.as_ref().filter(|modify| modify.status == "InProgress");
    let under_way = under_way.and_then(|modify| modify.target_volume_attributes_class_name.clone());
    if is_deleted(claim) || status.phase.as_deref() != Some("Bound") {
        return None;
    }
    under_way.or(wanted).filter(|target| Some(target) != current.as_ref())
}

impl Loop for Modifier {
    fn name(&self) -> &'static str {
        "modifier"
    }

    fn watches(&self) -> Vec<Watch> {
        let world = self.world.clone();
        let of_class = move |change: &Change| -> Vec<Key> {
            let claims: Vec<PersistentVolumeClaim> = world.all();
            let waits = |claim: &&PersistentVolumeClaim| target(claim).as_ref() == Some(&change.key.name);
            claims.iter().filter(waits).map(|claim| Key::new(claim.namespace(), claim.name())).collect()
        };
        vec![
            Watch::own(self.world.cache::<PersistentVolumeClaim>()),
            Watch { cache: self.world.cache::<VolumeAttributesClass>(), keys: Box::new(of_class) },
            Watch::read(self.world.cache::<PersistentVolume>()),
            Watch::read(self.world.cache::<Node>()),
        ]
    }

    fn work<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Next> {
        self.sync(key).boxed()
    }
}

impl Modifier {
    pub fn new(world: Arc<World>) -> Modifier {
        Modifier { world }
    }

    async fn sync(&self, key: &Key) -> Next {
        let Some(claim) = self.world.get::<PersistentVolumeClaim>(&key.namespace, &key.name) else {
            return Next::Done;
        };
        let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let Some(volume) = self.world.get::<PersistentVolume>("", &name) else { return Next::Done };
        let driver = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).map(|csi| csi.driver.as_str());
        let Some(target) = target(&claim) else { return Next::Done };
        if driver != Some(&self.world.driver.name) || !topology::is_ours(&self.world, &volume) {
            return Next::Done;
        }
        match self.modify(&claim, &volume, &target).await {
            Ok(next) => next,
            Err(error) => Next::from(Err(error)),
        }
    }

    async fn modify(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        target: &str,
    ) -> Result<Next, corten_client::Error> {
        let modify = |state: &str| json!({"targetVolumeAttributesClassName": target, "status": state});
        let class: Option<VolumeAttributesClass> = self.world.get("", target);
        let Some(class) = class else {
            let state = claim.status.as_ref().and_then(|status| status.modify_volume_status.as_ref());
            if state.is_none_or(|state| state.status != "Pending") {
                let message = format!("VAC \"{target}\" does not exist.");
                self.world.warning(claim, "VolumeModifyFailed", message);
                self.world.patch_status(claim, json!({"modifyVolumeStatus": modify("Pending")})).await?;
            }
            return Ok(Next::Done);
        };
        let message = format!("external resizer is modifying volume {} with vac {target}", claim.name());
        self.world.normal(claim, "VolumeModify", message);
        let status = json!({
            "modifyVolumeStatus": modify("InProgress"),
            "conditions": conditions(claim, &[("ModifyingVolume", "")], &["ModifyVolumeError"]),
        });
        self.world.patch_status(claim, status).await?;
        if let Err(error) = self.call(volume, class).await {
            let state = if error.is_infeasible() { "Infeasible" } else { "InProgress" };
            let message = error.to_string();
            let failed = [("ModifyVolumeError", message.as_str())];
            let status = json!({
                "modifyVolumeStatus": modify(state),
                "conditions": conditions(claim, &failed, &["ModifyingVolume"]),
            });
            self.world.warning(claim, "VolumeModifyFailed", message.clone());
            self.world.patch_status(claim, status).await?;
            return Ok(Next::Retry);
        }
        self.world.patch(volume, json!({"spec": {"volumeAttributesClassName": target}})).await?;
        let status = json!({
            "currentVolumeAttributesClassName": target,
            "modifyVolumeStatus": null,
            "conditions": conditions(claim, &[], &["ModifyingVolume", "ModifyVolumeError"]),
        });
        self.world.patch_status(claim, status).await?;
        let message = format!("external resizer modified volume {} with vac {target} successfully", claim.name());
        self.world.normal(claim, "VolumeModifySuccessful", message);
        Ok(Next::Done)
    }

    async fn call(&self, volume: &PersistentVolume, class: VolumeAttributesClass) -> Result<(), CallError> {
        let driver = &self.world.driver.name;
        if class.driver_name != *driver {
            let message = format!("the class is of the driver {}, and the volume of {driver}", class.driver_name);
            return Err(CallError::new(Code::InvalidArgument, &message));
        }
        let source = volume.spec.as_ref().and_then(|spec| spec.csi.clone()).unwrap_or_default();
        let secret = secrets::of_annotations(volume, MODIFY_SECRET_NAME, MODIFY_SECRET_NAMESPACE);
        let secrets = secrets::read(&self.world, secret.as_ref()).await;
        let secrets = secrets.map_err(|error| CallError::new(Code::Unavailable, &error))?;
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: source.volume_handle,
            secrets,
            mutable_parameters: class.parameters.unwrap_or_default().into_iter().collect(),
        };
        self.world.driver.modify_volume(request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_under_way_is_finished_before_another() {
        let shown = |line: &str| target(&testkit_fixture::typed(&format!("pvc data phase=Bound {line}")));
        assert_eq!(
            shown("volumeAttributesClassName=b status.currentVolumeAttributesClassName=a").as_deref(),
            Some("b")
        );
        assert_eq!(shown("volumeAttributesClassName=a status.currentVolumeAttributesClassName=a"), None);
        let modify = "status.modifyVolumeStatus={targetVolumeAttributesClassName: b, status: InProgress}";
        assert_eq!(shown(&format!("volumeAttributesClassName=c {modify}")).as_deref(), Some("b"));
        let infeasible = modify.replace("InProgress", "Infeasible");
        assert_eq!(shown(&format!("volumeAttributesClassName=c {infeasible}")).as_deref(), Some("c"));
    }
}
