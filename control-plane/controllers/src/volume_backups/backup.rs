//! VolumeBackups: finds the node that makes a backup, or reports why none can.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use corten_client::Change;
use corten_meta::Key;
use corten_snapshots::{BACKUP_DRIVER, BACKUP_FINALIZER, READY, VolumeBackup, VolumeBackupRepository, with_condition};
use jiff::Timestamp;
use serde_json::json;

use super::ACCOUNT;
use crate::runtime::{Action, Controller, Plan, View, Watch, key_of};
use crate::snapshots::{finalizers, has_finalizer, node_of};

pub struct BackupController;

/// The reason why a backup waits.
#[derive(Clone, Debug)]
struct Wait {
    reason: &'static str,
    message: String,
}

fn wait<T>(reason: &'static str, message: impl Into<String>) -> Result<T, Wait> {
    Err(Wait { reason, message: message.into() })
}

pub struct Observed {
    backup: VolumeBackup,
    repository: Option<VolumeBackupRepository>,
    /// The node that has the claim's volume; none for an import.
    node_of_claim: Result<Option<String>, Wait>,
    /// Whether the node of the status exists.
    has_node: bool,
}

impl Controller for BackupController {
    type Observed = Observed;

    const NAME: &'static str = ACCOUNT;

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<VolumeBackup>(),
            Watch::mapped::<VolumeBackupRepository>(of_repository),
            Watch::mapped::<PersistentVolumeClaim>(of_claim),
            Watch::read::<PersistentVolume>(),
            Watch::read::<Node>(),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let backup: VolumeBackup = view.typed(key)?;
        let node = backup.status.as_ref().and_then(|status| status.node_name.clone()).unwrap_or_default();
        Some(Observed {
            repository: view.typed(&Key::new("", backup.spec.repository_name.clone())),
            node_of_claim: node_of_claim(view, &backup),
            has_node: view.typed::<Node>(&Key::new("", node)).is_some(),
            backup,
        })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        if observed.backup.metadata.deletion_timestamp.is_some() {
            return Plan::from(observed.delete());
        }
        if let Some(action) = finalizers(&observed.backup, &[BACKUP_FINALIZER], &[]) {
            return Plan::from(action);
        }
        match observed.backup.is_ready() {
            true => Plan::nothing(),
            false => Plan::from(observed.place(now)),
        }
    }
}

impl Observed {
    /// Gives the backup to a node, or reports why it waits.
    fn place(&self, now: Timestamp) -> Vec<Action> {
        let backup = &self.backup;
        let current = backup.status.as_ref().and_then(|status| status.node_name.as_deref());
        let (node, reason, message) = match self.node() {
            // The node itself reports from here on.
            Ok(node) if current == Some(&node) => return Vec::new(),
            Ok(node) => {
                let message = format!("waits for node {node}");
                (Some(node), "Assigned", message)
            }
            Err(wait) => (None, wait.reason, wait.message),
        };
        let conditions = with_condition(backup.conditions(), READY, false, reason, &message, now);
        if conditions.is_none() && node.is_none() && current.is_none() {
            return Vec::new();
        }
        let mut status = json!({"nodeName": node});
        if let Some(conditions) = conditions {
            status["conditions"] = conditions;
        }
        let mut actions = vec![Action::patch_status(backup, json!({"status": status}))];
        if node.is_none() {
            actions.insert(0, Action::warning(backup, reason, message));
        }
        actions
    }

