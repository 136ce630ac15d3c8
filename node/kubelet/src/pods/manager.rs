//! Keeps one worker per pod that is bound to this node, and wakes it after changes in the API or the runtime. It
//! decides nothing about a pod, except that a pod which is not in the API must be removed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use corten_api::decode_object;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::{Cache, Change};
use corten_meta::Object;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::{info, warn};

use super::runtime_changes::{self, RuntimeChange};
use super::worker::{Desired, Worker};
use super::{admit, mirror};
use crate::cri::Runtime;
use crate::error::Result;
use crate::pod::labels;
use crate::pod::source;
use crate::pod::spec;
use crate::pod::view::Views;
use crate::pod::waker::Waker;
use crate::services::Services;

/// The number of container events that wait; a full queue only delays the runtime.
const EVENT_QUEUE: usize = 256;

pub struct Manager {
    services: Arc<Services>,
    views: Views,
    shutdown: CancellationToken,
    workers: HashMap<String, Handle>,
    /// The uid of the pod that has the name now.
    by_name: HashMap<corten_meta::Key, String>,
    /// The static pods of the node's current manifests.
    found: Vec<Arc<Pod>>,
    /// The uids of the static pods that have a worker.
    static_pods: HashMap<corten_meta::Key, String>,
    /// The mirror pods in the API.
    mirrors: HashMap<corten_meta::Key, Arc<Pod>>,
    tasks: JoinSet<String>,
    /// The removals of earlier pods that are in progress.
    cleaning: TaskTracker,
}

struct Handle {
    desired: watch::Sender<Desired>,
    waker: Waker,
}

impl Manager {
    pub fn new(services: Arc<Services>, views: Views, shutdown: CancellationToken) -> Manager {
        Manager {
            services,
            views,
            shutdown,
            workers: HashMap::new(),
            by_name: HashMap::new(),
            found: Vec::new(),
            static_pods: HashMap::new(),
            mirrors: HashMap::new(),
            tasks: JoinSet::new(),
            cleaning: TaskTracker::new(),
        }
    }

