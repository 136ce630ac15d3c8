//! Enforces the limits of volumes ([`crate::limits`]) for the pods that use them.

use corten_storage_plugin::error::{Error, Result};
use corten_storage_plugin::mounts;
use tracing::warn;

use crate::limits::{Limits, MOST_DEPTH, Throttle, group_of, pod_of};
use crate::publishing::is_of;
use crate::record::{Layout, Volume};
use crate::storage::Storage;

impl Storage {
    /// Changes the limits of a volume, also for the pods that use it.
    pub fn limit_volume(&self, id: &str, limits: Limits) -> Result<()> {
        let _held = self.locks.hold([id.to_owned()])?;
        let volume = self.volume(id)?;
        let limits = limits.check()?;
        if limits != Limits::default() && volume.content.layout == Layout::Directory {
            return Err(Error::Invalid(format!("volume {id} is a plain directory, whose I/O cannot be limited")));
        }
        let limited = Volume { limits, ..volume };
        self.update_volume(&limited)?;
        self.enforce(&limited)
    }

    /// Enforces the limits of all volumes that have some: pods start and end at any time.
    pub fn enforce_limits(&self) -> Result<()> {
        let limited = |volume: &&Volume| volume.limits != Limits::default();
        let volumes: Vec<Volume> = self.catalog().volumes.values().filter(limited).cloned().collect();
        volumes.iter().try_for_each(|volume| self.enforce(volume))
    }

    fn enforce(&self, volume: &Volume) -> Result<()> {
        let Some(throttle) = Throttle::find() else { return Ok(()) };
        let Some(device) = self.device(&volume.id)? else { return Ok(()) };
        let numbers = format!("7:{}", device.number);
        let mut pods: Vec<String> = mounts::all()?
            .iter()
            .filter(|mount| is_of(mount, &device))
            .filter_map(|mount| pod_of(&mount.target).map(str::to_owned))
            .collect();
        pods.sort_unstable();
        pods.dedup();
        for pod in pods {
            let Some(group) = group_of(throttle.root(), &pod, MOST_DEPTH) else { continue };
            for group in throttle.limited(group) {
                if let Err(error) = throttle.write(&group, &numbers, &volume.limits) {
                    warn!(%error, group = %group.display(), volume = volume.id, "the I/O of a volume is not limited");
                }
            }
        }
        Ok(())
    }
}
