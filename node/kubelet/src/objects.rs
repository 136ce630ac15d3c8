//! Watches the ConfigMaps and Secrets that pods of this node refer to, each by its name (the Node authorizer allows no
//! more), and wakes the pods when one changes. It holds no content: its readers get the object.
//!
//! Invariant: there is one watch per object for any number of pods, and none without a pod.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use corten_client::{Client, ListOptions, WatchEvent};
use futures::StreamExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::pod::waker::Waker;

const RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    ConfigMap,
    Secret,
}

/// An object that a pod refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

/// The watches of the node.
#[derive(Clone)]
pub struct Objects {
    client: Client,
    shutdown: CancellationToken,
    watched: Arc<Mutex<HashMap<Reference, Watched>>>,
    tasks: TaskTracker,
}

struct Watched {
    pods: HashMap<String, Waker>,
    stop: CancellationToken,
}

impl Objects {
    pub fn new(client: Client, shutdown: CancellationToken) -> Objects {
        Objects { client, shutdown, watched: Arc::default(), tasks: TaskTracker::new() }
    }

    /// Waits until all watches have ended, after the shutdown.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Sets the references of the pod; an empty set removes the pod.
    pub fn set(&self, pod_uid: &str, waker: &Waker, references: &HashSet<Reference>) {
        let mut watched = self.lock();
        watched.retain(|reference, entry| {
            if !references.contains(reference) {
                entry.pods.remove(pod_uid);
            }
            if entry.pods.is_empty() {
                entry.stop.cancel();
            }
            !entry.pods.is_empty()
        });
        for reference in references {
            let entry = watched.entry(reference.clone()).or_insert_with(|| {
                let stop = self.shutdown.child_token();
                self.tasks.spawn(self.clone().watch(reference.clone(), stop.clone()));
                Watched { pods: HashMap::new(), stop }
            });
            entry.pods.insert(pod_uid.to_owned(), waker.clone());
        }
    }

    pub fn forget(&self, pod_uid: &str) {
        self.set(pod_uid, &Waker::default(), &HashSet::new());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Reference, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn watch(self, reference: Reference, stop: CancellationToken) {
        let forever = async {
            loop {
                match reference.kind {
                    Kind::ConfigMap => self.watch_once::<ConfigMap>(&reference).await,
                    Kind::Secret => self.watch_once::<Secret>(&reference).await,
                }
                tokio::time::sleep(RETRY).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = forever => {}
        }
    }

    /// Runs one watch. It begins with the current object, so that no change between two watches is missed.
    async fn watch_once<K: Typed>(&self, reference: &Reference) {
        let options = ListOptions::fields(format!("metadata.name={}", reference.name));
        let Ok(mut events) = self.client.watch::<K>(&reference.namespace, &options).await else { return };
        while let Some(Ok(event)) = events.next().await {
            match event {
                WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_) => self.wake(reference),
                WatchEvent::Bookmark { .. } => {}
                WatchEvent::Error(_) => return,
            }
        }
    }

    fn wake(&self, reference: &Reference) {
        if let Some(entry) = self.lock().get(reference) {
            entry.pods.values().for_each(Waker::refresh);
        }
    }
}
