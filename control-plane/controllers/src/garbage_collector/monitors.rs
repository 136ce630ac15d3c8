//! A cache for every collectable resource, and what its changes make worth a look.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use corten_client::{Cache, Caches, Change, Client, Error, Resource, WorkQueue};
use corten_meta::{Key, Object};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Item;
use super::decide::{FOREGROUND, ORPHAN};
use crate::runtime::discovery::{self, Discovered};

/// Events own nothing and are owned by nobody; following them would be most of the work.
const IGNORED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

struct Monitor {
    found: Discovered,
    cache: Arc<Cache>,
    stop: CancellationToken,
}

/// All monitors. Built-in resources share the caches of the other controllers.
pub struct Monitors {
    caches: Caches,
    queue: WorkQueue<Item>,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    monitors: RwLock<HashMap<Resource, Monitor>>,
}

impl Monitors {
    pub fn new(caches: Caches, queue: WorkQueue<Item>, shutdown: CancellationToken) -> Monitors {
        Monitors { caches, queue, shutdown, tasks: TaskTracker::new(), monitors: RwLock::default() }
    }

    /// Starts and stops monitors until they are what the API serves. A group that fails keeps what it had.
    pub async fn refresh(self: &Arc<Self>, client: &Client) -> Result<(), Error> {
        let (found, failing) = discovery::resources(client).await?;
        let ignored =
            |found: &Discovered| IGNORED.contains(&(found.resource.group.as_str(), found.resource.plural.as_str()));
        let wanted: HashMap<Resource, Discovered> = found
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
        let (monitors, resource, feed, ends) = (self.clone(), found.resource.clone(), cache.clone(), stop.clone());
        self.tasks.spawn(async move {
            let mut changes = feed.subscribe();
            loop {
                tokio::select! {
                    () = ends.cancelled() => return,
                    change = changes.next() => match change {
                        Some(change) => monitors.heard(&resource, &change),
                        None => return,
                    }
                }
            }
        });
        Monitor { found, cache, stop }
    }

    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Resource, Monitor>> {
        self.monitors.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, item: &Item) -> Option<Arc<Object>> {
        self.read().get(&item.resource)?.cache.get(&item.key)
    }

    /// Everything with an owner reference to this uid, of whatever kind.
    pub fn dependents(&self, uid: &str) -> Vec<(Item, Arc<Object>)> {
        let monitors = self.read();
        let of = |(resource, monitor): (&Resource, &Monitor)| {
            let held = monitor.cache.by_owner(uid).into_iter();
            held.map(|object| (Item { resource: resource.clone(), key: object.key() }, object)).collect::<Vec<_>>()
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

    /// What a change makes worth a look: the object itself, and those that waited for its end.
    fn heard(&self, resource: &Resource, change: &Change) {
        if let Some(new) = &change.new {
            let finalized = new.header.finalizers.iter().any(|name| name == FOREGROUND || name == ORPHAN);
            if !new.header.owners.is_empty() || (new.header.deletion_timestamp.is_some() && finalized) {
                self.queue.add(Item { resource: resource.clone(), key: change.key.clone() });
            }
        }
        let Some(old) = &change.old else { return };
        let replaced = change.new.as_ref().is_none_or(|new| new.header.uid != old.header.uid);
        if replaced {
            self.dependents(&old.header.uid).into_iter().for_each(|(item, _)| self.queue.add(item));
        }
        for owner in &old.header.owners {
            let kept =
                |new: &Arc<Object>| {
                    !replaced
                        && new.header.owners.iter().any(|other| {
                            other.uid == owner.uid && other.block_owner_deletion == owner.block_owner_deletion
                        })
                };
            if !change.new.as_ref().is_some_and(kept) {
                self.wake_waiting_owner(&owner.api_version, &owner.kind, &change.key.namespace, &owner.name);
            }
        }
    }

    /// An owner in foreground deletion waits for exactly this: a dependent less.
    fn wake_waiting_owner(&self, api_version: &str, kind: &str, namespace: &str, name: &str) {
        let Some(resource) = self.resource_of(api_version, kind) else { return };
        let namespace = if resource.namespaced { namespace } else { "" };
        let item = Item { resource, key: Key::new(namespace, name) };
        let waits = |owner: Arc<Object>| {
            owner.header.deletion_timestamp.is_some() && owner.header.finalizers.iter().any(|one| one == FOREGROUND)
        };
        if self.get(&item).is_some_and(waits) {
            self.queue.add(item);
        }
    }
}
