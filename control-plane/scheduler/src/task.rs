//! The task that owns all state of the scheduler, and its one loop: hear what changed, place what waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use corten_api::decode_object;
use corten_api::k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use corten_client::{Caches, Change, Client, Subscription};
use corten_meta::Key;
use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::cycle::{self, Nominated, Rejection, Rotation};
use crate::framework::{ClusterEvent, Verdict};
use crate::outcome::{Outcomes, Placed};
use crate::plugins::PLUGINS;
use crate::queue::{Entry, Queue};
use crate::rows::{PodRow, Snapshot};

/// The most requests to the API under way at once.
const MAX_IN_FLIGHT: usize = 256;

pub async fn run(config: &Config, client: Client, shutdown: CancellationToken) {
    let caches = Caches::new(client.clone(), shutdown.clone());
    let (pods, nodes, namespaces) = (caches.of::<Pod>(), caches.of::<Node>(), caches.of::<Namespace>());
    pods.synced().await;
    nodes.synced().await;
    namespaces.synced().await;
    let task = Task {
        scheduler_name: config.scheduler_name.clone(),
        pods: pods.subscribe(),
        nodes: nodes.subscribe(),
        namespaces: namespaces.subscribe(),
        outcomes: Outcomes::new(client, &config.scheduler_name),
        snapshot: Snapshot::default(),
        queue: Queue::default(),
        assumed: HashMap::new(),
        nominated: Nominated::default(),
        rotation: Rotation::new(config.seed),
        in_flight: JoinSet::new(),
    };
    task.run(shutdown).await;
    caches.ended().await;
}

/// How a request that went out beside the task ended.
enum Finished {
    Bound(Placed),
    BindingFailed(Placed),
    Other,
}

struct Task {
    scheduler_name: String,
    pods: Subscription,
    nodes: Subscription,
    namespaces: Subscription,
    outcomes: Outcomes,
    snapshot: Snapshot,
    queue: Queue,
    /// Pods that count as placed although the cache does not show it yet.
    assumed: HashMap<String, Arc<PodRow>>,
    nominated: Nominated,
    rotation: Rotation,
    in_flight: JoinSet<Finished>,
}

