//! Changes of one resource, mapped to the keys of every controller that watches it.

use std::collections::HashMap;
use std::sync::Arc;

use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::{Cache, Caches, Resource, WorkQueue};
use corten_meta::{Key, Object};
use tokio::sync::watch;

use super::Feeds;
use super::controller::Keys;
use super::plan::ResourceType;
use super::view::{Failure, View, node_of_pod};

/// Pods by the node they are bound to.
const NODE_INDEX: &str = "spec.nodeName";

/// From a resource to a controller.
pub struct Route {
    pub queue: WorkQueue<Key>,
    pub keys: Keys,
}

/// One watched resource.
pub struct Feed {
    pub cache: Arc<Cache>,
    routes: Vec<Route>,
    /// A revision that the cache has certainly reached: events arrive in the order of revisions.
    reached: watch::Sender<u64>,
}

impl Feed {
    pub fn reached(&self) -> watch::Receiver<u64> {
        self.reached.subscribe()
    }
}

/// Opens a cache for every resource and waits until all are filled: no decision is made on half a view.
pub async fn open(caches: &Caches, routes: HashMap<ResourceType, Vec<Route>>) -> HashMap<ResourceType, Arc<Feed>> {
    let mut feeds = HashMap::new();
    for (resource, routes) in routes {
        let cache = caches.dynamic(&address(resource));
        if resource == ResourceType::of::<Pod>() {
            cache.add_index(NODE_INDEX, |pod| node_of_pod(pod).into_iter().collect());
        }
        feeds.insert(resource, Arc::new(Feed { cache, routes, reached: watch::Sender::new(0) }));
    }
    for feed in feeds.values() {
        feed.cache.synced().await;
    }
    feeds
}

/// The resource as the client addresses it.
pub fn address(resource: ResourceType) -> Resource {
    Resource::new(resource.group, resource.version, resource.plural, resource.namespaced)
}

/// Passes changes on until the cache closes.
pub async fn dispatch(feed: Arc<Feed>, feeds: Feeds) {
    let view = CachedView { feeds, failure: None };
    let mut subscription = feed.cache.subscribe();
    while let Some(change) = subscription.next().await {
        for route in &feed.routes {
            for key in (route.keys)(&view, &change) {
                route.queue.add(key);
            }
        }
        let revision = change.object().map_or(0, |object| object.revision);
        feed.reached.send_if_modified(|reached| {
            let further = revision > *reached;
            *reached = revision.max(*reached);
            further
        });
    }
}

/// The view of a controller in the cluster: the shared caches.
pub struct CachedView {
    pub feeds: Feeds,
    pub failure: Option<Failure>,
}

impl View for CachedView {
    fn get(&self, resource: ResourceType, key: &Key) -> Option<Arc<Object>> {
        self.feeds.get(&resource)?.cache.get(key)
    }

    fn list(&self, resource: ResourceType, namespace: &str) -> Vec<Arc<Object>> {
        self.feeds.get(&resource).map(|feed| feed.cache.list(namespace)).unwrap_or_default()
    }

    fn owned(&self, resource: ResourceType, uid: &str) -> Vec<Arc<Object>> {
        self.feeds.get(&resource).map(|feed| feed.cache.by_owner(uid)).unwrap_or_default()
    }

    fn pods_on(&self, node: &str) -> Vec<Arc<Object>> {
        let feed = self.feeds.get(&ResourceType::of::<Pod>());
        feed.map(|feed| feed.cache.by_index(NODE_INDEX, node)).unwrap_or_default()
    }

    fn last_failure(&self) -> Option<Failure> {
        self.failure.clone()
    }
}
