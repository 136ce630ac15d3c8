//! A cache for every resource that can be listed and watched, custom ones included, and who listens to their changes.
//!
//! What the garbage collector, namespace deletion and quotas have in common: they care for all kinds, whichever there
//! are just now. Built-in kinds share the caches of the other controllers, so that nothing is held twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use corten_api::k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use corten_client::{Cache, Caches, Change, Client, Error, Metrics, Resource};
use corten_meta::{Key, Object};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::discovery::{self, Discovered};
use crate::metrics::SYNC_ERRORS;

/// Events own nothing, are owned by nobody and are no content; following them would be most of the work.
const IGNORED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];
/// New kinds tend to come in groups: wait until no more came for this long before asking which there are.
const SETTLE: Duration = Duration::from_millis(200);
/// How long to wait before discovery is tried again after it failed; doubled each time, up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));

/// How long a kind that is not known yet is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Told of every change; it must not block.
pub type Listener = Box<dyn Fn(&Monitors, &Discovered, &Change) + Send + Sync>;

struct Monitor {
    found: Discovered,
    cache: Arc<Cache>,
    stop: CancellationToken,
    since: Instant,
}

pub struct Monitors {
    caches: Caches,
    listeners: Vec<Listener>,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    monitors: RwLock<BTreeMap<Resource, Monitor>>,
    since: Instant,
    /// Discovery has once told of everything.
    is_complete: AtomicBool,
}

impl Monitors {
    pub fn new(caches: Caches, listeners: Vec<Listener>, shutdown: CancellationToken) -> Monitors {
        Monitors {
            caches,
            listeners,
            shutdown,
            tasks: TaskTracker::new(),
            monitors: RwLock::default(),
            since: Instant::now(),
            is_complete: AtomicBool::new(false),
        }
    }

    /// Follows the kinds the API serves until shutdown: at first, and after every change of a custom resource
    /// definition.
    pub async fn follow(self: &Arc<Self>, client: &Client, metrics: &Metrics) {
        let mut changes = self.caches.of::<CustomResourceDefinition>().subscribe();
        let mut pause = RETRY.0;
        loop {
            let retry = match self.refresh(client).await {
                Ok(()) => {
                    pause = RETRY.0;
                    Duration::MAX
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot discover all resources");
                    metrics.registry().series(&SYNC_ERRORS, &[]).add(1.0);
                    let longer = (pause * 2).min(RETRY.1);
                    std::mem::replace(&mut pause, longer)
                }
            };
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => break,
                () = tokio::time::sleep(retry) => continue,
                change = changes.next() => if change.is_none() { break },
            }
            while let Ok(Some(_)) = tokio::time::timeout(SETTLE, changes.next()).await {}
        }
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Starts and stops monitors until they are what the API serves. A group that fails keeps what it had.
    async fn refresh(self: &Arc<Self>, client: &Client) -> Result<(), Error> {
        let (found, failing) = discovery::resources(client).await?;
        let ignored =
            |found: &Discovered| IGNORED.contains(&(found.resource.group.as_str(), found.resource.plural.as_str()));
        let wanted: BTreeMap<Resource, Discovered> = found
            .into_iter()
            .filter(|found| found.allows(&["delete", "list", "watch"]) && !ignored(found))
            .map(|found| (found.resource.clone(), found))
            .collect();
        let mut monitors = self.monitors.write().unwrap_or_else(PoisonError::into_inner);
        if failing.is_empty() {
            monitors.retain(|resource, monitor| {
                let stays = wanted.contains_key(resource);
                if !stays {
                    monitor.stop.cancel();
                }
                stays
            });
        }
        for (resource, found) in wanted {
            monitors.entry(resource).or_insert_with(|| self.start(found));
        }
        self.is_complete.fetch_or(failing.is_empty(), Ordering::Relaxed);
        match failing.first() {
            None => Ok(()),
            Some(group) => Err(Error::Transport(group.clone())),
        }
    }

    fn start(self: &Arc<Self>, found: Discovered) -> Monitor {
        let stop = self.shutdown.child_token();
        let built_in =
            corten_api::lookup(&found.resource.group, &found.resource.version, &found.resource.plural).is_some();
        // The cache of a custom resource must be able to end with it.
        let caches =
            if built_in { self.caches.clone() } else { Caches::new(self.caches.client().clone(), stop.clone()) };
        let cache = caches.dynamic(&found.resource);
        let (monitors, told, informer, ends) = (self.clone(), found.clone(), cache.clone(), stop.clone());
        self.tasks.spawn(async move {
            let mut changes = informer.subscribe();
            loop {
                tokio::select! {
                    biased;
                    () = ends.cancelled() => return,
                    change = changes.next() => match change {
                        Some(change) => change.steps().for_each(|change| {
                            monitors.listeners.iter().for_each(|listener| listener(&monitors, &told, &change));
                        }),
                        None => return,
                    }
                }
            }
        });
        Monitor { found, cache, stop, since: Instant::now() }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Resource, Monitor>> {
        self.monitors.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what there is of all kinds is known: who asks for all that depends on an object must not be told of half.
    /// A group that does not answer, or a kind that cannot be listed, holds nobody up for long.
    pub fn knows_all(&self) -> bool {
        let patient = |since: Instant| since.elapsed() < PATIENCE;
        let known = |monitor: &Monitor| monitor.cache.is_synced() || !patient(monitor.since);
        (self.is_complete.load(Ordering::Relaxed) || !patient(self.since)) && self.read().values().all(known)
    }

    pub fn get(&self, resource: &Resource, key: &Key) -> Option<Arc<Object>> {
        self.read().get(resource)?.cache.get(key)
    }

    pub fn is_followed(&self, resource: &Resource) -> bool {
        self.read().contains_key(resource)
    }

    /// Every resource that is followed, in order, with what is in one namespace of it.
    pub fn in_namespace(
        &self,
        namespace: &str,
        wanted: impl Fn(&Resource) -> bool,
    ) -> Vec<(Resource, Vec<Arc<Object>>)> {
        let monitors = self.read();
        let namespaced = monitors.iter().filter(|(resource, _)| resource.namespaced && wanted(resource));
        let mut all: Vec<(Resource, Vec<Arc<Object>>)> =
            namespaced.map(|(resource, monitor)| (resource.clone(), monitor.cache.list(namespace))).collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Every object with an owner reference to this uid, of whatever kind.
    pub fn dependents(&self, uid: &str) -> Vec<(Resource, Arc<Object>)> {
        let monitors = self.read();
        let of = |(resource, monitor): (&Resource, &Monitor)| {
            let held = monitor.cache.by_owner(uid).into_iter();
            held.map(|object| (resource.clone(), object)).collect::<Vec<_>>()
        };
        monitors.iter().flat_map(of).collect()
    }

    /// The resource of a kind, whatever version of its group the reference names.
    pub fn resource_of(&self, api_version: &str, kind: &str) -> Option<Resource> {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let monitors = self.read();
        monitors
            .values()
            .find(|monitor| monitor.found.kind == kind && monitor.found.resource.group == group)
            .map(|m| m.found.resource.clone())
    }
}
