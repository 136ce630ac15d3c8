//! A cache for every resource that can be listed and watched, custom resources included, and the listeners to their
//! changes.
//!
//! The garbage collector, the namespace controller and the quota controller work on all resources that the API serves
//! at the moment. Built-in resources share the caches of the other controllers, so that no object is held twice.

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

/// Events own nothing, have no owner and do not block the deletion of a namespace; to watch them would be most of the
/// work.
const IGNORED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];
/// CustomResourceDefinitions are often created in groups: discovery waits until none has changed for this long.
const SETTLE: Duration = Duration::from_millis(200);
/// The first and the longest pause before failed discovery is tried again; the pause doubles each time.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));

/// The time to wait for a resource that is not synced yet.
const PATIENCE: Duration = Duration::from_secs(30);

/// Receives every change; it must not block.
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
    /// Whether discovery of all groups has succeeded once.
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

    /// Follows the resources that the API serves until shutdown: runs discovery at the start and after every change of
    /// a CustomResourceDefinition.
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

    /// Starts and stops monitors to match the served resources. If a group fails, no monitor stops.
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
        // The cache of a custom resource must stop with its monitor.
        let caches =
            if built_in { self.caches.clone() } else { Caches::new(self.caches.client().clone(), stop.clone()) };
        let cache = caches.dynamic(&found.resource);
        let (monitors, monitored, informer, ends) = (self.clone(), found.clone(), cache.clone(), stop.clone());
        self.tasks.spawn(async move {
            let mut changes = informer.subscribe();
            loop {
                tokio::select! {
                    biased;
                    () = ends.cancelled() => return,
                    change = changes.next() => match change {
                        Some(change) => change.steps().for_each(|change| {
                            monitors.listeners.iter().for_each(|listener| listener(&monitors, &monitored, &change));
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

    /// Reports whether all resources are synced: the garbage collector must see all dependents of an object, not a part
    /// of them. A group that does not answer, or a resource that cannot be listed, blocks for no longer than
    /// [`PATIENCE`].
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

    /// Lists the objects of one namespace, by resource, in order.
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

    /// Lists the objects of a resource that has no namespaces.
    pub fn of_cluster(&self, group: &str, plural: &str) -> Vec<Arc<Object>> {
        let monitors = self.read();
        let is_it = |of: &&Resource| of.group == group && of.plural == plural;
        let found = monitors.iter().find(|(resource, _)| is_it(resource));
        found.map(|(_, monitor)| monitor.cache.list("")).unwrap_or_default()
    }

    /// Lists the objects of all resources with an owner reference to this uid.
    pub fn dependents(&self, uid: &str) -> Vec<(Resource, Arc<Object>)> {
        let monitors = self.read();
        let of = |(resource, monitor): (&Resource, &Monitor)| {
            let held = monitor.cache.by_owner(uid).into_iter();
            held.map(|object| (resource.clone(), object)).collect::<Vec<_>>()
        };
        monitors.iter().flat_map(of).collect()
    }

    /// Returns the resource of a kind, whichever version of its group the reference names.
    pub fn resource_of(&self, api_version: &str, kind: &str) -> Option<Resource> {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let monitors = self.read();
        monitors
            .values()
            .find(|monitor| monitor.found.kind == kind && monitor.found.resource.group == group)
            .map(|m| m.found.resource.clone())
    }
}
