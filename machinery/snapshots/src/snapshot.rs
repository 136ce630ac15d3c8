//! VolumeSnapshot: a user's request for a snapshot of a claim, or for one that exists already.

use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use corten_meta::Value;
use serde::{Deserialize, Serialize};

use crate::kind::{StatusError, kind};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshot {
    pub metadata: ObjectMeta,
    pub spec: SnapshotSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<SnapshotStatus>,
}
kind!(VolumeSnapshot, "snapshot.storage.k8s.io", "v1", "volumesnapshots", true);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotSpec {
    pub source: SnapshotSource,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
}

/// The source of a snapshot: exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_content_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_volume_snapshot_content_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<StatusError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// A quantity: a string, or a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_name: Option<String>,
}

impl VolumeSnapshot {
    /// Reports whether volumes can be made of the snapshot.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use) == Some(true)
    }

    /// Returns the name of the bound content.
    pub fn bound_content(&self) -> Option<&str> {
        let name = self.status.as_ref()?.bound_volume_snapshot_content_name.as_deref()?;
        Some(name).filter(|name| !name.is_empty())
    }

    /// Returns the name of the content that the snapshot controller makes for a snapshot of a claim.
    pub fn dynamic_content(&self) -> String {
        format!("snapcontent-{}", self.metadata.uid.as_deref().unwrap_or_default())
    }
}
