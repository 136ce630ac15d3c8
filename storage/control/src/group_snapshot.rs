//! Snapshots of groups: a VolumeGroupSnapshotContent of the driver is carried out by CreateVolumeGroupSnapshot, and
//! deleted by DeleteVolumeGroupSnapshot, with all snapshots of the group.

use std::collections::HashMap;
use std::sync::Arc;

use corten_meta::time::{now, rfc3339};
use corten_meta::{Key, Value};
use corten_plugins::csi;
use corten_snapshots::names::{
    GROUP_BEING_CREATED, GROUP_BEING_DELETED, GROUP_CONTENT_FINALIZER, GROUP_DELETION_SECRET_NAME,
    GROUP_DELETION_SECRET_NAMESPACE,
};
use corten_snapshots::{GroupHandles, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent};
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::json;

use crate::secrets;
use crate::snapshot::{adopt, is_here, is_managed, nanoseconds};
use crate::worker::{Loop, Next, Watch};
use crate::world::{World, annotation, has_finalizer, is_deleted};

pub struct GroupSnapshotter {
    world: Arc<World>,
}

/// The decision about a content.
#[derive(Debug, PartialEq)]
enum Decision {
    Keep,
    /// The snapshots are taken, or the call that takes them is repeated.
    Create(Vec<String>),
    /// The state of snapshots that exist is read.
    Check(GroupHandles),
    /// The snapshots are deleted on the storage system, and then let go.
    Delete(GroupHandles),
    /// The content is let go, and the snapshots stay.
    Release,
}

/// Decides about a content of the driver.
fn decide(content: &VolumeGroupSnapshotContent) -> Decision {
    let status = content.status.clone().unwrap_or_default();
    let source = &content.spec.source;
    let is_under_way = annotation(content, GROUP_BEING_CREATED).is_some();
    let is_unbound = source.group_snapshot_handles.is_some() && content.spec.volume_group_snapshot_ref.uid.is_empty();
    let is_let_go = is_unbound || (!is_under_way && annotation(content, GROUP_BEING_DELETED).is_some());
    if is_deleted(content) && is_let_go {
        let handles = status.volume_group_snapshot_handle.map(|handle| {
            let reported = status.volume_snapshot_info_list.into_iter().map(|info| info.snapshot_handle);
            let named = source.group_snapshot_handles.clone().map(|handles| handles.volume_snapshot_handles);
            GroupHandles {
                volume_group_snapshot_handle: handle,
                volume_snapshot_handles: named.unwrap_or_else(|| reported.collect()),
            }
        });
        return match handles {
            Some(handles) if content.spec.deletion_policy == "Delete" => Decision::Delete(handles),
            _ if has_finalizer(content, GROUP_CONTENT_FINALIZER) => Decision::Release,
            _ => Decision::Keep,
        };
    }
    if status.ready_to_use == Some(true) || (is_deleted(content) && !is_under_way) {
        return Decision::Keep;
    }
    match (&source.group_snapshot_handles, &source.volume_handles) {
        (Some(handles), _) => Decision::Check(handles.clone()),
        (None, Some(volumes)) => Decision::Create(volumes.clone()),
        (None, None) => Decision::Keep,
    }
}

impl Loop for GroupSnapshotter {
    fn name(&self) -> &'static str {
        "group-snapshotter"
    }

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own(self.world.cache::<VolumeGroupSnapshotContent>()),
            Watch::read(self.world.cache::<VolumeGroupSnapshotClass>()),
        ]
    }

    fn work<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Next> {
        self.sync(key).boxed()
    }
}

impl GroupSnapshotter {
    pub fn new(world: Arc<World>) -> GroupSnapshotter {
        GroupSnapshotter { world }
    }

