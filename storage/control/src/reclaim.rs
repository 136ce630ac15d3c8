//! Reclaiming: a volume of the driver is deleted on the storage system when its claim is gone and its policy is Delete.
//!
//! Invariant: the PersistentVolume goes only after the driver has deleted the volume.

use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, PersistentVolume};
use corten_api::k8s_openapi::api::storage::v1::VolumeAttachment;
use corten_client::DeleteOptions;
use corten_meta::Key;
use corten_plugins::csi;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::detached::{names, volume_of};
use crate::secrets;
use crate::topology;
use crate::worker::{Loop, Next, Watch};
use crate::world::{World, annotation, has_finalizer, is_deleted};

pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
pub const DELETION_SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";
/// Keeps a PersistentVolume until its volume is deleted on the storage system, whichever client deletes it.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

pub struct Reclaimer {
    world: Arc<World>,
}

/// The decision about a volume.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Keep,
    /// The volume stays on the storage system, and its object goes.
    Release,
    /// The volume is still attached to a node.
    Wait(String),
    Delete,
}

/// Decides about a volume of the driver.
fn decide(volume: &PersistentVolume, attachments: &[VolumeAttachment]) -> Decision {
    let spec = volume.spec.clone().unwrap_or_default();
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let is_dependent = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    match (phase, is_dependent, is_deleted(volume)) {
        ("Released" | "Failed", true, _) => {}
        (_, false, true) if has_finalizer(volume, FINALIZER) && phase != "Bound" => return Decision::Release,
        _ => return Decision::Keep,
    }
    match attachments.iter().find(|one| names(one, volume)) {
        Some(one) => {
            let message =
                format!("persistentvolume {} is still attached to node {}", volume.name(), one.spec.node_name);
            Decision::Wait(message)
        }
        None => Decision::Delete,
    }
}

impl Loop for Reclaimer {
    fn name(&self) -> &'static str {
        "reclaimer"
    }

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own(self.world.cache::<PersistentVolume>()),
            Watch { cache: self.world.cache::<VolumeAttachment>(), keys: Box::new(volume_of) },
            Watch::read(self.world.cache::<Node>()),
        ]
    }

    fn work<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Next> {
        self.sync(key).boxed()
    }
}

impl Reclaimer {
    pub fn new(world: Arc<World>) -> Reclaimer {
        Reclaimer { world }
    }

    async fn sync(&self, key: &Key) -> Next {
        let Some(volume) = self.world.get::<PersistentVolume>("", &key.name) else { return Next::Done };
        if annotation(&volume, PROVISIONED_BY) != Some(&self.world.driver.name)
            || !topology::is_ours(&self.world, &volume)
        {
            return Next::Done;
        }
        match decide(&volume, &self.world.all::<VolumeAttachment>()) {
            Decision::Keep => Next::Done,
            Decision::Release => self.release(&volume).await,
            Decision::Wait(message) => {
                self.world.warning(&volume, "VolumeFailedDelete", message);
                Next::Done
            }
            Decision::Delete => match self.delete(&volume).await {
                Ok(()) => self.release(&volume).await,
                Err(message) => {
                    self.world.warning(&volume, "VolumeFailedDelete", message);
                    Next::Retry
                }
            },
        }
    }

    async fn delete(&self, volume: &PersistentVolume) -> Result<(), String> {
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let handle = csi.map(|csi| csi.volume_handle.clone()).ok_or("the volume is not of a CSI driver")?;
        let secret = secrets::of_annotations(volume, DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE);
        let secrets = secrets::read(&self.world, secret.as_ref()).await?;
        let request = csi::DeleteVolumeRequest { volume_id: handle, secrets };
        self.world.driver.delete_volume(request).await.map_err(|error| error.to_string())
    }

    /// Removes the object: the finalizer first, or with the finalizer of an object that is being deleted already.
    async fn release(&self, volume: &PersistentVolume) -> Next {
        if !is_deleted(volume) {
            let options = DeleteOptions::uid(volume.metadata.uid.clone().unwrap_or_default());
            let deleted = self.world.client.of::<PersistentVolume>().delete("", volume.name(), &options).await;
            match deleted {
                Err(error) if !error.is_not_found() => return Next::from(Err(error)),
                _ => {}
            }
        }
        // A deletion changes the version that the cache shows: the finalizer goes from the object as it is now.
        match self.world.client.find::<PersistentVolume>("", volume.name()).await {
            Ok(Some(current)) if current.metadata.uid == volume.metadata.uid => {
                Next::from(self.world.finalizer(&current, FINALIZER, false).await.map(drop))
            }
            Ok(_) => Next::Done,
            Err(error) => Next::from(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_released_volumes_with_the_policy_delete_are_deleted() {
        let shown =
            |volume: &str, attachments: &[VolumeAttachment]| decide(&testkit_fixture::typed(volume), attachments);
        let delete = "pv v persistentVolumeReclaimPolicy=Delete";
        assert_eq!(shown(&format!("{delete} phase=Released"), &[]), Decision::Delete);
        assert_eq!(shown(&format!("{delete} phase=Bound"), &[]), Decision::Keep);
        assert_eq!(shown(&format!("{delete} phase=Bound deleting"), &[]), Decision::Keep);
        let retain = "pv v persistentVolumeReclaimPolicy=Retain phase=Released";
        assert_eq!(shown(retain, &[]), Decision::Keep);
        let leaving = format!("{retain} deleting metadata.finalizers={FINALIZER}");
        assert_eq!(shown(&leaving, &[]), Decision::Release);
        let attached = testkit_fixture::typed(
            "volumeattachment a spec={attacher: d, nodeName: n1, source: {persistentVolumeName: v}}",
        );
        let wait = Decision::Wait("persistentvolume v is still attached to node n1".to_owned());
        assert_eq!(shown(&format!("{delete} phase=Released"), &[attached]), wait);
    }
}
