//! Snapshots: a VolumeSnapshotContent of the driver is carried out by CreateSnapshot, and deleted by DeleteSnapshot.
//! The snapshot controller makes the contents and binds them.
//!
//! Invariant: while the outcome of a CreateSnapshot is not known, the content has an annotation and is not let go: the
//! call is repeated until it is.

use std::collections::HashMap;
use std::sync::Arc;

use corten_api::Typed;
use corten_client::Change;
use corten_meta::time::{now, rfc3339};
use corten_meta::{Key, Value};
use corten_plugins::csi;
use corten_snapshots::names::{
    BEING_CREATED, BEING_DELETED, CONTENT_FINALIZER, DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, GROUP_HANDLE,
    MANAGED_BY,
};
use corten_snapshots::{SecretTemplate, VolumeSnapshotClass, VolumeSnapshotContent};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;
use tonic::Code;

use crate::driver::CallError;
use crate::secrets;
use crate::worker::{Loop, Next, Watch};
use crate::world::{World, annotation, has_finalizer, is_deleted};

pub struct Snapshotter {
    world: Arc<World>,
}

/// The decision about a content.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Keep,
    /// The snapshot is taken, or the call that takes it is repeated.
    Create,
    /// The state of a snapshot that exists is read.
    Check(String),
    /// The snapshot is deleted on the storage system, and then let go.
    Delete(String),
    /// The content is let go, and the snapshot stays.
    Release,
}

/// Decides about a content of the driver.
fn decide(content: &VolumeSnapshotContent) -> Decision {
    let status = content.status.clone().unwrap_or_default();
    let source = &content.spec.source;
    let is_member = annotation(content, GROUP_HANDLE).is_some() || status.volume_group_snapshot_handle.is_some();
    if is_deleted(content) && is_let_go(content) {
        return match &status.snapshot_handle {
            Some(handle) if content.is_deleted_with_snapshot() && !is_member => Decision::Delete(handle.clone()),
            _ if has_finalizer(content, CONTENT_FINALIZER) => Decision::Release,
            _ => Decision::Keep,
        };
    }
    if status.ready_to_use == Some(true) {
        return Decision::Keep;
    }
    match (&source.snapshot_handle, &source.volume_handle) {
        (Some(handle), _) => Decision::Check(handle.clone()),
        (None, Some(_)) if is_member => status.snapshot_handle.map_or(Decision::Keep, Decision::Check),
        // Without its snapshot a content that is being deleted is not carried out, unless the call has begun.
        (None, Some(_)) if is_deleted(content) && annotation(content, BEING_CREATED).is_none() => Decision::Keep,
        (None, Some(_)) => Decision::Create,
        (None, None) => Decision::Keep,
    }
}

/// Reports whether these loops handle a content, of a snapshot or of a group: those of a node handle the contents of the
/// node, by the label that the snapshot controller gives them.
pub fn is_here<K: Typed>(world: &World, content: &K) -> bool {
    let labels = content.meta().labels.as_ref();
    let node = labels.and_then(|labels| labels.get(MANAGED_BY));
    world.options.node.is_none() || world.options.node.as_ref() == node
}

/// Reports whether a content has the label of a node. One that a user made of an existing snapshot has none at first.
pub fn is_managed<K: Typed>(content: &K) -> bool {
    content.meta().labels.as_ref().is_some_and(|labels| labels.contains_key(MANAGED_BY))
}

/// Labels a content that no node manages yet, if this node has what it stands for.
pub async fn adopt<K: Typed>(world: &World, content: &K, found: Result<(), CallError>) -> Next {
    match found {
        Ok(()) => {
            let patch = json!({"metadata": {"labels": {MANAGED_BY: world.options.node}}});
            Next::from(world.patch(content, patch).await)
        }
        Err(error) if error.code == Code::NotFound => Next::Done,
        Err(error) => {
            tracing::debug!(%error, content = content.name(), "cannot look for a snapshot");
            Next::Retry
        }
    }
}