    async fn sync(&self, key: &Key) -> Next {
        let Some(content) = self.world.get::<VolumeGroupSnapshotContent>("", &key.name) else { return Next::Done };
        if content.spec.driver != self.world.driver.name {
            return Next::Done;
        }
        if !is_here(&self.world, &content) {
            return self.adopt(&content).await;
        }
        match decide(&content) {
            Decision::Keep => Next::Done,
            Decision::Create(volumes) => self.create(&content, volumes).await,
            Decision::Check(handles) => self.check(&content, handles).await,
            Decision::Delete(handles) => self.delete(&content, handles).await,
            Decision::Release => {
                Next::from(self.world.finalizer(&content, GROUP_CONTENT_FINALIZER, false).await.map(drop))
            }
        }
    }

    /// Takes a content of existing snapshots, if this node has them.
    async fn adopt(&self, content: &VolumeGroupSnapshotContent) -> Next {
        let handles = content.spec.source.group_snapshot_handles.clone().filter(|_| !is_managed(content));
        let Some(handles) = handles else { return Next::Done };
        let request = csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: handles.volume_group_snapshot_handle,
            snapshot_ids: handles.volume_snapshot_handles,
            secrets: HashMap::new(),
        };
        adopt(&self.world, content, self.world.driver.group_snapshot(request).await.map(drop)).await
    }

    async fn create(&self, content: &VolumeGroupSnapshotContent, volumes: Vec<String>) -> Next {
        let request = match self.request(content, volumes).await {
            Ok(request) => request,
            Err(error) => return self.fail(content, &error).await,
        };
        if annotation(content, GROUP_BEING_CREATED).is_none() {
            let patch = json!({"metadata": {"annotations": {GROUP_BEING_CREATED: "yes"}}});
            if let Err(error) = self.world.patch(content, patch).await {
                return Next::from(Err(error));
            }
        }
        let settled = json!({"metadata": {"annotations": {GROUP_BEING_CREATED: null}}});
        match self.world.driver.create_group_snapshot(request).await {
            Ok(group) => {
                if let Err(error) = self.world.patch_status(content, status(content, &group)).await {
                    return Next::from(Err(error));
                }
                let settled = Next::from(self.world.patch(content, settled).await);
                if group.ready_to_use { settled } else { Next::Retry }
            }
            Err(error) => {
                if error.is_final() {
                    let _ = self.world.patch(content, settled).await;
                }
                self.fail(content, &error.to_string()).await
            }
        }
    }

    async fn request(
        &self,
        content: &VolumeGroupSnapshotContent,
        volumes: Vec<String>,
    ) -> Result<csi::CreateVolumeGroupSnapshotRequest, String> {
        let name = content.spec.volume_group_snapshot_class_name.clone().unwrap_or_default();
        let class: Option<VolumeGroupSnapshotClass> = self.world.get("", &name);
        let class = class.ok_or_else(|| format!("the VolumeGroupSnapshotClass \"{name}\" does not exist"))?;
        Ok(csi::CreateVolumeGroupSnapshotRequest {
            name: format!("groupsnapshot-{}", content.spec.volume_group_snapshot_ref.uid),
            source_volume_ids: volumes,
            secrets: self.secrets(content).await?,
            parameters: secrets::for_driver(&class.parameters)?,
        })
    }

    async fn secrets(&self, content: &VolumeGroupSnapshotContent) -> Result<HashMap<String, String>, String> {
        let secret = secrets::of_annotations(content, GROUP_DELETION_SECRET_NAME, GROUP_DELETION_SECRET_NAMESPACE);
        secrets::read(&self.world, secret.as_ref()).await
    }

    async fn check(&self, content: &VolumeGroupSnapshotContent, handles: GroupHandles) -> Next {
        let secrets = match self.secrets(content).await {
            Ok(secrets) => secrets,
            Err(error) => return self.fail(content, &error).await,
        };
        let request = csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: handles.volume_group_snapshot_handle,
            snapshot_ids: handles.volume_snapshot_handles,
            secrets,
        };
        match self.world.driver.group_snapshot(request).await {
            Ok(group) => {
                let written = Next::from(self.world.patch_status(content, status(content, &group)).await);
                if group.ready_to_use { written } else { Next::Retry }
            }
            Err(error) => self.fail(content, &error.to_string()).await,
        }
    }

    async fn delete(&self, content: &VolumeGroupSnapshotContent, handles: GroupHandles) -> Next {
        let deleted = match self.secrets(content).await {
            Ok(secrets) => {
                let request = csi::DeleteVolumeGroupSnapshotRequest {
                    group_snapshot_id: handles.volume_group_snapshot_handle,
                    snapshot_ids: handles.volume_snapshot_handles,
                    secrets,
                };
                self.world.driver.delete_group_snapshot(request).await.map_err(|error| error.to_string())
            }
            Err(error) => Err(error),
        };
        match deleted {
            Ok(()) => Next::from(self.world.finalizer(content, GROUP_CONTENT_FINALIZER, false).await.map(drop)),
            Err(error) => {
                let message = format!("Failed to delete group snapshot: {error}");
                self.world.warning(content, "GroupSnapshotDeleteError", message);
                Next::Retry
            }
        }
    }

    async fn fail(&self, content: &VolumeGroupSnapshotContent, error: &str) -> Next {
        let message = format!("Failed to create group snapshot: {error}");
        let current = content.status.as_ref().and_then(|status| status.error.as_ref());
        if current.and_then(|error| error.message.as_ref()) != Some(&message) {
            let error = json!({"message": message, "time": rfc3339(now())});
            let _ = self.world.patch_status(content, json!({"readyToUse": false, "error": error})).await;
            self.world.warning(content, "GroupSnapshotCreationFailed", message);
        }
        Next::Retry
    }
}

