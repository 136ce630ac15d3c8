//! The usage of CSI volumes: each driver is queried once a minute, as upstream does.

use std::sync::Arc;
use std::time::Duration;

use corten_plugins::csi::NodeGetVolumeStatsRequest;
use corten_plugins::csi::node_service_capability::rpc::Type as Rpc;
use corten_plugins::csi::volume_usage::Unit;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{Csi, Published};
use crate::summary::{FsStats, Time};

const INTERVAL: Duration = Duration::from_secs(60);

/// Queries the drivers until shutdown.
pub async fn keep_usage(csi: Arc<Csi>, stop: CancellationToken) {
    let mut published = csi.in_use();
    loop {
        let all: Vec<((String, String), Published)> =
            csi.lock().published.iter().map(|(key, volume)| (key.clone(), volume.clone())).collect();
        for (key, volume) in all {
            match csi.query_usage(&volume).await {
                Ok(usage) => {
                    if let Some(known) = csi.lock().published.get_mut(&key) {
                        known.usage = usage;
                    }
                }
                Err(error) => debug!(%error, volume = volume.handle, "the CSI driver reports no usage"),
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            // A new volume is queried at once.
            changed = published.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

impl Csi {
    async fn query_usage(&self, volume: &Published) -> crate::error::Result<Vec<corten_plugins::csi::VolumeUsage>> {
        let driver = self.driver(&volume.driver)?;
        if !driver.abilities().await?.can(Rpc::GetVolumeStats) {
            return Ok(Vec::new());
        }
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.handle.clone(),
            volume_path: volume.path.display().to_string(),
            staging_target_path: volume.staging.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
        };
        driver.stats(request).await
    }

    /// Returns the usage of a volume that its driver reported.
    pub fn usage_of(&self, pod_uid: &str, volume: &str, time: Time) -> Option<FsStats> {
        let state = self.lock();
        let usage = &state.published.get(&(pod_uid.to_owned(), volume.to_owned()))?.usage;
        let of = |unit: Unit| usage.iter().find(|usage| usage.unit == unit as i32);
        let number = |value: i64| u64::try_from(value).ok();
        let bytes = of(Unit::Bytes)?;
        let inodes = of(Unit::Inodes);
        Some(FsStats {
            time,
            available_bytes: number(bytes.available),
            capacity_bytes: number(bytes.total),
            used_bytes: number(bytes.used),
            inodes_free: inodes.and_then(|inodes| number(inodes.available)),
            inodes: inodes.and_then(|inodes| number(inodes.total)),
            inodes_used: inodes.and_then(|inodes| number(inodes.used)),
            room_bytes: None,
        })
    }
}
