//! The data source of a claim: a snapshot, another claim of the same class of storage, or a backup.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, TypedLocalObjectReference};
use corten_client::Error;
use corten_meta::{Key, Quantity};
use corten_plugins::csi;
use corten_plugins::csi::controller_service_capability::rpc::Type as Rpc;
use corten_plugins::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use corten_snapshots::names::MANAGED_BY;
use corten_snapshots::{VolumeBackup, VolumeSnapshot, VolumeSnapshotContent};

use super::{CLONE_FINALIZER, Stop, request};
use crate::topology;
use crate::world::{World, annotation, is_deleted};

/// The annotation of a content by which its mode may be changed.
const MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

pub enum DataSource {
    Snapshot {
        handle: String,
        /// The one node that has the snapshot.
        node: Option<String>,
    },
    Volume {
        claim: Box<PersistentVolumeClaim>,
        handle: String,
        /// A node that reaches the volume, if this one does not.
        node: Option<String>,
    },
    /// The volume is made empty, and filled before it is published.
    Backup { backup: Box<VolumeBackup> },
}

impl DataSource {
    /// Reads the data source of a claim; none if it has none. Fails if it cannot be used.
    pub async fn read(world: &World, claim: &PersistentVolumeClaim) -> Result<Option<DataSource>, Stop> {
        let Some(source) = reference(claim) else { return Ok(None) };
        let group = source.api_group.as_deref().unwrap_or_default();
        let failed = |error: String| {
            let message =
                format!("error getting handle for DataSource Type {} by Name {}: {error}", source.kind, source.name);
            Stop::Failed(message)
        };
        match (group, source.kind.as_str()) {
            (VolumeSnapshot::GROUP, VolumeSnapshot::KIND) => {
                if !world.driver.takes_snapshots() {
                    return Err(failed("the driver does not support snapshots".to_owned()));
                }
                snapshot(world, claim, &source.name).await.map(Some).map_err(failed)
            }
            ("", PersistentVolumeClaim::KIND) => {
                if !world.driver.has(Rpc::CloneVolume) {
                    return Err(failed("the driver does not support cloning".to_owned()));
                }
                volume(world, claim, &source.name).map(Some).map_err(failed)
            }
            (VolumeBackup::GROUP, VolumeBackup::KIND) if world.options.data.is_some() => {
                backup(world, claim, &source.name).await.map(Some).map_err(failed)
            }
            _ => {
                let message = "Assuming an external populator will provision the volume";
                world.normal(claim, "Provisioning", message);
                Err(Stop::NotOurs)
            }
        }
    }

    /// Returns the source as the driver gets it; none if the driver makes an empty volume.
    pub fn content(&self) -> Option<csi::VolumeContentSource> {
        let content = match self {
            DataSource::Snapshot { handle, .. } => Type::Snapshot(SnapshotSource { snapshot_id: handle.clone() }),
            DataSource::Volume { handle, .. } => Type::Volume(VolumeSource { volume_id: handle.clone() }),
            DataSource::Backup { .. } => return None,
        };
        Some(csi::VolumeContentSource { r#type: Some(content) })
    }

    /// Returns the node of a source that only another node has.
    pub fn elsewhere(&self, world: &World) -> Option<String> {
        let here = world.options.node.as_ref()?;
        match self {
            DataSource::Snapshot { node, .. } | DataSource::Volume { node, .. } => {
                node.clone().filter(|node| node != here)
            }
            DataSource::Backup { .. } => None,
        }
    }

    /// Keeps a claim from deletion while it is cloned. A snapshot is kept by the snapshot controller.
    pub async fn protect(&self, world: &World) -> Result<(), Error> {
        match self {
            DataSource::Snapshot { .. } | DataSource::Backup { .. } => Ok(()),
            DataSource::Volume { claim, .. } => world.finalizer(&**claim, CLONE_FINALIZER, true).await.map(drop),
        }
    }
}

/// Returns the data source that a claim names, in its own namespace.
fn reference(claim: &PersistentVolumeClaim) -> Option<TypedLocalObjectReference> {
    let spec = claim.spec.as_ref()?;
    let referenced = spec.data_source_ref.as_ref().filter(|one| one.namespace.is_none());
    let referenced = referenced.map(|one| TypedLocalObjectReference {
        api_group: one.api_group.clone(),
        kind: one.kind.clone(),
        name: one.name.clone(),
    });
    spec.data_source.clone().or(referenced)
}

/// Returns the claim that another claim clones.
pub fn clones(claim: &PersistentVolumeClaim) -> Option<&str> {
    let source = claim.spec.as_ref()?.data_source.as_ref()?;
    (source.kind == PersistentVolumeClaim::KIND).then_some(source.name.as_str())
}

async fn snapshot(world: &World, claim: &PersistentVolumeClaim, name: &str) -> Result<DataSource, String> {
    let reads = |error: Error| format!("error getting snapshot {name} from api server: {error}");
    let snapshot: VolumeSnapshot = world.client.get(claim.namespace(), name).await.map_err(reads)?;
    let content = snapshot.bound_content().ok_or_else(|| format!("snapshot {name} not bound"))?;
    let content: VolumeSnapshotContent = world.client.get("", content).await.map_err(reads)?;
    check_snapshot(claim, &snapshot, &content, &world.driver.name)
}

/// Checks that a volume can be made of a snapshot.
fn check_snapshot(
    claim: &PersistentVolumeClaim,
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
    driver: &str,
) -> Result<DataSource, String> {
    let name = snapshot.name();
    if is_deleted(snapshot) {
        return Err(format!("snapshot {name} is currently being deleted"));
    }
    if !snapshot.is_ready() {
        return Err(format!("snapshot {name} is not Ready"));
    }
    if !content.is_of(snapshot) {
        return Err(format!("snapshotContent {} for snapshot {name} is bound to a different snapshot", content.name()));
    }
    if content.spec.driver != driver {
        return Err(format!("the snapshot {name} is of the driver {}, and the claim of {driver}", content.spec.driver));
    }
    let mode = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()).unwrap_or("Filesystem");
    let theirs = content.spec.source_volume_mode.as_deref();
    if theirs.is_some_and(|theirs| theirs != mode) && annotation(content, MODE_CHANGE) != Some("true") {
        return Err(format!(
            "requested volume {}/{} modifies the mode of the source volume but does not have permission to do so",
            claim.namespace(),
            claim.name()
        ));
    }
    let size = content.status.as_ref().and_then(|status| status.restore_size).unwrap_or_default();
    let requested = request::requested_bytes(claim);
    if size > requested {
        return Err(format!(
            "requested volume size {requested} is less than the size {size} for the source snapshot {name}"
        ));
    }
    let handle = content.status.as_ref().and_then(|status| status.snapshot_handle.clone());
    let handle = handle.ok_or_else(|| format!("snapshot handle {name} is not available"))?;
    let node = content.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).cloned();
    Ok(DataSource::Snapshot { handle, node })
}

