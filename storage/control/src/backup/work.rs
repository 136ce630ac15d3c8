//! The loop over VolumeBackups: sends the volumes of this node, imports backups, and deletes them from repositories.

use std::cmp::Reverse;
use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use corten_meta::time::{now, rfc3339};
use corten_meta::{Key, Value};
use corten_snapshots::{BACKUP_FINALIZER, COMPLETED, READY, VolumeBackup, VolumeBackupRepository, with_condition};
use corten_storage_backup::{Header, Repository, Sent};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;
use tokio::sync::Semaphore;

use super::open::open;
use super::{Failure, VolumeData, blocking};
use crate::worker::{Loop, Next, Watch};
use crate::world::{World, has_finalizer, is_deleted};

/// The backups that a node makes at once: each reads a whole volume.
const AT_ONCE: usize = 2;
/// The earlier backups whose chunks are known to be there.
const PARENTS: usize = 2;

pub struct Backups {
    world: Arc<World>,
    data: Arc<dyn VolumeData>,
    node: String,
    permits: Semaphore,
}

impl Loop for Backups {
    fn name(&self) -> &'static str {
        "volume-backups"
    }

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own(self.world.cache::<VolumeBackup>()),
            Watch::read(self.world.cache::<VolumeBackupRepository>()),
            Watch::read(self.world.cache::<PersistentVolumeClaim>()),
            Watch::read(self.world.cache::<PersistentVolume>()),
        ]
    }

    fn work<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Next> {
        async {
            // A backup may take hours; one that is interrupted is made again.
            self.world.shutdown.run_until_cancelled(self.sync(key)).await.unwrap_or(Next::Done)
        }
        .boxed()
    }
}

impl Backups {
    pub fn new(world: Arc<World>, data: Arc<dyn VolumeData>, node: String) -> Backups {
        Backups { world, data, node, permits: Semaphore::new(AT_ONCE) }
    }

    async fn sync(&self, key: &Key) -> Next {
        let Some(backup) = self.world.get::<VolumeBackup>(&key.namespace, &key.name) else { return Next::Done };
        let node = backup.status.as_ref().and_then(|status| status.node_name.as_ref());
        if node != Some(&self.node) {
            return Next::Done;
        }
        if is_deleted(&backup) {
            return self.delete(&backup).await;
        }
        if backup.is_ready() {
            return Next::Done;
        }
        let Ok(_permit) = self.permits.acquire().await else { return Next::Done };
        // The cache may not show yet that this loop has finished the backup.
        let backup: VolumeBackup = match self.world.client.get(&key.namespace, &key.name).await {
            Ok(backup) => backup,
            Err(error) if error.is_not_found() => return Next::Done,
            Err(error) => return Next::from(Err(error)),
        };
        if backup.is_ready() || is_deleted(&backup) {
            return Next::Done;
        }
        match self.make(&backup).await {
            Ok(()) => Next::Done,
            Err(failure) => self.fail(&backup, &failure).await,
        }
    }

    async fn fail(&self, backup: &VolumeBackup, failure: &Failure) -> Next {
        let set = with_condition(backup.conditions(), READY, false, failure.reason, &failure.message, now());
        if let Some(conditions) = set {
            self.world.warning(backup, failure.reason, failure.message.clone());
            let _ = self.world.patch_status(backup, json!({"conditions": conditions})).await;
        }
        Next::Retry
    }

    async fn repository(&self, backup: &VolumeBackup) -> Result<(VolumeBackupRepository, Repository), Failure> {
        let name = &backup.spec.repository_name;
        let object: Option<VolumeBackupRepository> = self.world.get("", name);
        let object = object.ok_or_else(|| {
            Failure::new("RepositoryNotFound", format!("the VolumeBackupRepository {name} does not exist"))
        })?;
        let opened = open(&self.world, &object.spec).await?;
        Ok((object, opened))
    }

    async fn make(&self, backup: &VolumeBackup) -> Result<(), Failure> {
        let (object, repository) = self.repository(backup).await?;
        if !object.allows(backup.namespace()) {
            return Err(Failure::new("Forbidden", "the repository is not for this namespace"));
        }
        match &backup.spec.source.persistent_volume_claim_name {
            Some(claim) => self.send(backup, claim, &repository).await,
            None => self.import(backup, &object, &repository).await,
        }
    }