    /// Returns the node that makes the backup.
    fn node(&self) -> Result<String, Wait> {
        let name = &self.backup.spec.repository_name;
        let Some(repository) = &self.repository else {
            return wait("RepositoryNotFound", format!("the VolumeBackupRepository {name} does not exist"));
        };
        if !repository.allows(self.backup.namespace()) {
            let namespace = self.backup.namespace();
            return wait("Forbidden", format!("the repository {name} is not for the namespace {namespace}"));
        }
        let Some(own) = repository.status.as_ref().and_then(|status| status.node_name.clone()) else {
            return wait("RepositoryNotReady", format!("the repository {name} is on no node yet"));
        };
        if !repository.is_ready() {
            let condition = repository.conditions().iter().find(|one| one.type_ == READY);
            let message = condition.map(|one| one.message.as_str()).unwrap_or_default();
            return wait("RepositoryNotReady", format!("the repository {name} is not ready: {message}"));
        }
        let Some(node) = self.node_of_claim.clone()? else { return Ok(own) };
        let place = repository.spec.directory.as_ref().and_then(|directory| directory.node_name.as_ref());
        match place.filter(|place| **place != node) {
            Some(place) => wait(
                "RepositoryUnreachable",
                format!("the volume is on node {node}, and the repository {name} is a directory of node {place} alone"),
            ),
            None => Ok(node),
        }
    }

    /// Lets an object go whose backup stays, or gives the deletion to a node that exists.
    fn delete(&self) -> Vec<Action> {
        let backup = &self.backup;
        if !has_finalizer(backup, BACKUP_FINALIZER) {
            return Vec::new();
        }
        let repository = self.repository.as_ref().filter(|_| backup.is_deleted_with_object());
        let Some(repository) = repository else {
            return finalizers(backup, &[], &[BACKUP_FINALIZER]).into_iter().collect();
        };
        let own = repository.status.as_ref().and_then(|status| status.node_name.clone());
        match own.filter(|_| !self.has_node) {
            Some(own) if backup.status.as_ref().and_then(|status| status.node_name.as_ref()) != Some(&own) => {
                vec![Action::patch_status(backup, json!({"status": {"nodeName": own}}))]
            }
            _ => Vec::new(),
        }
    }
}

/// Finds the node that has the volume of the claim; none for an import.
fn node_of_claim(view: &dyn View, backup: &VolumeBackup) -> Result<Option<String>, Wait> {
    let Some(name) = &backup.spec.source.persistent_volume_claim_name else { return Ok(None) };
    let claim: Option<PersistentVolumeClaim> = view.typed(&Key::new(backup.namespace(), name.clone()));
    let Some(claim) = claim else {
        return wait("ClaimNotFound", format!("the PersistentVolumeClaim {name} does not exist"));
    };
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    let volume: Option<PersistentVolume> = view.typed(&Key::new("", volume));
    let Some(volume) = volume else {
        return wait("ClaimNotBound", format!("the PersistentVolumeClaim {name} has no volume yet"));
    };
    let driver = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).map(|csi| csi.driver.as_str());
    if driver != Some(BACKUP_DRIVER) {
        let theirs = driver.unwrap_or("another kind of storage");
        return wait(
            "UnsupportedVolume",
            format!("the volume is of {theirs}, and only volumes of {BACKUP_DRIVER} are backed up"),
        );
    }
    match node_of(view, &volume) {
        Some(node) => Ok(Some(node)),
        None => wait("NodeNotFound", "no node has the volume".to_owned()),
    }
}

/// Returns the backups of a repository that wait, or that are being deleted.
fn of_repository(view: &dyn View, change: &Change) -> Vec<Key> {
    pending(view, "", |backup| backup.spec.repository_name == change.key.name)
}

fn of_claim(view: &dyn View, change: &Change) -> Vec<Key> {
    let is_its =
        |backup: &VolumeBackup| backup.spec.source.persistent_volume_claim_name.as_ref() == Some(&change.key.name);
    pending(view, &change.key.namespace, is_its)
}

fn pending(view: &dyn View, namespace: &str, concerns: impl Fn(&VolumeBackup) -> bool) -> Vec<Key> {
    let all: Vec<VolumeBackup> = view.all(namespace);
    let waits = |one: &&VolumeBackup| !one.is_ready() || one.metadata.deletion_timestamp.is_some();
    all.iter().filter(waits).filter(|one| concerns(one)).map(key_of).collect()
}