async fn backup(world: &World, claim: &PersistentVolumeClaim, name: &str) -> Result<DataSource, String> {
    let reads = |error: Error| format!("error getting VolumeBackup {name} from api server: {error}");
    let backup: VolumeBackup = world.client.get(claim.namespace(), name).await.map_err(reads)?;
    check_backup(claim, backup)
}

/// Checks that a volume can be made of a backup.
fn check_backup(claim: &PersistentVolumeClaim, backup: VolumeBackup) -> Result<DataSource, String> {
    let name = backup.name().to_owned();
    if is_deleted(&backup) {
        return Err(format!("VolumeBackup {name} is currently being deleted"));
    }
    if !backup.is_ready() {
        return Err(format!("VolumeBackup {name} is not Ready"));
    }
    let status = backup.status.clone().unwrap_or_default();
    let size = status.volume_bytes.unwrap_or_default();
    let requested = request::requested_bytes(claim);
    if size > requested {
        return Err(format!("requested volume size {requested} is less than the size {size} of the backup {name}"));
    }
    let is_block = status.volume_mode.as_deref() == Some("Block");
    if is_block != request::is_block(claim) {
        return Err(format!("the backup {name} is of a volume of another volumeMode"));
    }
    Ok(DataSource::Backup { backup: Box::new(backup) })
}

fn volume(world: &World, claim: &PersistentVolumeClaim, name: &str) -> Result<DataSource, String> {
    let source: Option<PersistentVolumeClaim> = world.get(claim.namespace(), name);
    let source =
        source.ok_or_else(|| format!("error getting PVC {name} (namespace {}): not found", claim.namespace()))?;
    let bound = source.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    let volume: Option<PersistentVolume> = world.cache::<PersistentVolume>().typed(&Key::new("", bound));
    let node = volume.as_ref().and_then(|volume| topology::other_node(world, volume));
    let source = check_volume(claim, source, volume, &world.driver.name)?;
    Ok(match source {
        DataSource::Volume { claim, handle, .. } => DataSource::Volume { claim, handle, node },
        other => other,
    })
}