    /// Sends the volume of a claim to the repository.
    async fn send(&self, backup: &VolumeBackup, claim: &str, repository: &Repository) -> Result<(), Failure> {
        let handle = self.volume_of(backup.namespace(), claim)?;
        let started = rfc3339(now());
        let message = format!("node {} sends the volume", self.node);
        if let Some(conditions) = with_condition(backup.conditions(), READY, false, "InProgress", &message, now()) {
            let status = json!({"conditions": conditions, "startTime": started});
            self.world.patch_status(backup, status).await?;
        }
        let data = self.data.clone();
        let image = blocking(move || data.open(&handle)).await?;
        let header = Header {
            created: started,
            namespace: backup.namespace().to_owned(),
            claim: claim.to_owned(),
            bytes: image.bytes,
            block: image.block,
            file_system: image.file_system.clone(),
        };
        let file = image.file;
        let guard = image.guard;
        let sent = repository.back_up(backup.id(), header.clone(), file, &self.parents(backup)).await?;
        drop(guard);
        self.complete(backup, &header, Some(sent)).await
    }

    /// Returns the handle of a claim's volume.
    fn volume_of(&self, namespace: &str, claim: &str) -> Result<String, Failure> {
        let found: Option<PersistentVolumeClaim> = self.world.get(namespace, claim);
        let found = found.ok_or_else(|| {
            Failure::new("ClaimNotFound", format!("the PersistentVolumeClaim {claim} does not exist"))
        })?;
        let volume = found.spec.and_then(|spec| spec.volume_name).unwrap_or_default();
        let volume: Option<PersistentVolume> = self.world.get("", &volume);
        let csi = volume.and_then(|volume| volume.spec?.csi).filter(|csi| csi.driver == self.world.driver.name);
        csi.map(|csi| csi.volume_handle).ok_or_else(|| {
            Failure::new("ClaimNotBound", format!("the PersistentVolumeClaim {claim} has no volume of this driver"))
        })
    }

    /// Returns the ids of the newest backups of the same claim.
    fn parents(&self, backup: &VolumeBackup) -> Vec<String> {
        let is_parent = |one: &VolumeBackup| {
            one.is_ready()
                && one.namespace() == backup.namespace()
                && one.spec.repository_name == backup.spec.repository_name
                && one.spec.source.persistent_volume_claim_name == backup.spec.source.persistent_volume_claim_name
        };
        let mut earlier: Vec<VolumeBackup> = self.world.all();
        earlier.retain(is_parent);
        earlier.sort_by_key(|one| Reverse(one.status.as_ref().and_then(|status| status.completion_time.clone())));
        earlier.iter().take(PARENTS).map(|one| one.id().to_owned()).collect()
    }

    /// Makes a backup known that the repository has already.
    async fn import(
        &self,
        backup: &VolumeBackup,
        object: &VolumeBackupRepository,
        repository: &Repository,
    ) -> Result<(), Failure> {
        let manifest = repository.manifest(backup.id()).await?;
        let theirs = &manifest.header.namespace;
        if theirs != backup.namespace() && !object.spec.import_from_other_namespaces {
            let message = format!(
                "the backup is of the namespace {theirs}; the repository must have importFromOtherNamespaces for it"
            );
            return Err(Failure::new("Forbidden", message));
        }
        self.complete(backup, &manifest.header, None).await
    }

    /// Reports a backup as finished.
    async fn complete(&self, backup: &VolumeBackup, header: &Header, sent: Option<Sent>) -> Result<(), Failure> {
        let message = match sent {
            Some(sent) => format!("the volume has {} bytes of data, of which {} were sent", sent.data, sent.sent),
            None => format!("a backup of the claim {}/{}", header.namespace, header.claim),
        };
        let mode = if header.block { "Block" } else { "Filesystem" };
        let mut status: Value = json!({
            "backupID": backup.id(),
            "volumeBytes": header.bytes,
            "volumeMode": mode,
            "completionTime": rfc3339(now()),
        });
        if let Some(sent) = sent {
            status["dataBytes"] = json!(sent.data);
            status["sentBytes"] = json!(sent.sent);
        }
        if let Some(conditions) = with_condition(backup.conditions(), READY, true, COMPLETED, &message, now()) {
            status["conditions"] = conditions;
        }
        self.world.patch_status(backup, status).await?;
        self.world.normal(backup, COMPLETED, message);
        Ok(())
    }

    /// Deletes a backup from the repository, and lets its object go.
    async fn delete(&self, backup: &VolumeBackup) -> Next {
        if !has_finalizer(backup, BACKUP_FINALIZER) || !backup.is_deleted_with_object() {
            return Next::Done;
        }
        let deleted = async {
            let (_, repository) = self.repository(backup).await?;
            repository.delete(backup.id()).await?;
            self.world.finalizer(backup, BACKUP_FINALIZER, false).await?;
            Ok::<(), Failure>(())
        };
        match deleted.await {
            Ok(()) => Next::Done,
            Err(failure) => {
                let message = format!("the backup is still in the repository: {}", failure.message);
                self.fail(backup, &Failure::new("DeletionFailed", message)).await
            }
        }
    }
}