    /// Follows the pods of the cache until shutdown.
    pub async fn run(mut self, pods: Arc<Cache>, mut static_pods: watch::Receiver<Vec<Arc<Pod>>>) {
        let (news, mut runtime_changes) = mpsc::channel(EVENT_QUEUE);
        let runtime = self.services.runtime.client.clone();
        let listener = tokio::spawn(runtime_changes::listen(runtime, news, self.shutdown.clone()));
        let _listener = AbortOnDropHandle::new(listener);
        tokio::select! {
            () = self.shutdown.cancelled() => return,
            () = pods.synced() => {}
        }
        self.hold_allocations(&pods);
        self.found = static_pods.borrow_and_update().clone();
        self.static_changed();
        self.remove_orphans(&pods).await;
        let mut changes = pods.subscribe();
        let mut shared_cpus = self.services.resources.cpus.shared();
        let mut relist = tokio::time::interval(self.services.config.relist_interval);
        relist.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => break,
                change = changes.next() => match change {
                    Some(change) => self.pod_changed(&change),
                    None => break,
                },
                Ok(()) = static_pods.changed() => {
                    self.found = static_pods.borrow_and_update().clone();
                    self.static_changed();
                }
                // Containers in the shared pool get its new CPUs.
                Ok(()) = shared_cpus.changed() => self.runtime_changed(&RuntimeChange::All),
                Some(news) = runtime_changes.recv() => self.runtime_changed(&news),
                _ = relist.tick() => self.runtime_changed(&RuntimeChange::All),
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => self.worker_ended(ended),
            }
        }
        while self.tasks.join_next().await.is_some() {}
        self.cleaning.close();
        self.cleaning.wait().await;
    }

    /// Keeps the resources of pods that were here before this kubelet, whichever worker begins first.
    fn hold_allocations(&self, pods: &Cache) {
        let known = pods.all().into_iter().filter_map(|object| decode_object::<Pod>(&object).ok());
        known.filter(admit::was_admitted).for_each(|pod| self.services.resources.allocations.hold(&pod));
    }

    /// Starts new static pods and terminates those whose manifest was removed or changed. A pod whose manifest has
    /// changed terminates before its successor starts: they share a name, and may share ports.
    fn static_changed(&mut self) {
        let found = self.found.clone();
        let is_there = |uid: &str| found.iter().any(|pod| spec::uid(pod) == uid);
        let gone: Vec<String> = self.static_pods.values().filter(|uid| !is_there(uid)).cloned().collect();
        gone.iter().for_each(|uid| self.pod_deleted(uid));
        for pod in found.iter() {
            let key = corten_meta::Key { namespace: spec::namespace(pod).into(), name: spec::name(pod).into() };
            let uid = spec::uid(pod).to_owned();
            let taken = self.static_pods.get(&key).is_some_and(|known| self.workers.contains_key(known));
            if taken || self.workers.contains_key(&uid) {
                continue;
            }
            let mirror = self.mirrors.get(&key).cloned();
            self.static_pods.insert(key, uid.clone());
            self.start_worker(uid, Desired { pod: pod.clone(), gone: false, mirror });
        }
    }

    /// Handles a created, changed or deleted mirror pod. A mirror without a static pod is deleted.
    fn mirror_changed(&mut self, key: &corten_meta::Key, mirror: Option<Arc<Pod>>) {
        match &mirror {
            Some(pod) => drop(self.mirrors.insert(key.clone(), pod.clone())),
            None => drop(self.mirrors.remove(key)),
        }
        let handle = self.static_pods.get(key).and_then(|uid| self.workers.get(uid));
        if let Some(handle) = handle {
            handle.desired.send_modify(|desired| desired.mirror = mirror);
            handle.waker.wake();
        } else if let Some(orphan) = mirror {
            let services = self.services.clone();
            let shutdown = self.shutdown.clone();
            self.cleaning.spawn(async move {
                let deleted = tokio::select! {
                    () = shutdown.cancelled() => return,
                    deleted = mirror::delete(&services, &orphan) => deleted,
                };
                if let Err(error) = deleted {
                    warn!(%error, pod = %spec::describe(&orphan), "a mirror pod without a static pod was not deleted");
                }
            });
        }
    }

    fn pod_changed(&mut self, change: &Change) {
        let pod = change.new.as_ref().and_then(|object| decode_object::<Pod>(object).ok());
        let shows = pod.filter(source::is_mirror);
        if shows.is_some() || self.mirrors.contains_key(&change.key) {
            self.mirror_changed(&change.key, shows.map(Arc::new));
            if change.new.is_none() || self.mirrors.contains_key(&change.key) {
                return;
            }
        }
        let known = self.by_name.get(&change.key).cloned();
        let current = change.new.as_ref().map(|object| object.header.uid.clone());
        if let Some(known) = known.filter(|known| current.as_ref() != Some(known)) {
            self.by_name.remove(&change.key);
            self.pod_deleted(&known);
        }
        if let Some(object) = &change.new {
            self.update_worker(object);
        }
    }

    fn update_worker(&mut self, object: &Object) {
        let pod: Pod = match decode_object(object) {
            Ok(pod) => pod,
            Err(error) => {
                warn!(%error, pod = %object.key(), "pod not understood");
                return;
            }
        };
        let uid = object.header.uid.clone();
        self.by_name.insert(object.key(), uid.clone());
        let desired = Desired { pod: Arc::new(pod), gone: false, mirror: None };
        match self.workers.get(&uid) {
            Some(handle) => {
                handle.desired.send_replace(desired);
                handle.waker.wake();
            }
            None => self.start_worker(uid, desired),
        }
    }

    fn pod_deleted(&self, uid: &str) {
        if let Some(handle) = self.workers.get(uid) {
            handle.desired.send_modify(|desired| desired.gone = true);
            handle.waker.wake();
        }
    }

    fn start_worker(&mut self, uid: String, desired: Desired) {
        let (sender, receiver) = watch::channel(desired);
        let waker = Waker::default();
        let (worker, view) = Worker::new(self.services.clone(), receiver, waker.clone(), self.shutdown.clone());
        self.views.insert(&uid, view);
        self.workers.insert(uid.clone(), Handle { desired: sender, waker });
        self.tasks.spawn(async move {
            worker.run().await;
            uid
        });
    }

    fn worker_ended(&mut self, ended: std::result::Result<String, tokio::task::JoinError>) {
        match ended {
            Ok(uid) => {
                self.workers.remove(&uid);
                self.by_name.retain(|_, known| *known != uid);
                self.views.remove(&uid);
                if self.static_pods.values().any(|known| *known == uid) {
                    self.static_pods.retain(|_, known| *known != uid);
                    self.static_changed();
                }
            }
            Err(error) => warn!(%error, "a pod worker failed"),
        }
    }

    fn runtime_changed(&self, news: &RuntimeChange) {
        match news {
            RuntimeChange::Pod(uid) => self.workers.get(uid).into_iter().for_each(|handle| handle.waker.wake()),
            RuntimeChange::All => self.workers.values().for_each(|handle| handle.waker.wake()),
        }
    }

    /// Terminates the pods of an earlier kubelet that are no longer in the API.
    async fn remove_orphans(&self, pods: &Cache) {
        let mut known: HashSet<String> = pods.all().iter().map(|object| object.header.uid.clone()).collect();
        known.extend(self.static_pods.values().cloned());
        match orphans(&self.services.runtime.client, &known).await {
            Ok(orphans) => {
                for (sandbox, pod) in orphans {
                    info!(pod, sandbox, "removing a pod that the API does not know");
                    if let Err(error) = self.remove_sandbox(&sandbox).await {
                        warn!(%error, sandbox, "orphan not removed");
                    }
                }
            }
            Err(error) => warn!(%error, "orphans not listed"),
        }
        self.services.resources.devices.retain(|uid| known.contains(uid));
        self.services.resources.cpus.retain(|uid| known.contains(uid));
        self.services.resources.memory.retain(|uid| known.contains(uid));
        for uid in self.services.resources.claims.pods().into_iter().filter(|uid| !known.contains(uid)) {
            let claims = self.services.resources.claims.clone();
            let stop = self.shutdown.clone();
            self.cleaning.spawn(crate::claims::clean_up(claims, uid, stop));
        }
        let directory = self.services.config.root_dir.join("pods");
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let uid = entry.file_name().to_string_lossy().into_owned();
            if !known.contains(&uid) {
                let csi = self.services.volumes.csi.clone();
                let stop = self.shutdown.clone();
                self.cleaning.spawn(crate::volumes::csi::clean_up(csi, entry.path(), stop));
            }
        }
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.services.runtime.client.stop_sandbox(id).await?;
        self.services.runtime.client.remove_sandbox(id).await
    }
}

/// Returns the sandboxes of unknown pods: their id, and the pod's name.
async fn orphans(runtime: &Runtime, known: &HashSet<String>) -> Result<Vec<(String, String)>> {
    let sandboxes = runtime.list_sandboxes(None).await?;
    Ok(sandboxes
        .into_iter()
        .filter_map(|sandbox| {
            let metadata = sandbox.metadata?;
            let ours = sandbox.labels.contains_key(labels::POD_UID);
            (ours && !known.contains(&metadata.uid))
                .then(|| (sandbox.id, format!("{}/{}", metadata.namespace, metadata.name)))
        })
        .collect())
}
