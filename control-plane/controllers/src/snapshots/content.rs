//! Contents: a content that is bound to a snapshot has a finalizer, until the driver's part has deleted the snapshot on
//! the storage system.

use corten_meta::Key;
use corten_snapshots::names::{CONTENT_FINALIZER, GROUP_CONTENT_FINALIZER};
use corten_snapshots::{VolumeGroupSnapshotContent, VolumeSnapshotContent};
use jiff::Timestamp;

use super::ACCOUNT;
use super::status::finalizers;
use crate::runtime::{Action, Controller, Plan, View, Watch};

pub struct ContentController;
pub struct GroupContentController;

impl Controller for ContentController {
    type Observed = VolumeSnapshotContent;

    const NAME: &'static str = ACCOUNT;

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<VolumeSnapshotContent>()]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<VolumeSnapshotContent> {
        view.typed(key)
    }

    fn reconcile(&self, content: &VolumeSnapshotContent, _now: Timestamp) -> Plan {
        let source = &content.spec.source;
        if source.volume_handle.is_some() == source.snapshot_handle.is_some() {
            let message = "Exactly one of VolumeHandle and SnapshotHandle should be specified";
            return Plan::from(Action::warning(content, "ContentValidationError", message));
        }
        let is_bound = !content.spec.volume_snapshot_ref.uid.is_empty();
        if !is_bound || content.metadata.deletion_timestamp.is_some() {
            return Plan::nothing();
        }
        finalizers(content, &[CONTENT_FINALIZER], &[]).map(Plan::from).unwrap_or_default()
    }
}

impl Controller for GroupContentController {
    type Observed = VolumeGroupSnapshotContent;

    const NAME: &'static str = ACCOUNT;

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<VolumeGroupSnapshotContent>()]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<VolumeGroupSnapshotContent> {
        view.typed(key)
    }

    fn reconcile(&self, content: &VolumeGroupSnapshotContent, _now: Timestamp) -> Plan {
        let source = &content.spec.source;
        if source.volume_handles.is_some() == source.group_snapshot_handles.is_some() {
            let message = "Exactly one of GroupSnapshotHandles and VolumeHandles should be specified";
            return Plan::from(Action::warning(content, "GroupContentValidationError", message));
        }
        let is_bound = !content.spec.volume_group_snapshot_ref.uid.is_empty();
        if !is_bound || content.metadata.deletion_timestamp.is_some() {
            return Plan::nothing();
        }
        finalizers(content, &[GROUP_CONTENT_FINALIZER], &[]).map(Plan::from).unwrap_or_default()
    }
}