/// Reports whether the snapshot controller has let a content go that is being deleted, or never bound it.
fn is_let_go(content: &VolumeSnapshotContent) -> bool {
    let is_unbound = content.spec.source.snapshot_handle.is_some() && content.spec.volume_snapshot_ref.uid.is_empty();
    is_unbound || (annotation(content, BEING_CREATED).is_none() && annotation(content, BEING_DELETED).is_some())
}

impl Loop for Snapshotter {
    fn name(&self) -> &'static str {
        "snapshotter"
    }

    fn watches(&self) -> Vec<Watch> {
        let world = self.world.clone();
        let of_class = move |change: &Change| -> Vec<Key> {
            let contents: Vec<VolumeSnapshotContent> = world.all();
            let is_its = |one: &&VolumeSnapshotContent| {
                one.spec.volume_snapshot_class_name.as_ref() == Some(&change.key.name) && one.status.is_none()
            };
            contents.iter().filter(is_its).map(|one| Key::new("", one.name())).collect()
        };
        vec![
            Watch::own(self.world.cache::<VolumeSnapshotContent>()),
            Watch { cache: self.world.cache::<VolumeSnapshotClass>(), keys: Box::new(of_class) },
        ]
    }

    fn work<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Next> {
        self.sync(key).boxed()
    }
}

impl Snapshotter {
    pub fn new(world: Arc<World>) -> Snapshotter {
        Snapshotter { world }
    }

    async fn sync(&self, key: &Key) -> Next {
        let Some(content) = self.world.get::<VolumeSnapshotContent>("", &key.name) else { return Next::Done };
        if content.spec.driver != self.world.driver.name {
            return Next::Done;
        }
        if !is_here(&self.world, &content) {
            return self.adopt(&content).await;
        }
        match decide(&content) {
            Decision::Keep => Next::Done,
            Decision::Create => self.create(&content).await,
            Decision::Check(handle) => self.check(&content, &handle).await,
            Decision::Delete(handle) => self.delete(&content, &handle).await,
            Decision::Release => Next::from(self.world.finalizer(&content, CONTENT_FINALIZER, false).await.map(drop)),
        }
    }

    /// Takes a content of an existing snapshot, if this node has the snapshot.
    async fn adopt(&self, content: &VolumeSnapshotContent) -> Next {
        let handle = content.spec.source.snapshot_handle.clone().filter(|_| !is_managed(content));
        let Some(snapshot_id) = handle else { return Next::Done };
        let request = csi::ListSnapshotsRequest { snapshot_id, ..csi::ListSnapshotsRequest::default() };
        // A driver that cannot list its snapshots does not know on which node one is.
        let unknown = || CallError::new(Code::NotFound, "the driver lists no snapshots");
        let found = self.world.driver.find_snapshot(request).await;
        adopt(&self.world, content, found.and_then(|found| found.map(drop).ok_or_else(unknown))).await
    }

    async fn create(&self, content: &VolumeSnapshotContent) -> Next {
        let request = match self.request(content).await {
            Ok(request) => request,
            Err(error) => {
                let message = format!("Failed to create snapshot: {error}");
                return self.fail(content, "SnapshotCreationFailed", message).await;
            }
        };
        if annotation(content, BEING_CREATED).is_none() {
            let patch = json!({"metadata": {"annotations": {BEING_CREATED: "yes"}}});
            if let Err(error) = self.world.patch(content, patch).await {
                return Next::from(Err(error));
            }
        }
        match self.world.driver.create_snapshot(request).await {
            Ok(snapshot) => {
                let written = self.world.patch_status(content, status(content, &snapshot)).await;
                if let Err(error) = written {
                    return Next::from(Err(error));
                }
                let settled = self.settle(content).await;
                if snapshot.ready_to_use { settled } else { Next::Retry }
            }
            Err(error) => {
                if error.is_final() {
                    let _ = self.settle(content).await;
                }
                let volume = content.spec.source.volume_handle.clone().unwrap_or_default();
                let message =
                    format!("Failed to create snapshot: failed to take snapshot of the volume {volume}: \"{error}\"");
                self.fail(content, "SnapshotCreationFailed", message).await
            }
        }
    }

