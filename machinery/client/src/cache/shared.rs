//! One cache per kind and process, started on first use.

use super::Cache;
use super::feed::{Fed, Feed};
use super::reflector::Reflector;
use crate::{Client, ListOptions, Resource};
use corten_api::Typed;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The caches of a process (or of one identity in it). Cloning shares them.
#[derive(Clone)]
pub struct Caches {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    caches: Mutex<HashMap<(Resource, String, ListOptions), Arc<Cache>>>,
}

impl Caches {
    /// Makes the caches of a client. Every cache stops with `shutdown`.
    pub fn new(client: Client, shutdown: CancellationToken) -> Caches {
        let shared = Shared { client, shutdown, tasks: TaskTracker::new(), caches: Mutex::default() };
        Caches { shared: Arc::new(shared) }
    }

    /// Returns the cache of all objects of a kind. Starts it on first use, which needs a running tokio runtime.
    pub fn of<K: Typed>(&self) -> Arc<Cache> {
        self.filtered::<K>(ListOptions::default())
    }

    /// Returns the cache of the objects that the selectors of `options` match. Callers with equal options share it.
    pub fn filtered<K: Typed>(&self, options: ListOptions) -> Arc<Cache> {
        self.resource(&Resource::of::<K>(), "", options)
    }

    /// Returns the cache of a resource known by name, as [`Caches::of`] does.
    pub fn dynamic(&self, resource: &Resource) -> Arc<Cache> {
        self.resource(resource, "", ListOptions::default())
    }

    /// Returns the cache of a resource in one namespace ("" means all).
    pub fn resource(&self, resource: &Resource, namespace: &str, options: ListOptions) -> Arc<Cache> {
        let mut caches = self.shared.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (resource.clone(), namespace.to_owned(), options.clone());
        let start = || {
            let cache = Arc::new(Cache::default());
            let dynamic = self.shared.client.dynamic(resource);
            let reflector = Reflector::new(dynamic, namespace, options, cache.clone());
            self.shared.tasks.spawn(reflector.run(self.shared.shutdown.clone()));
            cache
        };
        caches.entry(key).or_insert_with(start).clone()
    }

    /// Starts a feed of all objects of a resource, for a subscriber that keeps by itself what it needs of them.
    pub fn feed(&self, resource: &Resource, bell: &Arc<Notify>) -> Fed {
        let fed = Feed::open(bell);
        let dynamic = self.shared.client.dynamic(resource);
        let reflector = Reflector::new(dynamic, "", ListOptions::default(), fed.feed.clone());
        self.shared.tasks.spawn(reflector.run(self.shared.shutdown.clone()));
        fed
    }

    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Waits until every cache that was started so far is synced.
    pub async fn synced(&self) {
        let caches: Vec<Arc<Cache>> =
            self.shared.caches.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for cache in caches {
            cache.synced().await;
        }
    }

    /// Waits, after shutdown, until every task of the caches has ended.
    pub async fn ended(&self) {
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}
