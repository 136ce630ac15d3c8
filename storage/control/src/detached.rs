//! Letting go: a PersistentVolume that is being deleted goes when no VolumeAttachment names it any more.
//!
//! Invariant: the attacher's finalizer stays on the volume while an attachment names it.

use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::PersistentVolume;
use corten_api::k8s_openapi::api::storage::v1::VolumeAttachment;
use corten_client::Change;
use corten_meta::Key;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::worker::{Loop, Next, Watch};
use crate::world::{World, has_finalizer, is_deleted};

/// Returns the finalizer of a driver's attachments and volumes.
pub fn finalizer(driver: &str) -> String {
    let name: String = driver.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '-' }).collect();
    format!("external-attacher/{name}")
}

pub struct Detached {
    world: Arc<World>,
    finalizer: String,
}

/// Returns the volume that a changed attachment names.
pub fn volume_of(change: &Change) -> Vec<Key> {
    let attachment = change.object().and_then(|object| VolumeAttachment::decode(&object.bytes).ok());
    let volume = attachment.and_then(|one| one.spec.source.persistent_volume_name);
    volume.map(|name| Key::new("", name)).into_iter().collect()
}

/// Reports whether an attachment names a volume.
pub fn names(attachment: &VolumeAttachment, volume: &PersistentVolume) -> bool {
    attachment.spec.source.persistent_volume_name.as_deref() == Some(volume.name())
}

impl Loop for Detached {
    fn name(&self) -> &'static str {
        "detached"
    }

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own(self.world.cache::<PersistentVolume>()),
            Watch { cache: self.world.cache::<VolumeAttachment>(), keys: Box::new(volume_of) },
        ]
    }

    fn work<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Next> {
        self.sync(key).boxed()
    }
}

impl Detached {
    pub fn new(world: Arc<World>) -> Detached {
        let finalizer = finalizer(&world.driver.name);
        Detached { world, finalizer }
    }

    async fn sync(&self, key: &Key) -> Next {
        let Some(volume) = self.world.get::<PersistentVolume>("", &key.name) else { return Next::Done };
        if !may_go(&volume, &self.finalizer, &self.world.all::<VolumeAttachment>()) {
            return Next::Done;
        }
        Next::from(self.world.finalizer(&volume, &self.finalizer, false).await.map(drop))
    }
}

/// Reports whether the finalizer of a volume is to be removed.
fn may_go(volume: &PersistentVolume, finalizer: &str, attachments: &[VolumeAttachment]) -> bool {
    is_deleted(volume) && has_finalizer(volume, finalizer) && !attachments.iter().any(|one| names(one, volume))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_goes_when_it_is_deleted_and_no_attachment_names_it() {
        let volume = |deleted: Option<&str>, finalizers: &[&str]| -> PersistentVolume {
            let metadata = json!({"name": "v", "finalizers": finalizers, "deletionTimestamp": deleted});
            serde_json::from_value(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata}))
                .unwrap()
        };
        let attachment = |volume: &str| -> VolumeAttachment {
            let source = json!({"persistentVolumeName": volume});
            let spec = json!({"attacher": "d", "nodeName": "n", "source": source});
            serde_json::from_value(
                json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "a"}, "spec": spec}),
            )
            .unwrap()
        };
        let ours = finalizer("ebs.csi.aws.com");
        assert_eq!(ours, "external-attacher/ebs-csi-aws-com");
        let now = Some("2026-06-01T00:00:00Z");
        assert!(may_go(&volume(now, &[&ours, "other"]), &ours, &[attachment("w")]));
        assert!(!may_go(&volume(now, &[&ours]), &ours, &[attachment("w"), attachment("v")]));
        assert!(!may_go(&volume(None, &[&ours]), &ours, &[]));
        assert!(!may_go(&volume(now, &["other"]), &ours, &[]));
    }
}
