//! Unmounts a pod's CSI volumes: unpublishes them for the pod, removes their records, and unstages a volume without a
//! user. A failed unstage is retried until it succeeds, also after a restart; the pod does not wait for it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::record::{self, Record};
use super::{Csi, LEFT_STAGED};
use crate::error::Result;
use crate::volumes::teardown;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

impl Csi {
    /// Unmounts all CSI volumes of the pod. A volume that failed keeps its record, for the next attempt.
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
        record.remove(&self.root_dir, pod_dir)?;
        if record.persistent && !self.others_use(record, pod_dir) {
            self.unstage_or_leave(record).await;
        }
        self.set_user(&name, uid, false);
        self.lock().failed_expansions.remove(&name);
        Ok(())
    }

    /// Reports whether another pod of the node has a record of the volume.
    pub(super) fn others_use(&self, record: &Record, pod_dir: &Path) -> bool {
        let name = record.unique_name();
        let mut others = record::of_node(&self.root_dir).into_iter().filter(|(other, _)| other != pod_dir);
        others.any(|(_, other)| other.persistent && other.unique_name() == name)
    }

    /// Unstages the volume; a failure is retried in the background, and the volume counts as in use until then.
    async fn unstage_or_leave(&self, record: &Record) {
        if let Err(error) = self.unstage(record).await {
            warn!(%error, volume = record.handle, "volume not unstaged");
            self.set_user(&record.unique_name(), LEFT_STAGED, true);
            self.left_staged.notify_one();
        }
    }

    /// Unstages a volume that no pod uses. The caller holds the volume's lock.
    async fn unstage(&self, record: &Record) -> Result<()> {
        let staging = record.staging(&self.root_dir);
        if staging.exists() {
            self.driver(&record.driver)?.unstage(&record.handle, &staging).await?;
            record::remove_staged(record, &staging)?;
        }
        self.set_user(&record.unique_name(), LEFT_STAGED, false);
        Ok(())
    }

    /// Retries the volumes that could not be unstaged; returns whether none is left.
    async fn unstage_left(&self) -> bool {
        let mut done = true;
        for record in record::staged(&self.root_dir) {
            let lock = self.volume_lock(&record.unique_name());
            let _alone = lock.lock().await;
            if self.others_use(&record, Path::new("")) {
                continue;
            }
            if let Err(error) = self.unstage(&record).await {
                warn!(%error, volume = record.handle, "volume not unstaged");
                done = false;
            }
        }
        done
    }
}

/// Unstages the volumes that pods left staged, until shutdown.
pub async fn keep_unstaging(csi: Arc<Csi>, stop: CancellationToken) {
    let mut wait = FIRST_RETRY;
    loop {
        let done = csi.unstage_left().await;
        let pause = tokio::time::sleep(wait);
        tokio::select! {
            () = stop.cancelled() => return,
            () = csi.left_staged.notified(), if done => wait = FIRST_RETRY,
            () = pause, if !done => wait = (wait * 2).min(LAST_RETRY),
        }
    }
}

/// Unmounts the volumes of a pod that was deleted from the API. Its driver may register later, so this is retried until
/// it succeeds or the kubelet stops.
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
