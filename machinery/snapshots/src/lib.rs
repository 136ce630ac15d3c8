//! The kinds of volume snapshots (`snapshot.storage.k8s.io`) and of snapshots of volume groups
//! (`groupsnapshot.storage.k8s.io`), and of volume backups and replicas (`storage.corten.dev`): structs, the names that
//! components share, and CustomResourceDefinitions.
//!
//! They are custom resources. The snapshot controller and the loops of a storage driver read them through these structs,
//! which hold only the fields that they use: an object is changed by patches, so that fields of newer versions stay.

mod backup;
mod class;
mod content;
mod group;
mod kind;
pub mod names;
mod replica;
mod snapshot;

use corten_crds::Table;
use corten_meta::Value;

pub use backup::{
    BACKUP_DRIVER, BACKUP_FINALIZER, BACKUP_GROUP, BACKUP_NAMESPACE, BackupSource, BackupSpec, BackupStatus,
    BucketPlace, COMPLETED, DirectoryPlace, INTACT, PRUNE_REQUEST, READY, RepositorySpec, RepositoryStatus,
    SCHEDULE_LABEL, ScheduleSpec, ScheduleStatus, VERIFY_REQUEST, VolumeBackup, VolumeBackupRepository,
    VolumeBackupSchedule, with_condition,
};
pub use class::{SecretReference, SecretTemplate, VolumeGroupSnapshotClass, VolumeSnapshotClass};
pub use content::{ContentSource, ContentSpec, ContentStatus, VolumeSnapshotContent};
pub use group::{
    GroupContentSource, GroupContentSpec, GroupContentStatus, GroupHandles, GroupSource, GroupSpec, GroupStatus,
    SnapshotInfo, VolumeGroupSnapshot, VolumeGroupSnapshotContent,
};
pub use kind::{Reference, StatusError};
pub use replica::{
    INTERVAL_ATTRIBUTE, LABEL_FORMER, LABEL_PRIMARY, PROMOTE_REQUEST, PrimaryStatus, REPLICA_FINALIZER, REPLICA_LABEL,
    REPLICAS_ATTRIBUTE, ReplicaSpec, ReplicaStatus, SYNCED, StandbyStatus, VolumeReplica,
};
pub use snapshot::{SnapshotSource, SnapshotSpec, SnapshotStatus, VolumeSnapshot};

const BACKUP_TABLE: &str = include_str!("../schema/backups.tbl");
const TABLE: &str = include_str!("../schema/snapshots.tbl");

/// The group of snapshots of one volume.
pub const GROUP: &str = "snapshot.storage.k8s.io";
/// The group of snapshots of several volumes.
pub const GROUP_SNAPSHOT_GROUP: &str = "groupsnapshot.storage.k8s.io";
/// The version of its kinds that components read and write: the stored one.
pub const GROUP_SNAPSHOT_VERSION: &str = "v1beta2";

/// Returns the CustomResourceDefinitions of both groups.
pub fn definitions() -> Vec<Value> {
    Table::parse(TABLE).definitions()
}

/// Returns the CustomResourceDefinitions of volume backups and of volume replicas.
pub fn backup_definitions() -> Vec<Value> {
    Table::parse(BACKUP_TABLE).definitions()
}

#[cfg(test)]
mod tests {
    use corten_api::Typed;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_type_and_pattern_of_the_table_exists() {
        assert_eq!(Table::parse(TABLE).errors(), Vec::<String>::new());
        assert_eq!(Table::parse(BACKUP_TABLE).errors(), Vec::<String>::new());
    }

    #[test]
    fn versions_and_fields_are_those_of_upstream() {
        let definitions = definitions();
        let shown: Vec<String> = definitions
            .iter()
            .map(|one| {
                let versions = one["spec"]["versions"].as_array().unwrap().iter().map(|version| {
                    let stored = if version["storage"] == true { "+" } else { "" };
                    let served = if version["served"] == true { "" } else { "-" };
                    format!("{}{stored}{served}", version["name"].as_str().unwrap())
                });
                format!("{} {}", corten_meta::name(one), versions.collect::<Vec<_>>().join(","))
            })
            .collect();
        assert_eq!(
            shown,
            [
                "volumesnapshots.snapshot.storage.k8s.io v1+,v1beta1-",
                "volumesnapshotcontents.snapshot.storage.k8s.io v1+,v1beta1-",
                "volumesnapshotclasses.snapshot.storage.k8s.io v1+,v1beta1-",
                "volumegroupsnapshots.groupsnapshot.storage.k8s.io v1,v1beta1,v1beta2+",
                "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io v1,v1beta1,v1beta2+",
                "volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io v1,v1beta1,v1beta2+",
            ]
        );
        let schema = |index: usize, version: usize| {
            definitions[index]["spec"]["versions"][version]["schema"]["openAPIV3Schema"].clone()
        };
        assert_eq!(schema(2, 0)["required"], json!(["deletionPolicy", "driver"]));
        assert!(definitions[2]["spec"]["versions"][0]["subresources"].is_null());
        let status = |version: usize| schema(4, version)["properties"]["status"]["properties"].clone();
        assert!(status(1)["volumeSnapshotHandlePairList"].is_object());
        assert!(status(2)["volumeSnapshotInfoList"].is_object());
        let size = &schema(0, 0)["properties"]["status"]["properties"]["restoreSize"];
        assert_eq!(size["x-kubernetes-int-or-string"], true);
    }

    #[test]
    fn an_object_is_read_and_written_as_the_same() {
        let object = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshot",
            "metadata": {"name": "a", "namespace": "b"},
            "spec": {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "fast"},
            "status": {"readyToUse": true, "restoreSize": "1Gi", "error": {"message": "m"}},
        });
        let snapshot = VolumeSnapshot::from_value(object.clone()).unwrap();
        assert_eq!(snapshot.to_value(), object);
        assert!(VolumeSnapshot::from_value(json!({"spec": 1})).is_err());
    }
}
