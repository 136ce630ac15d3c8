//! VolumeReplica: the state of a volume with a copy on another node, by the name of its PersistentVolume.
//!
//! *Invariant: the controller alone writes the spec, so that no node can promote itself. Each node writes its own part of
//! the status and no other.*

use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

use crate::kind::kind;

/// The attribute of a volume with the number of its copies, the first included.
pub const REPLICAS_ATTRIBUTE: &str = "replicas";
/// The attribute of a volume with the seconds between two increments.
pub const INTERVAL_ATTRIBUTE: &str = "replicaIntervalSeconds";
/// The prefix of the label of Nodes by which a volume follows its primary; the volume's handle comes after it. Kubelets may
/// not set it.
pub const REPLICA_LABEL: &str = "replica.storage.corten.dev.node-restriction.kubernetes.io/";
/// The value of the label on the primary.
pub const LABEL_PRIMARY: &str = "primary";
/// The value of the label on a node that was the primary.
pub const LABEL_FORMER: &str = "former";
/// Keeps a VolumeReplica as long as its PersistentVolume, so that its epoch is never forgotten.
pub const REPLICA_FINALIZER: &str = "storage.corten.dev/volume-replica";
/// The annotation of a VolumeReplica that promotes the standby of the epoch that it names.
pub const PROMOTE_REQUEST: &str = "storage.corten.dev/promote";
/// The condition that says whether the copy is as new as it should be.
pub const SYNCED: &str = "Synced";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeReplica {
    pub metadata: ObjectMeta,
    pub spec: ReplicaSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ReplicaStatus>,
}
kind!(VolumeReplica, "storage.corten.dev", "v1alpha1", "volumereplicas", false);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSpec {
    pub volume_handle: String,
    pub interval_seconds: u64,
    /// The only node that may use the volume.
    pub primary_node: String,
    /// The node with the copy; empty if there is none.
    pub standby_node: String,
    /// Grows with every promotion.
    pub epoch: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaStatus {
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary: Option<PrimaryStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standby: Option<StandbyStatus>,
    /// The time since when the primary's Node does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_lost_time: Option<String>,
}

/// The report of the primary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PrimaryStatus {
    pub node_name: String,
    pub epoch: u64,
    /// The address and port at which the standby gets increments.
    pub address: String,
    /// The last failure; empty if there is none.
    pub message: String,
}

/// The report of the standby.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StandbyStatus {
    pub node_name: String,
    pub epoch: u64,
    /// The moment of which the copy is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synced_time: Option<String>,
    /// The bytes of the last increment that had any.
    pub sent_bytes: u64,
    /// The last failure; empty if there is none.
    pub message: String,
}

impl VolumeReplica {
    /// Returns the conditions.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    /// Returns the report of the current standby, if it has made one.
    pub fn standby(&self) -> Option<&StandbyStatus> {
        let report = self.status.as_ref()?.standby.as_ref()?;
        (report.node_name == self.spec.standby_node && report.epoch == self.spec.epoch).then_some(report)
    }

    /// Returns the report of the current primary, if it has made one.
    pub fn primary(&self) -> Option<&PrimaryStatus> {
        let report = self.status.as_ref()?.primary.as_ref()?;
        (report.node_name == self.spec.primary_node && report.epoch == self.spec.epoch).then_some(report)
    }

    /// Returns the label of Nodes by which the volume follows its primary.
    pub fn label(&self) -> String {
        format!("{REPLICA_LABEL}{}", self.spec.volume_handle)
    }
}
