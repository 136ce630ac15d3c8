//! Fills a new volume from a backup, before any pod can see it.

use corten_api::Typed;
use corten_snapshots::{VolumeBackup, VolumeBackupRepository};

use super::open::open;
use super::{Failure, blocking};
use crate::world::World;

/// Fills a volume. One that has its content already stays as it is, so that the call may be repeated.
pub async fn restore(world: &World, backup: &VolumeBackup, volume: &str) -> Result<(), String> {
    let filling = fill(world, backup, volume);
    match world.shutdown.run_until_cancelled(filling).await {
        Some(filled) => filled.map_err(|failure| format!("cannot restore {}: {}", backup.name(), failure.message)),
        None => Err("the node stops".to_owned()),
    }
}

async fn fill(world: &World, backup: &VolumeBackup, volume: &str) -> Result<(), Failure> {
    let Some(data) = world.options.data.clone() else {
        return Err(Failure::new("UnsupportedVolume", "the driver's volumes cannot be filled"));
    };
    let volume = volume.to_owned();
    let Some(filling) = blocking(move || data.fill(&volume)).await? else { return Ok(()) };
    let name = &backup.spec.repository_name;
    let object: VolumeBackupRepository = world.client.get("", name).await?;
    let repository = open(world, &object.spec).await?;
    let header = repository.restore(backup.id(), filling.file).await?;
    let commit = filling.commit;
    blocking(move || commit(header.file_system.as_deref(), header.bytes)).await
}
