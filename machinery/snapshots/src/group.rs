//! VolumeGroupSnapshot and VolumeGroupSnapshotContent: snapshots of several volumes, taken at the same moment.

use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};

use crate::kind::{Reference, StatusError, kind};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroupSnapshot {
    pub metadata: ObjectMeta,
    pub spec: GroupSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<GroupStatus>,
}
kind!(VolumeGroupSnapshot, "groupsnapshot.storage.k8s.io", "v1beta2", "volumegroupsnapshots", true);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupSpec {
    pub source: GroupSource,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_class_name: Option<String>,
}

/// The source of a group snapshot: exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupSource {
    /// Selects the claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_content_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_volume_group_snapshot_content_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<StatusError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroupSnapshotContent {
    pub metadata: ObjectMeta,
    pub spec: GroupContentSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<GroupContentStatus>,
}
kind!(VolumeGroupSnapshotContent, "groupsnapshot.storage.k8s.io", "v1beta2", "volumegroupsnapshotcontents", false);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupContentSpec {
    /// `Delete` or `Retain`.
    pub deletion_policy: String,
    pub driver: String,
    pub source: GroupContentSource,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_class_name: Option<String>,
    pub volume_group_snapshot_ref: Reference,
}

/// The source of the content of a group: volumes, or snapshots that exist. Exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupContentSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_snapshot_handles: Option<GroupHandles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_handles: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupHandles {
    pub volume_group_snapshot_handle: String,
    pub volume_snapshot_handles: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupContentStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<StatusError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_handle: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_snapshot_info_list: Vec<SnapshotInfo>,
}

/// One snapshot of a group, as the driver reported it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotInfo {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
    pub snapshot_handle: String,
    pub volume_handle: String,
}

impl VolumeGroupSnapshot {
    /// Reports whether all snapshots of the group can be used.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use) == Some(true)
    }

    /// Returns the name of the bound content.
    pub fn bound_content(&self) -> Option<&str> {
        let name = self.status.as_ref()?.bound_volume_group_snapshot_content_name.as_deref()?;
        Some(name).filter(|name| !name.is_empty())
    }

    /// Returns the name of the content that the snapshot controller makes for selected claims.
    pub fn dynamic_content(&self) -> String {
        format!("groupsnapcontent-{}", self.metadata.uid.as_deref().unwrap_or_default())
    }
}

impl VolumeGroupSnapshotContent {
    /// Reports whether the content is bound to the group snapshot: by its name, namespace and uid.
    pub fn is_of(&self, group: &VolumeGroupSnapshot) -> bool {
        let reference = &self.spec.volume_group_snapshot_ref;
        Some(&reference.name) == group.metadata.name.as_ref()
            && Some(&reference.namespace) == group.metadata.namespace.as_ref()
            && Some(&reference.uid) == group.metadata.uid.as_ref()
    }
}
