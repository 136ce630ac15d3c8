//! Attaching: a VolumeAttachment of the driver is carried out by ControllerPublishVolume, and its deletion by
//! ControllerUnpublishVolume. For a driver without these calls an attachment is a formality.
//!
//! Invariant: a finalizer keeps the attachment, and one the volume, until the driver has detached it.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::PersistentVolume;
use corten_api::k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use corten_client::Change;
use corten_meta::Key;
use corten_meta::time::{now, rfc3339};
use corten_plugins::csi;
use corten_plugins::csi::controller_service_capability::rpc::Type as Rpc;
use corten_plugins::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;

use crate::detached::finalizer;
use crate::provision::access_mode;
use crate::secrets;
use crate::worker::{Loop, Next, Watch};
use crate::world::{World, annotation, has_finalizer, is_deleted};

/// The annotation with the driver's name of the node, for the time after the node is gone.
const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

pub struct Attacher {
    world: Arc<World>,
    finalizer: String,
}

impl Loop for Attacher {
    fn name(&self) -> &'static str {
        "attacher"
    }

    fn watches(&self) -> Vec<Watch> {
        let world = self.world.clone();
        // A volume that got its finalizer is attached next.
        let of_volume = move |change: &Change| -> Vec<Key> {
            let attachments: Vec<VolumeAttachment> = world.all();
            let is_its =
                |one: &&VolumeAttachment| one.spec.source.persistent_volume_name.as_ref() == Some(&change.key.name);
            attachments.iter().filter(is_its).map(|one| Key::new("", one.name())).collect()
        };
        vec![
            Watch::own(self.world.cache::<VolumeAttachment>()),
            Watch { cache: self.world.cache::<PersistentVolume>(), keys: Box::new(of_volume) },
            Watch::read(self.world.cache::<CSINode>()),
        ]
    }

    fn work<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Next> {
        self.sync(key).boxed()
    }
}

impl Attacher {
    pub fn new(world: Arc<World>) -> Attacher {
        let finalizer = finalizer(&world.driver.name);
        Attacher { world, finalizer }
    }

    async fn sync(&self, key: &Key) -> Next {
        let Some(attachment) = self.world.get::<VolumeAttachment>("", &key.name) else { return Next::Done };
        let is_here = self.world.options.node.as_ref().is_none_or(|node| *node == attachment.spec.node_name);
        if attachment.spec.attacher != self.world.driver.name || !is_here {
            return Next::Done;
        }
        let is_attached = attachment.status.as_ref().is_some_and(|status| status.attached);
        if !self.world.driver.publishes_volumes() {
            return match is_attached || is_deleted(&attachment) {
                true => Next::Done,
                false => Next::from(self.world.patch_status(&attachment, json!({"attached": true})).await),
            };
        }
        if is_deleted(&attachment) {
            return self.detach(&attachment).await;
        }
        match is_attached {
            true => Next::Done,
            false => self.attach(&attachment).await,
        }
    }

    async fn attach(&self, attachment: &VolumeAttachment) -> Next {
        match self.publish(attachment).await {
            Ok(Some(answer)) => {
                let metadata: BTreeMap<String, String> = answer.publish_context.into_iter().collect();
                let status = json!({"attached": true, "attachmentMetadata": metadata, "attachError": null});
                Next::from(self.world.patch_status(attachment, status).await)
            }
            // The finalizers are written: the caches show them soon.
            Ok(None) => Next::Done,
            Err(message) => {
                let error = json!({"message": message, "time": rfc3339(now())});
                let _ = self.world.patch_status(attachment, json!({"attachError": error})).await;
                Next::Retry
            }
        }
    }

