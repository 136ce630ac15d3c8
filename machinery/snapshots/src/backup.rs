//! The kinds of volume backups, `storage.corten.dev`: VolumeBackupRepository, VolumeBackup and VolumeBackupSchedule.

use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use corten_meta::Value;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::kind::kind;

/// The group of the kinds.
pub const BACKUP_GROUP: &str = "storage.corten.dev";
/// The driver whose volumes are backed up.
pub const BACKUP_DRIVER: &str = "storage.corten.dev";
/// The namespace of the Secrets of repositories. Nodes may read the Secrets there, and no others.
pub const BACKUP_NAMESPACE: &str = "corten-backup";
/// Keeps a VolumeBackup until the repository has deleted the backup.
pub const BACKUP_FINALIZER: &str = "storage.corten.dev/volume-backup";
/// The label of VolumeBackups with the name of their schedule.
pub const SCHEDULE_LABEL: &str = "storage.corten.dev/schedule";
/// The annotations of a repository that ask for a prune or a verification; a new value asks again.
pub const PRUNE_REQUEST: &str = "storage.corten.dev/prune";
pub const VERIFY_REQUEST: &str = "storage.corten.dev/verify";
/// The condition of all three kinds.
pub const READY: &str = "Ready";
/// The condition of a repository that says whether the last verification found everything intact.
pub const INTACT: &str = "Intact";
/// The reason of a finished backup.
pub const COMPLETED: &str = "Completed";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeBackupRepository {
    pub metadata: ObjectMeta,
    pub spec: RepositorySpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RepositoryStatus>,
}
kind!(VolumeBackupRepository, "storage.corten.dev", "v1alpha1", "volumebackuprepositories", false);

/// The place of a repository: exactly one of directory and S3.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RepositorySpec {
    pub secret_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<DirectoryPlace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3: Option<BucketPlace>,
    /// The namespaces whose claims may use it; all if it is empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Whether a namespace may import the backups of another.
    pub import_from_other_namespaces: bool,
    pub prune_interval_hours: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DirectoryPlace {
    pub path: String,
    /// The node that has the directory; all nodes share it if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BucketPlace {
    pub bucket: String,
    pub endpoint: String,
    pub prefix: String,
    pub region: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RepositoryStatus {
    pub conditions: Vec<Condition>,
    /// The node that opens, prunes and verifies it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The number of backups, as it was last counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backups: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_prune_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_prune_request: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_verify_request: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeBackup {
    pub metadata: ObjectMeta,
    pub spec: BackupSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<BackupStatus>,
}
kind!(VolumeBackup, "storage.corten.dev", "v1alpha1", "volumebackups", true);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupSpec {
    pub repository_name: String,
    pub source: BackupSource,
    /// `Delete` or `Retain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<String>,
}

/// The source of a backup: a claim, or a backup that the repository has already.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
    #[serde(rename = "backupID", skip_serializing_if = "Option::is_none")]
    pub backup_id: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupStatus {
    pub conditions: Vec<Condition>,
    /// The node that makes the backup, or imports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(rename = "backupID", skip_serializing_if = "Option::is_none")]
    pub backup_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_bytes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeBackupSchedule {
    pub metadata: ObjectMeta,
    pub spec: ScheduleSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ScheduleStatus>,
}
kind!(VolumeBackupSchedule, "storage.corten.dev", "v1alpha1", "volumebackupschedules", true);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScheduleSpec {
    pub schedule: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    pub suspend: bool,
    pub repository_name: String,
    /// Selects the claims.
    pub selector: LabelSelector,
    /// The number of backups of each claim that are kept.
    pub keep: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScheduleStatus {
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<String>,
}

impl VolumeBackupRepository {
    /// Reports whether claims of a namespace may use it.
    pub fn allows(&self, namespace: &str) -> bool {
        self.spec.namespaces.is_empty() || self.spec.namespaces.iter().any(|one| one == namespace)
    }

    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    pub fn is_ready(&self) -> bool {
        is_true(self.conditions(), READY)
    }
}

impl VolumeBackup {
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    /// Reports whether the backup is in the repository as a whole.
    pub fn is_ready(&self) -> bool {
        is_true(self.conditions(), READY)
    }

    /// Returns the id of the backup in the repository: the one that is imported, or the object's uid.
    pub fn id(&self) -> &str {
        let own = self.metadata.uid.as_deref().unwrap_or_default();
        self.spec.source.backup_id.as_deref().unwrap_or(own)
    }

    /// Reports whether the backup is deleted from the repository with the object. A backup that was imported is another
    /// object's, unless the user says otherwise.
    pub fn is_deleted_with_object(&self) -> bool {
        match self.spec.deletion_policy.as_deref() {
            Some(policy) => policy == "Delete",
            None => self.spec.source.backup_id.is_none(),
        }
    }
}

fn is_true(conditions: &[Condition], kind: &str) -> bool {
    conditions.iter().any(|one| one.type_ == kind && one.status == "True")
}

/// Returns the list of conditions with one that is set; none if it has that one already. The time of the transition stays
/// as long as the status does.
pub fn with_condition(
    current: &[Condition],
    kind: &str,
    is_true: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Option<Value> {
    let status = if is_true { "True" } else { "False" };
    let before = current.iter().find(|one| one.type_ == kind);
    if before.is_some_and(|one| one.status == status && one.reason == reason && one.message == message) {
        return None;
    }
    let kept = before.filter(|one| one.status == status).map(|one| one.last_transition_time.0);
    let time = corten_meta::time::rfc3339(kept.unwrap_or(now));
    let own = json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time,
    });
    let others = current.iter().filter(|one| one.type_ != kind).map(|one| json!(one));
    Some(others.chain([own]).collect())
}