/// Checks that a claim can be cloned.
fn check_volume(
    claim: &PersistentVolumeClaim,
    source: PersistentVolumeClaim,
    volume: Option<PersistentVolume>,
    driver: &str,
) -> Result<DataSource, String> {
    let name = source.name().to_owned();
    let phase = source.status.as_ref().and_then(|status| status.phase.as_deref());
    let Some(volume) = volume.filter(|_| phase == Some("Bound")) else {
        return Err(format!("the PVC {name} is not bound yet"));
    };
    if is_deleted(&source) {
        return Err(format!("the PVC DataSource {name} is currently being deleted"));
    }
    let spec = volume.spec.unwrap_or_default();
    let csi = spec.csi.filter(|csi| csi.driver == driver);
    let csi = csi.ok_or_else(|| format!("the source volume of the PVC {name} is not of the driver {driver}"))?;
    let capacity = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
    let size = capacity.and_then(|size| Quantity::parse(&size.0).ok()).map_or(0, |size| size.value());
    let requested = request::requested_bytes(claim);
    if requested < size {
        return Err(format!(
            "error, new PVC request must be greater than or equal in size to the specified PVC data source, requested {requested} but source is {size}"
        ));
    }
    if request::is_block(claim) != request::is_block(&source) {
        return Err("Source and target volume modes do not match".to_owned());
    }
    Ok(DataSource::Volume { claim: Box::new(source), handle: csi.volume_handle, node: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_snapshot(claim: &str, snapshot: &str, content: &str) -> String {
        let result = check_snapshot(
            &testkit_fixture::typed(claim),
            &testkit_fixture::typed(snapshot),
            &testkit_fixture::typed(content),
            "d",
        );
        match result {
            Ok(DataSource::Snapshot { handle, node }) => match node {
                Some(node) => format!("{handle} on {node}"),
                None => handle,
            },
            Ok(_) => "another source".to_owned(),
            Err(error) => error,
        }
    }

    #[test]
    fn a_volume_is_made_of_a_ready_snapshot_that_fits() {
        let claim = "pvc copy size=1Gi";
        let ready = "vs s uid=u1 status={readyToUse: true, boundVolumeSnapshotContentName: c}";
        let content = "vsc c spec={driver: d, volumeSnapshotRef: {namespace: default, name: s, uid: u1}, \
                       sourceVolumeMode: Filesystem} status={snapshotHandle: h, restoreSize: 1073741824}";
        assert_eq!(of_snapshot(claim, ready, content), "h");
        let labels = format!("metadata.labels={{{MANAGED_BY}: n1}}");
        assert_eq!(of_snapshot(claim, ready, &format!("{content} {labels}")), "h on n1");
        assert_eq!(of_snapshot(claim, "vs s uid=u1", content), "snapshot s is not Ready");
        assert!(of_snapshot("pvc copy size=1Mi", ready, content).contains("is less than the size"));
        assert!(of_snapshot("pvc copy size=1Gi volumeMode=Block", ready, content).contains("modifies the mode"));
        let foreign = content.replace("driver: d", "driver: e");
        assert!(of_snapshot(claim, ready, &foreign).contains("is of the driver e"));
        assert!(of_snapshot(claim, &ready.replace("uid=u1", "uid=u2"), content).contains("a different snapshot"));
    }

    #[test]
    fn a_volume_is_made_of_a_finished_backup_that_fits() {
        let check = |claim: &str, backup: &str| {
            let made = check_backup(&testkit_fixture::typed(claim), testkit_fixture::typed(backup));
            made.err().unwrap_or_default()
        };
        let ready = "vb b status={conditions: [{type: Ready, status: \"True\", reason: Completed, message: \"\", \
                     lastTransitionTime: \"2026-01-01T00:00:00Z\"}], volumeBytes: 1073741824, volumeMode: Filesystem}";
        assert_eq!(check("pvc copy size=1Gi", ready), "");
        assert_eq!(check("pvc copy size=1Gi", "vb b"), "VolumeBackup b is not Ready");
        assert!(check("pvc copy size=1Mi", ready).contains("is less than the size"));
        assert!(check("pvc copy size=1Gi volumeMode=Block", ready).contains("another volumeMode"));
    }

    #[test]
    fn a_bound_claim_of_the_driver_is_cloned() {
        let check = |claim: &str, source: &str, volume: Option<&str>| {
            let volume = volume.map(testkit_fixture::typed);
            match check_volume(&testkit_fixture::typed(claim), testkit_fixture::typed(source), volume, "d") {
                Ok(DataSource::Volume { handle, .. }) => handle,
                Ok(_) => "another source".to_owned(),
                Err(error) => error,
            }
        };
        let bound = "pvc data volume=v phase=Bound";
        let volume = "pv v csi.driver=d csi.volumeHandle=h capacity.storage=1Gi";
        assert_eq!(check("pvc copy size=2Gi", bound, Some(volume)), "h");
        assert!(check("pvc copy size=1Mi", bound, Some(volume)).contains("must be greater"));
        assert!(check("pvc copy size=2Gi", "pvc data phase=Pending", Some(volume)).contains("not bound"));
        assert!(check("pvc copy size=2Gi", bound, None).contains("not bound"));
        let foreign = "pv v csi.driver=e csi.volumeHandle=h capacity.storage=1Gi";
        assert!(check("pvc copy size=2Gi", bound, Some(foreign)).contains("not of the driver d"));
    }
}
