//! VolumeSnapshotContent: a snapshot on a storage system, as PersistentVolume is a volume.

use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::kind::{Reference, StatusError, kind};
use crate::snapshot::VolumeSnapshot;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotContent {
    pub metadata: ObjectMeta,
    pub spec: ContentSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ContentStatus>,
}
kind!(VolumeSnapshotContent, "snapshot.storage.k8s.io", "v1", "volumesnapshotcontents", false);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentSpec {
    /// `Delete` or `Retain`.
    pub deletion_policy: String,
    pub driver: String,
    pub source: ContentSource,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_volume_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
    pub volume_snapshot_ref: Reference,
}

/// The source of a content: a volume to take a snapshot of, or a snapshot that exists. Exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentStatus {
    /// The moment of the snapshot, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<StatusError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_handle: Option<String>,
}

impl VolumeSnapshotContent {
    /// Reports whether the content is bound to the snapshot: by its name, namespace and uid.
    pub fn is_of(&self, snapshot: &VolumeSnapshot) -> bool {
        let reference = &self.spec.volume_snapshot_ref;
        Some(&reference.name) == snapshot.metadata.name.as_ref()
            && Some(&reference.namespace) == snapshot.metadata.namespace.as_ref()
            && Some(&reference.uid) == snapshot.metadata.uid.as_ref()
    }

    /// Reports whether the snapshot on the storage system is deleted with the content.
    pub fn is_deleted_with_snapshot(&self) -> bool {
        self.spec.deletion_policy == "Delete"
    }
}
