//! Takes a pod's CSI volumes away: unpublished for the pod, unstaged when it was the last, and only then forgotten.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Csi;
use super::record::{self, Record};
use crate::error::Result;
use crate::volumes::teardown;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

impl Csi {
    /// Takes all CSI volumes of the pod away. What could not be taken away is still recorded, for the next try.
    pub async fn tear_down(&self, pod_dir: &Path) -> Result<()> {
        let uid = pod_dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for record in record::of_pod(pod_dir) {
            self.tear_down_volume(pod_dir, &uid, &record).await?;
        }
        let mut state = self.lock();
        state.published.retain(|(pod, _), _| *pod != uid);
        state.waiting.remove(&uid);
        let used: Vec<String> =
            state.users.iter().filter(|(_, users)| users.contains(&uid)).map(|(name, _)| name.clone()).collect();
        drop(state);
        // A volume that the pod waited for in vain has no record.
        used.iter().for_each(|name| self.set_user(name, &uid, false));
        Ok(())
    }

    async fn tear_down_volume(&self, pod_dir: &Path, uid: &str, record: &Record) -> Result<()> {
        let name = record.unique_name();
        let lock = self.volume_lock(&name);
        let _alone = lock.lock().await;
        let driver = self.driver(&record.driver)?;
        driver.unpublish(&record.handle, &record.target(&self.root_dir, pod_dir)).await?;
        let mut others = record::of_node(&self.root_dir).into_iter().filter(|(other, _)| other != pod_dir);
        let last = !others.any(|(_, other)| other.persistent && other.unique_name() == name);
        let staging = record.staging(&self.root_dir);
        if last && record.persistent && staging.exists() {
            driver.unstage(&record.handle, &staging).await?;
            record::remove_staged(record, &staging)?;
        }
        record.remove(&self.root_dir, pod_dir)?;
        self.set_user(&name, uid, false);
        self.lock().failed_expansions.remove(&name);
        Ok(())
    }
}

/// Takes away what a pod left that the API no longer knows. Its driver may register only later, so this goes on until
/// it worked or the kubelet stops.
pub async fn clean_up(csi: Arc<Csi>, pod_dir: std::path::PathBuf, stop: CancellationToken) {
    let mut wait = FIRST_RETRY;
    loop {
        let done = match csi.tear_down(&pod_dir).await {
            Ok(()) => teardown::remove(&pod_dir),
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => {
                info!(directory = %pod_dir.display(), "an orphan's volumes were removed");
                return;
            }
            Err(error) => warn!(%error, directory = %pod_dir.display(), "orphan's volumes not removed"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(LAST_RETRY),
        }
    }
}
