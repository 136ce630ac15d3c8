//! Writes a pod's status to the API, beside its worker: the newest status wins, older ones are not sent, and a slow API
//! server delays no container. A status that another client overwrote, as the control plane does for the pods of a lost
//! node, is written again when the kubelet sees it.

use std::sync::Arc;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{Pod, PodStatus};
use corten_client::{Client, Patch};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::debug;

use super::status::status_patch;
use crate::pod::source;
use crate::pod::spec;

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// The object that has the status.
type Target = Option<Known>;

/// The known state of the object in the API.
#[derive(Clone)]
struct Known {
    uid: String,
    /// The resourceVersion of this state.
    version: u64,
    status: PodStatus,
}

impl Known {
    fn of(pod: &Pod) -> Known {
        let version = pod.metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or(0);
        Known { uid: spec::uid(pod).to_owned(), version, status: spec::status(pod).clone() }
    }
}

/// A status to write, its number, and the pod in the API when the status was computed.
#[derive(Clone)]
struct Queued {
    number: u64,
    status: PodStatus,
    seen: Known,
}

/// The worker's handle.
pub struct Publisher {
    wanted: watch::Sender<Queued>,
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
    /// Makes a publisher for the pod itself; a static pod has no target until it has a mirror.
    pub fn new(client: Client, pod: &Arc<Pod>) -> Publisher {
        let own = Known::of(pod);
        let (wanted, wishes) = watch::channel(Queued { number: 0, status: PodStatus::default(), seen: own.clone() });
        let (done, written) = watch::channel(0);
        let (target, targets) = watch::channel(Some(own).filter(|_| !source::is_static(pod)));
        let task = tokio::spawn(Writer { client, pod: pod.clone(), targets, wishes, done }.run());
        Publisher { wanted, target, written, task }
    }

    /// Sets the mirror that the status is written to; none if there is no mirror.
    pub fn retarget(&self, mirror: Option<&Arc<Pod>>) {
        self.target.send_if_modified(|target| {
            let uid = mirror.map(|mirror| spec::uid(mirror));
            if target.as_ref().map(|known| known.uid.as_str()) == uid {
                return false;
            }
            *target = mirror.map(|mirror| Known::of(mirror));
            true
        });
    }

    /// Queues this status of the pod, in place of any that waits.
    pub fn publish(&self, pod: &Pod, status: &PodStatus) {
        let seen = Known::of(pod);
        self.wanted.send_if_modified(|wanted| {
            let new = wanted.status != *status || wanted.seen.version < seen.version;
            if new {
                *wanted = Queued { number: wanted.number + 1, status: status.clone(), seen };
            }
            new
        });
    }

    /// Waits until the last queued status is written, or the pod is deleted from the API.
    pub async fn flushed(&mut self) {
        let number = self.wanted.borrow().number;
        // The writer ends with this handle; after an error there is nothing to wait for.
        let _ = self.written.wait_for(|written| *written >= number).await;
    }
}

struct Writer {
    client: Client,
    pod: Arc<Pod>,
    targets: watch::Receiver<Target>,
    wishes: watch::Receiver<Queued>,
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
                let Queued { number, status, seen } = self.wishes.borrow_and_update().clone();
                if let Some(known) =
                    target.as_mut().filter(|known| known.uid == seen.uid && known.version < seen.version)
                {
                    *known = seen;
                }
                if number == 0 || self.write(&mut target, &status).await {
                    self.done.send_replace(number);
                    retry = FIRST_RETRY;
                    break;
                }
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(LAST_RETRY);
            }
        }
    }

    /// Writes the status; true if nothing is left to do about it.
    async fn write(&self, target: &mut Target, status: &PodStatus) -> bool {
        let namespace = spec::namespace(&self.pod);
        let name = spec::name(&self.pod);
        let Some(known) = target else { return true };
        let Some(patch) = status_patch(&known.uid, &known.status, status) else { return true };
        match self.client.patch::<Pod>(namespace, name, &Patch::Strategic(patch), Some("status")).await {
            Ok(pod) => {
                *known = Known::of(&pod);
                true
            }
            Err(error) if error.is_not_found() || error.is_conflict() => true,
            // The uid of a pod never changes, so the API refuses the status of a replaced pod as invalid.
            Err(error) if error.is_invalid() && self.is_replaced(&known.uid).await => true,
            Err(error) => {
                debug!(%error, pod = %spec::describe(&self.pod), "pod status not written");
                false
            }
        }
    }

    /// Reports whether the API has another pod with this name: the worker's pod was deleted without waiting for its
    /// node.
    async fn is_replaced(&self, uid: &str) -> bool {
        let found = self.client.get::<Pod>(spec::namespace(&self.pod), spec::name(&self.pod)).await;
        match found {
            Ok(pod) => spec::uid(&pod) != uid,
            Err(error) => error.is_not_found(),
        }
    }
}
