//! Writes a pod's status to the API, beside its worker: the newest status wins, those in between are never
//! sent, and a slow API server slows no container down.

use std::sync::Arc;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{Pod, PodStatus};
use corten_client::{Client, Patch};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::debug;

use super::status::status_patch;
use super::{spec, static_pods};

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// The object that carries the status: its uid, and the status that the API is known to hold.
type Target = Option<(String, PodStatus)>;

/// The worker's end.
pub struct Publisher {
    wanted: watch::Sender<(u64, PodStatus)>,
    target: watch::Sender<Target>,
    written: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Publisher {
    /// Writes to the pod itself; a static pod has nothing to write to until it is given a mirror.
    pub fn new(client: Client, pod: &Arc<Pod>) -> Publisher {
        let (wanted, wishes) = watch::channel((0, PodStatus::default()));
        let (done, written) = watch::channel(0);
        let own = (spec::uid(pod).to_owned(), spec::status(pod).clone());
        let (target, targets) = watch::channel(Some(own).filter(|_| !static_pods::is_static(pod)));
        let task = tokio::spawn(Writer { client, pod: pod.clone(), targets, wishes, done }.run());
        Publisher { wanted, target, written, task }
    }

    /// Writes to this mirror from now on, or to nothing while there is none.
    pub fn retarget(&self, mirror: Option<&Arc<Pod>>) {
        self.target.send_if_modified(|target| {
            let uid = mirror.map(|mirror| spec::uid(mirror));
            if target.as_ref().map(|(uid, _)| uid.as_str()) == uid {
                return false;
            }
            *target = mirror.map(|mirror| (spec::uid(mirror).to_owned(), spec::status(mirror).clone()));
            true
        });
    }

    /// Asks for this status to be written, in place of any that still waits.
    pub fn publish(&self, status: &PodStatus) {
        self.wanted.send_if_modified(|wanted| {
            let new = wanted.1 != *status;
            if new {
                *wanted = (wanted.0 + 1, status.clone());
            }
            new
        });
    }

    /// Waits until the last status asked for is written, or the pod is gone from the API.
    pub async fn flushed(&mut self) {
        let version = self.wanted.borrow().0;
        // The writer lives as long as this end; an error would mean it ended, and then there is no wait.
        let _ = self.written.wait_for(|written| *written >= version).await;
    }
}

struct Writer {
    client: Client,
    pod: Arc<Pod>,
    targets: watch::Receiver<Target>,
    wishes: watch::Receiver<(u64, PodStatus)>,
    done: watch::Sender<u64>,
}

impl Writer {
    async fn run(mut self) {
        let mut retry = FIRST_RETRY;
        let mut target = self.targets.borrow_and_update().clone();
        loop {
            tokio::select! {
                changed = self.wishes.changed() => if changed.is_err() { return },
                changed = self.targets.changed() => match changed {
                    Ok(()) => target = self.targets.borrow_and_update().clone(),
                    Err(_) => return,
                },
            }
            loop {
                if self.targets.has_changed().unwrap_or(false) {
                    target = self.targets.borrow_and_update().clone();
                }
                let (version, status) = self.wishes.borrow_and_update().clone();
                if version == 0 || self.write(&mut target, &status).await {
                    self.done.send_replace(version);
                    retry = FIRST_RETRY;
                    break;
                }
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(LAST_RETRY);
            }
        }
    }

    /// True when there is nothing left to do about this status.
    async fn write(&self, target: &mut Target, status: &PodStatus) -> bool {
        let (namespace, name) = (spec::namespace(&self.pod), spec::name(&self.pod));
        let Some((uid, base)) = target else { return true };
        let Some(patch) = status_patch(uid, base, status) else { return true };
        match self.client.patch::<Pod>(namespace, name, &Patch::Strategic(patch), Some("status")).await {
            Ok(pod) => {
                *base = pod.status.unwrap_or_default();
                true
            }
            // The pod is gone, or it is another pod of the same name.
            Err(error) if error.is_not_found() || error.is_conflict() => true,
            Err(error) => {
                debug!(%error, pod = %spec::describe(&self.pod), "pod status not written");
                false
            }
        }
    }
}