impl Task {
    async fn run(mut self, shutdown: CancellationToken) {
        loop {
            self.hear_all();
            let now = corten_meta::time::now();
            if self.in_flight.len() < MAX_IN_FLIGHT
                && let Some(entry) = self.queue.pop(now)
            {
                self.schedule_one(entry, now);
                // Give way, so that a long queue does not keep the bindings waiting.
                tokio::task::yield_now().await;
                continue;
            }
            let wait = self.until_deadline(now);
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(change) = self.nodes.next() => self.node_changed(&change),
                Some(change) = self.pods.next() => self.pod_changed(&change),
                Some(change) = self.namespaces.next() => self.namespace_changed(&change),
                Some(finished) = self.in_flight.join_next() => self.finished(finished),
                () = tokio::time::sleep(wait) => {}
            }
        }
        while self.in_flight.join_next().await.is_some() {}
    }

    fn until_deadline(&self, now: Timestamp) -> Duration {
        let deadline = self.queue.next_deadline().map(|at| at.duration_since(now).try_into().unwrap_or(Duration::ZERO));
        deadline.unwrap_or(Duration::from_secs(3600))
    }

    /// Everything that is known by now counts before the next pod is placed. Nodes first: pods are put on them.
    fn hear_all(&mut self) {
        while let Some(change) = self.namespaces.try_next() {
            self.namespace_changed(&change);
        }
        while let Some(change) = self.nodes.try_next() {
            self.node_changed(&change);
        }
        while let Some(change) = self.pods.try_next() {
            self.pod_changed(&change);
        }
        while let Some(finished) = self.in_flight.try_join_next() {
            self.finished(finished);
        }
    }

    fn namespace_changed(&mut self, change: &Change) {
        match &change.new {
            Some(namespace) => {
                self.snapshot.namespaces.insert(change.key.name.clone(), namespace.header.labels.clone())
            }
            None => self.snapshot.namespaces.remove(&change.key.name),
        };
        self.queue.wake(ClusterEvent::NamespaceChanged, corten_meta::time::now());
    }

    fn node_changed(&mut self, change: &Change) {
        let now = corten_meta::time::now();
        let Some(node) = change.new.as_ref().and_then(|object| decode_object::<Node>(object).ok()) else {
            return self.snapshot.remove_node(&change.key.name);
        };
        let known = self.snapshot.node(&change.key.name).is_some();
        let relevant = self.snapshot.set_node(node);
        match (known, relevant) {
            (false, _) => self.queue.wake(ClusterEvent::NodeAdded, now),
            (true, true) => self.queue.wake(ClusterEvent::NodeUpdated, now),
            (true, false) => {}
        }
    }

    fn pod_changed(&mut self, change: &Change) {
        let now = corten_meta::time::now();
        if let Some(old) = &change.old
            && change.new.as_ref().is_none_or(|new| new.header.uid != old.header.uid)
        {
            self.forget(&old.header.uid, now);
        }
        let Some(pod) = change.new.as_ref().and_then(|object| decode_object::<Pod>(object).ok()) else { return };
        let row = Arc::new(PodRow::from_pod(pod));
        if row.terminal {
            return self.forget(&row.uid, now);
        }
        if !row.node_name.is_empty() {
            return self.placed(row, now);
        }
        let ours = row.scheduler_name == self.scheduler_name && !row.terminating;
        if !ours {
            self.queue.remove(&row.uid);
            self.drop_nomination(&row.uid);
        } else if !self.assumed.contains_key(&row.uid) && !self.queue.refresh(&row) {
            self.enqueue(row, now);
        }
    }

    fn enqueue(&mut self, row: Arc<PodRow>, now: Timestamp) {
        if self.queue.add(row.clone(), now).is_some() {
            let gated = self.outcomes.gated(row);
            self.in_flight.spawn(async move {
                gated.await;
                Finished::Other
            });
        }
    }

    fn placed(&mut self, row: Arc<PodRow>, now: Timestamp) {
        self.assumed.remove(&row.uid);
        self.queue.remove(&row.uid);
        self.drop_nomination(&row.uid);
        self.snapshot.add_pod(row);
        self.queue.wake(ClusterEvent::PodPlaced, now);
    }

    /// A pod that ended or is gone.
    fn forget(&mut self, uid: &str, now: Timestamp) {
        self.assumed.remove(uid);
        self.queue.remove(uid);
        self.drop_nomination(uid);
        if self.snapshot.remove_pod(uid).is_some() {
            self.queue.wake(ClusterEvent::PodRemoved, now);
        }
    }

    fn drop_nomination(&mut self, uid: &str) {
        self.nominated.retain(|_, pods| {
            pods.retain(|pod| pod.uid != uid);
            !pods.is_empty()
        });
    }

    /// The scheduling cycle of one pod.
    fn schedule_one(&mut self, entry: Entry, now: Timestamp) {
        match cycle::schedule(&mut self.snapshot, &entry.pod, &self.nominated, &mut self.rotation) {
            Ok(node) => self.assume_and_bind(entry, node),
            Err(rejection) => self.reject(entry, rejection, now),
        }
    }

    /// Reserve, permit, bind: from here on the pod counts as placed, and the answer of the API is awaited beside.
    fn assume_and_bind(&mut self, entry: Entry, node: String) {
        let vetoed = self.snapshot.node(&node).and_then(|row| {
            PLUGINS.iter().find(|(plugin, _)| {
                plugin.reserve(&entry.pod, row) != Verdict::Fits || plugin.permit(&entry.pod, row) != Verdict::Fits
            })
        });
        if let Some((plugin, _)) = vetoed {
            return self.queue.put_back(entry, vec![plugin.name()]);
        }
        let mut row = (*entry.pod).clone();
        row.node_name = node.clone();
        let row = Arc::new(row);
        self.assumed.insert(row.uid.clone(), row.clone());
        self.drop_nomination(&row.uid);
        self.snapshot.add_pod(row);
        let binding = self.outcomes.bind(Placed { entry, node });
        self.in_flight.spawn(async move {
            match binding.await {
                Ok(placed) => Finished::Bound(placed),
                Err(placed) => Finished::BindingFailed(placed),
            }
        });
    }

    fn finished(&mut self, finished: Result<Finished, tokio::task::JoinError>) {
        match finished {
            Ok(Finished::BindingFailed(placed)) => {
                let uid = placed.entry.pod.uid.clone();
                if self.assumed.remove(&uid).is_some() {
                    self.snapshot.remove_pod(&uid);
                    self.queue.put_back(placed.entry, Vec::new());
                }
            }
            Ok(Finished::Bound(placed)) => tracing::debug!(pod = %placed.entry.pod.key, node = placed.node, "bound"),
            Ok(Finished::Other) => {}
            Err(error) => tracing::error!(%error, "a request of the scheduler ended badly"),
        }
    }

    /// No node: make room if that helps, tell why, and wait for a change.
    fn reject(&mut self, entry: Entry, rejection: Rejection, now: Timestamp) {
        let row = entry.pod.clone();
        let Rejection { message, plugins, preemption } = rejection;
        let mut nominated = None;
        if let Some(room) = &preemption {
            let mut claimant = (*row).clone();
            claimant.nominated = room.node.clone();
            self.drop_nomination(&row.uid);
            self.nominated.entry(room.node.clone()).or_default().push(Arc::new(claimant.clone()));
            nominated = Some(claimant);
        }
        let mut entry = entry;
        if let Some(claimant) = nominated {
            entry.pod = Arc::new(claimant);
        }
        self.queue.put_back(entry, plugins);
        let told = self.outcomes.unschedulable(row, message, preemption, now);
        self.in_flight.spawn(async move {
            told.await;
            Finished::Other
        });
    }
}

/// The key of a pod as `namespace/name`, as events spell it.
pub fn full_name(key: &Key) -> String {
    format!("{}/{}", key.namespace, key.name)
}