/// Returns the changes of a content's status by the driver's answer.
fn status(content: &VolumeGroupSnapshotContent, group: &csi::VolumeGroupSnapshot) -> Value {
    let current = content.status.clone().unwrap_or_default();
    let info = |snapshot: &csi::Snapshot| {
        let mut info = json!({
            "snapshotHandle": snapshot.snapshot_id,
            "volumeHandle": snapshot.source_volume_id,
            "creationTime": nanoseconds(snapshot.creation_time.as_ref()),
            "readyToUse": snapshot.ready_to_use,
        });
        if snapshot.size_bytes > 0 {
            info["restoreSize"] = json!(snapshot.size_bytes);
        }
        info
    };
    let mut status = json!({
        "readyToUse": group.ready_to_use,
        "error": null,
        "volumeSnapshotInfoList": group.snapshots.iter().map(info).collect::<Vec<_>>(),
    });
    if current.volume_group_snapshot_handle.is_none() {
        status["volumeGroupSnapshotHandle"] = json!(group.group_snapshot_id);
    }
    if current.creation_time.is_none() {
        let taken = Timestamp::from_nanosecond(i128::from(nanoseconds(group.creation_time.as_ref())));
        status["creationTime"] = json!(rfc3339(taken.unwrap_or_else(|_| now())));
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_taken_read_or_deleted_with_its_snapshots() {
        let shown = |line: &str| decide(&testkit_fixture::typed(&format!("vgsc c spec.deletionPolicy=Delete {line}")));
        let volumes = "spec.source.volumeHandles=[v1, v2]";
        assert_eq!(shown(volumes), Decision::Create(vec!["v1".to_owned(), "v2".to_owned()]));
        let taken = format!(
            "{volumes} status={{readyToUse: true, volumeGroupSnapshotHandle: g, \
             volumeSnapshotInfoList: [{{snapshotHandle: h, volumeHandle: v1}}]}}"
        );
        assert_eq!(shown(&taken), Decision::Keep);
        assert_eq!(shown(&format!("{taken} deleting")), Decision::Keep);
        let handles = GroupHandles {
            volume_group_snapshot_handle: "g".to_owned(),
            volume_snapshot_handles: vec!["h".to_owned()],
        };
        let let_go = format!("{taken} deleting metadata.annotations={{{GROUP_BEING_DELETED}: \"yes\"}}");
        assert_eq!(shown(&let_go), Decision::Delete(handles.clone()));
        let existing = "spec.source.groupSnapshotHandles={volumeGroupSnapshotHandle: g, volumeSnapshotHandles: [h]}";
        assert_eq!(shown(existing), Decision::Check(handles));
    }
}