    async fn publish(
        &self,
        attachment: &VolumeAttachment,
    ) -> Result<Option<csi::ControllerPublishVolumeResponse>, String> {
        let volume = self.volume(attachment)?;
        if is_deleted(&volume) {
            return Err(format!("PersistentVolume \"{}\" is marked for deletion", volume.name()));
        }
        let node_id = self.node_id(attachment)?;
        let text = |error: corten_client::Error| error.to_string();
        if self.world.finalizer(&volume, &self.finalizer, true).await.map_err(text)? {
            return Ok(None);
        }
        if !has_finalizer(attachment, &self.finalizer) {
            let mut finalizers = attachment.metadata.finalizers.clone().unwrap_or_default();
            finalizers.push(self.finalizer.clone());
            let metadata = json!({
                "resourceVersion": attachment.metadata.resource_version,
                "finalizers": finalizers,
                "annotations": {NODE_ID: node_id},
            });
            return self.world.patch(attachment, json!({"metadata": metadata})).await.map(|()| None).map_err(text);
        }
        let spec = volume.spec.clone().unwrap_or_default();
        let source = spec.csi.clone().unwrap_or_default();
        let secret = secrets::of_field(source.controller_publish_secret_ref.as_ref());
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: source.volume_handle.clone(),
            node_id,
            volume_capability: Some(self.capability(&volume)?),
            readonly: source.read_only == Some(true) && self.world.driver.has(Rpc::PublishReadonly),
            secrets: secrets::read(&self.world, secret.as_ref()).await?,
            volume_context: source.volume_attributes.clone().unwrap_or_default().into_iter().collect(),
        };
        self.world.driver.publish_volume(request).await.map(Some).map_err(|error| error.to_string())
    }

    async fn detach(&self, attachment: &VolumeAttachment) -> Next {
        if !has_finalizer(attachment, &self.finalizer) {
            return Next::Done;
        }
        if let Err(message) = self.unpublish(attachment).await {
            let error = json!({"message": message, "time": rfc3339(now())});
            let _ = self.world.patch_status(attachment, json!({"detachError": error})).await;
            return Next::Retry;
        }
        let _ = self.world.patch_status(attachment, json!({"attached": false, "detachError": null})).await;
        let current = self.world.client.find::<VolumeAttachment>("", attachment.name()).await;
        match current {
            Ok(Some(current)) => Next::from(self.world.finalizer(&current, &self.finalizer, false).await.map(drop)),
            Ok(None) => Next::Done,
            Err(error) => Next::from(Err(error)),
        }
    }

    async fn unpublish(&self, attachment: &VolumeAttachment) -> Result<(), String> {
        let volume = self.volume(attachment)?;
        let source = volume.spec.clone().unwrap_or_default().csi.unwrap_or_default();
        let secret = secrets::of_field(source.controller_publish_secret_ref.as_ref());
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: source.volume_handle,
            node_id: self.node_id(attachment)?,
            secrets: secrets::read(&self.world, secret.as_ref()).await?,
        };
        self.world.driver.unpublish_volume(request).await.map_err(|error| error.to_string())
    }

    fn volume(&self, attachment: &VolumeAttachment) -> Result<PersistentVolume, String> {
        let name = attachment.spec.source.persistent_volume_name.clone().unwrap_or_default();
        let volume: Option<PersistentVolume> = self.world.get("", &name);
        volume.ok_or_else(|| format!("persistentvolume \"{name}\" not found"))
    }

    /// Returns the driver's name of the node.
    fn node_id(&self, attachment: &VolumeAttachment) -> Result<String, String> {
        let node = &attachment.spec.node_name;
        let driver = &self.world.driver.name;
        let found: Option<CSINode> = self.world.get("", node);
        let drivers = found.map(|one| one.spec.drivers).unwrap_or_default();
        let known = drivers.into_iter().find(|one| one.name == *driver).map(|one| one.node_id);
        known
            .or_else(|| annotation(attachment, NODE_ID).map(str::to_owned))
            .ok_or_else(|| format!("CSINode {node} does not contain driver {driver}"))
    }

    fn capability(&self, volume: &PersistentVolume) -> Result<csi::VolumeCapability, String> {
        let spec = volume.spec.clone().unwrap_or_default();
        let modes = spec.access_modes.unwrap_or_default();
        // The mode that allows most: a volume is attached once for all its pods.
        let order = ["ReadWriteMany", "ReadOnlyMany", "ReadWriteOnce", "ReadWriteOncePod"];
        let mode = order.iter().find(|mode| modes.iter().any(|one| one == *mode));
        let mode = mode.ok_or_else(|| "the volume has no access mode".to_owned())?;
        let mode = access_mode(mode, self.world.driver.has(Rpc::SingleNodeMultiWriter))?;
        let access_type = match spec.volume_mode.as_deref() {
            Some("Block") => AccessType::Block(BlockVolume {}),
            _ => AccessType::Mount(MountVolume {
                fs_type: spec.csi.and_then(|csi| csi.fs_type).unwrap_or_default(),
                mount_flags: spec.mount_options.unwrap_or_default(),
                ..MountVolume::default()
            }),
        };
        let access_mode = Some(AccessMode { mode: mode as i32 });
        Ok(csi::VolumeCapability { access_type: Some(access_type), access_mode })
    }
}