    /// Notes that the outcome of the call is known.
    async fn settle(&self, content: &VolumeSnapshotContent) -> Next {
        let patch = json!({"metadata": {"annotations": {BEING_CREATED: null}}});
        Next::from(self.world.patch(content, patch).await)
    }

    async fn request(&self, content: &VolumeSnapshotContent) -> Result<csi::CreateSnapshotRequest, String> {
        let spec = &content.spec;
        let name = spec.volume_snapshot_class_name.clone().unwrap_or_default();
        let class: Option<VolumeSnapshotClass> = self.world.get("", &name);
        let class = class.ok_or_else(|| format!("the VolumeSnapshotClass \"{name}\" does not exist"))?;
        if spec.volume_snapshot_ref.uid.is_empty() {
            return Err(format!("the content {} is not bound to a snapshot", content.name()));
        }
        Ok(csi::CreateSnapshotRequest {
            source_volume_id: spec.source.volume_handle.clone().unwrap_or_default(),
            name: format!("snapshot-{}", spec.volume_snapshot_ref.uid),
            secrets: self.secrets(content).await?,
            parameters: self.parameters(content, &class)?,
        })
    }

    /// Returns the parameters of a class, with the names of the snapshot if the driver learns them.
    fn parameters(
        &self,
        content: &VolumeSnapshotContent,
        class: &VolumeSnapshotClass,
    ) -> Result<HashMap<String, String>, String> {
        let mut parameters = secrets::for_driver(&class.parameters)?;
        if self.world.options.extra_create_metadata {
            let snapshot = &content.spec.volume_snapshot_ref;
            let names = [
                ("volumesnapshot/name", snapshot.name.as_str()),
                ("volumesnapshot/namespace", snapshot.namespace.as_str()),
                ("volumesnapshotcontent/name", content.name()),
            ];
            parameters.extend(names.map(|(key, name)| (format!("csi.storage.k8s.io/{key}"), name.to_owned())));
        }
        Ok(parameters)
    }

    async fn secrets(&self, content: &VolumeSnapshotContent) -> Result<HashMap<String, String>, String> {
        let secret = secrets::of_annotations(content, DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE);
        secrets::read(&self.world, secret.as_ref()).await
    }

    /// Reads the state of a snapshot that exists. A driver that cannot list is believed.
    async fn check(&self, content: &VolumeSnapshotContent, handle: &str) -> Next {
        let found = match self.list_secrets(content).await {
            Ok(secrets) => {
                let request = csi::ListSnapshotsRequest {
                    snapshot_id: handle.to_owned(),
                    secrets,
                    ..csi::ListSnapshotsRequest::default()
                };
                self.world.driver.find_snapshot(request).await.map_err(|error| error.to_string())
            }
            Err(error) => Err(error),
        };
        match found {
            Ok(found) => {
                let believed =
                    || csi::Snapshot { snapshot_id: handle.to_owned(), ready_to_use: true, ..csi::Snapshot::default() };
                let snapshot = found.unwrap_or_else(believed);
                let written = Next::from(self.world.patch_status(content, status(content, &snapshot)).await);
                if snapshot.ready_to_use { written } else { Next::Retry }
            }
            Err(error) => {
                let message = format!("Failed to check and update snapshot content: {error}");
                self.fail(content, "SnapshotContentCheckandUpdateFailed", message).await
            }
        }
    }

    async fn list_secrets(&self, content: &VolumeSnapshotContent) -> Result<HashMap<String, String>, String> {
        let Some(name) = &content.spec.volume_snapshot_class_name else { return self.secrets(content).await };
        let class: Option<VolumeSnapshotClass> = self.world.get("", name);
        let class = class.ok_or_else(|| format!("the VolumeSnapshotClass \"{name}\" does not exist"))?;
        let keys = [("volumesnapshotcontent.name", content.name())];
        let template = SecretTemplate { role: "snapshotter-list", namespace_keys: &keys, name_keys: &keys };
        let secret = template.resolve(&class.parameters)?;
        secrets::read(&self.world, secret.as_ref()).await
    }

