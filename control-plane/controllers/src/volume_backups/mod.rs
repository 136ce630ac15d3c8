//! Volume backups: finds the node that makes each backup, makes backups by schedule, and deletes the oldest. And volumes
//! with a copy on another node: chooses and promotes it.
//!
//! The nodes read and write the data ([ADR 45](../../../docs/adr/0045-volume-backups-are-chunks-and-manifests.md)): a
//! node handles the VolumeBackups and repositories whose status names it. This controller does the rest, and reports why
//! a backup cannot begin.
//!
//! The kinds are custom resources. The controllers begin when the API server serves them.

mod backup;
mod replica;
mod repository;
mod schedule;

pub use replica::ACCOUNT as REPLICA_ACCOUNT;

use std::sync::Arc;

use corten_client::{Caches, Metrics, WorkQueue};
use corten_meta::Key;
use tokio_util::sync::CancellationToken;

use crate::runtime::{self, Clients, Decide};
use crate::snapshots;

/// The service account of the controllers.
pub const ACCOUNT: &str = "volume-backup-controller";

/// Returns the controllers with the names of their queues.
pub fn controllers() -> Vec<(&'static str, Arc<dyn Decide>)> {
    vec![
        ("volume_backup", Arc::new(backup::BackupController)),
        ("volume_backup_repository", Arc::new(repository::RepositoryController)),
        ("volume_backup_schedule", Arc::new(schedule::ScheduleController)),
        ("volume_replica", Arc::new(replica::ReplicaController)),
    ]
}

/// Installs the kinds, and runs the controllers until shutdown.
pub async fn run(caches: &Caches, clients: &Clients, metrics: &Metrics, shutdown: CancellationToken) {
    let definitions = corten_snapshots::backup_definitions();
    if !snapshots::installed(&clients(ACCOUNT), &definitions, &shutdown).await {
        return;
    }
    let queued =
        |(name, controller)| -> (WorkQueue<Key>, Arc<dyn Decide>) { (WorkQueue::named(metrics, name), controller) };
    runtime::run(controllers().into_iter().map(queued).collect(), caches, clients, metrics, shutdown).await;
}
