//! The snapshots of the single volumes of a group: the driver has taken them, and reports their handles in the status
//! of the group's content. Each gets a VolumeSnapshot and a VolumeSnapshotContent, bound to each other.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::PersistentVolume;
use corten_meta::{Key, Value};
use corten_snapshots::names::{
    DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, GROUP_HANDLE, IN_GROUP_FINALIZER, MANAGED_BY,
};
use corten_snapshots::{
    SecretReference, SnapshotInfo, VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeSnapshot,
    VolumeSnapshotContent,
};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::snapshot::owner_reference;
use super::sources::node_of;
use crate::runtime::{Action, ResourceType, View};

/// A snapshot of a group.
pub struct Member {
    info: SnapshotInfo,
    /// The hash in the names of both objects.
    hash: String,
    /// The group's handle.
    handle: String,
    volume: Option<PersistentVolume>,
    /// The node that alone reaches the volume.
    node: Option<String>,
    snapshot: Option<VolumeSnapshot>,
    content: Option<VolumeSnapshotContent>,
}

/// Returns the snapshots that the driver reported, with their objects; none before the group has a handle.
pub fn members(view: &dyn View, group: &VolumeGroupSnapshot, content: &VolumeGroupSnapshotContent) -> Vec<Member> {
    let status = content.status.clone().unwrap_or_default();
    let Some(handle) = status.volume_group_snapshot_handle else { return Vec::new() };
    let volumes: Vec<PersistentVolume> = view.all("");
    let uid = group.metadata.uid.clone().unwrap_or_default();
    let member = |info: SnapshotInfo| {
        let hash = hex(&Sha256::digest(format!("{uid}{}", info.volume_handle)));
        let is_source = |volume: &&PersistentVolume| {
            let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
            csi.is_some_and(|csi| csi.driver == content.spec.driver && csi.volume_handle == info.volume_handle)
        };
        let volume = volumes.iter().find(is_source).cloned();
        Member {
            node: volume.as_ref().and_then(|volume| node_of(view, volume)),
            volume,
            snapshot: view.typed(&Key::new(group.namespace(), format!("snapshot-{hash}"))),
            content: view.typed(&Key::new("", format!("snapcontent-{hash}"))),
            handle: handle.clone(),
            hash,
            info,
        }
    };
    status.volume_snapshot_info_list.into_iter().map(member).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Member {
    /// Returns the next writes towards a snapshot and a content that are bound to each other.
    pub fn advance(
        &self,
        group: &VolumeGroupSnapshot,
        of_group: &VolumeGroupSnapshotContent,
        secret: Option<&SecretReference>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        match (&self.content, &self.snapshot) {
            (Some(content), Some(snapshot)) => {
                if content.spec.volume_snapshot_ref.uid.is_empty() {
                    let patch = json!({"spec": {"volumeSnapshotRef": {"uid": snapshot.metadata.uid}}});
                    actions.push(Action::patch(content, patch));
                }
                if snapshot.bound_content().is_none() {
                    let status = json!({"boundVolumeSnapshotContentName": content.name()});
                    actions.push(Action::patch_status(snapshot, json!({"status": status})));
                }
                let has_handle = content.status.as_ref().is_some_and(|status| status.snapshot_handle.is_some());
                if !has_handle {
                    actions.push(Action::patch_status(content, json!({"status": self.content_status()})));
                }
            }
            (content, snapshot) => {
                if content.is_none() {
                    actions.push(create::<VolumeSnapshotContent>(self.content_object(group, of_group, secret)));
                }
                if snapshot.is_none() {
                    actions.push(create::<VolumeSnapshot>(self.snapshot_object(group)));
                }
            }
        }
        actions
    }

    fn content_status(&self) -> Value {
        let info = &self.info;
        json!({
            "snapshotHandle": info.snapshot_handle,
            "volumeGroupSnapshotHandle": self.handle,
            "creationTime": info.creation_time,
            "readyToUse": info.ready_to_use,
            "restoreSize": info.restore_size,
        })
    }

    fn content_object(
        &self,
        group: &VolumeGroupSnapshot,
        of_group: &VolumeGroupSnapshotContent,
        secret: Option<&SecretReference>,
    ) -> Value {
        let mut annotations = json!({GROUP_HANDLE: self.handle});
        if let Some(secret) = secret {
            annotations[DELETION_SECRET_NAME] = json!(secret.name);
            annotations[DELETION_SECRET_NAMESPACE] = json!(secret.namespace);
        }
        let mode = self.volume.as_ref().and_then(|volume| volume.spec.as_ref()?.volume_mode.clone());
        let mut object = json!({
            "metadata": {"name": format!("snapcontent-{}", self.hash), "annotations": annotations},
            "spec": {
                "deletionPolicy": of_group.spec.deletion_policy,
                "driver": of_group.spec.driver,
                "source": {"volumeHandle": self.info.volume_handle},
                "volumeSnapshotRef": {
                    "kind": VolumeSnapshot::KIND,
                    "namespace": group.namespace(),
                    "name": format!("snapshot-{}", self.hash),
                },
            },
        });
        if let Some(mode) = mode {
            object["spec"]["sourceVolumeMode"] = json!(mode);
        }
        if let Some(node) = &self.node {
            object["metadata"]["labels"] = json!({MANAGED_BY: node});
        }
        object
    }

    fn snapshot_object(&self, group: &VolumeGroupSnapshot) -> Value {
        let reference = self.volume.as_ref().and_then(|volume| volume.spec.as_ref()?.claim_ref.clone());
        let claim = reference.and_then(|reference| reference.name).unwrap_or_default();
        json!({
            "metadata": {
                "name": format!("snapshot-{}", self.hash),
                "namespace": group.namespace(),
                "ownerReferences": [owner_reference(group)],
                "finalizers": [IN_GROUP_FINALIZER],
            },
            "spec": {"source": {"persistentVolumeClaimName": claim}},
        })
    }
}

fn create<K: Typed>(mut object: Value) -> Action {
    object["apiVersion"] = json!(K::API_VERSION);
    object["kind"] = json!(K::KIND);
    Action::Create { resource: ResourceType::of::<K>(), object, report: None }
}