    async fn delete(&self, content: &VolumeSnapshotContent, handle: &str) -> Next {
        let deleted = match self.secrets(content).await {
            Ok(secrets) => {
                let request = csi::DeleteSnapshotRequest { snapshot_id: handle.to_owned(), secrets };
                self.world.driver.delete_snapshot(request).await.map_err(|error| error.to_string())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = deleted {
            self.world.warning(content, "SnapshotDeleteError", format!("Failed to delete snapshot: {error}"));
            return Next::Retry;
        }
        // The next round lets the content go.
        let cleared = json!({"snapshotHandle": null, "readyToUse": null, "creationTime": null, "restoreSize": null});
        Next::from(self.world.patch_status(content, cleared).await)
    }

    /// Writes an error to the content, and the event, unless it is there.
    async fn fail(&self, content: &VolumeSnapshotContent, reason: &str, message: String) -> Next {
        let current = content.status.as_ref().and_then(|status| status.error.as_ref());
        if current.and_then(|error| error.message.as_ref()) != Some(&message) {
            let error = json!({"message": message, "time": rfc3339(now())});
            let _ = self.world.patch_status(content, json!({"readyToUse": false, "error": error})).await;
            self.world.warning(content, reason, message);
        }
        Next::Retry
    }
}

/// Returns the moment of a snapshot in nanoseconds.
pub fn nanoseconds(time: Option<&csi::Timestamp>) -> i64 {
    let known = time.filter(|time| time.seconds > 0);
    known.map_or_else(
        || i64::try_from(now().as_nanosecond()).unwrap_or_default(),
        |time| time.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanos)),
    )
}

/// Returns the changes of a content's status by the driver's answer. What is known stays.
fn status(content: &VolumeSnapshotContent, snapshot: &csi::Snapshot) -> Value {
    let current = content.status.clone().unwrap_or_default();
    let mut status = json!({"readyToUse": snapshot.ready_to_use, "error": null});
    if current.snapshot_handle.is_none() {
        status["snapshotHandle"] = json!(snapshot.snapshot_id);
    }
    if current.creation_time.is_none() {
        status["creationTime"] = json!(nanoseconds(snapshot.creation_time.as_ref()));
    }
    if current.restore_size.is_none() && snapshot.size_bytes > 0 {
        status["restoreSize"] = json!(snapshot.size_bytes);
    }
    if current.volume_group_snapshot_handle.is_none() && !snapshot.group_snapshot_id.is_empty() {
        status["volumeGroupSnapshotHandle"] = json!(snapshot.group_snapshot_id);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> Decision {
        decide(&testkit_fixture::typed(&format!("vsc c spec.deletionPolicy=Delete {line}")))
    }

    #[test]
    fn a_content_is_carried_out_until_it_is_ready() {
        assert_eq!(shown("spec.source.volumeHandle=v"), Decision::Create);
        assert_eq!(shown("spec.source.volumeHandle=v status={readyToUse: false, snapshotHandle: h}"), Decision::Create);
        assert_eq!(shown("spec.source.volumeHandle=v status={readyToUse: true, snapshotHandle: h}"), Decision::Keep);
        assert_eq!(shown("spec.source.snapshotHandle=h"), Decision::Check("h".to_owned()));
        let member = format!("metadata.annotations={{{GROUP_HANDLE}: g}} spec.source.volumeHandle=v");
        assert_eq!(shown(&member), Decision::Keep);
    }

    #[test]
    fn a_snapshot_is_deleted_after_the_controller_let_it_go() {
        let taken = "spec.source.volumeHandle=v status={readyToUse: true, snapshotHandle: h} deleting";
        assert_eq!(shown(taken), Decision::Keep);
        let let_go = format!("metadata.annotations={{{BEING_DELETED}: \"yes\"}} {taken}");
        assert_eq!(shown(&let_go), Decision::Delete("h".to_owned()));
        assert_eq!(
            shown(&format!("{let_go} metadata.finalizers=[{CONTENT_FINALIZER}] spec.deletionPolicy=Retain")),
            Decision::Release
        );
        let unknown = format!(
            "metadata.annotations={{{BEING_DELETED}: \"yes\", {BEING_CREATED}: \"yes\"}} spec.source.volumeHandle=v deleting"
        );
        assert_eq!(shown(&unknown), Decision::Create);
    }
}
