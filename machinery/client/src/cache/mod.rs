//! Shared caches: one copy of a kind's objects per process, kept current by a watch and read by all components.
//!
//! Contract: a cache never goes back in time for one object, except after the server compacted history and the cache
//! listed again. A change is in the cache before subscribers receive it. Changes of one object may be merged for a slow
//! subscriber (level, not edge), so its memory is bounded by the number of objects. Objects are the encoded bytes that
//! the server holds; typed views are decoded on demand and not kept.

mod feed;
mod reflector;
mod shared;
mod store;
mod subscription;

pub use feed::{Fed, Feed};
pub use shared::Caches;
pub use store::Part;
pub use subscription::{Change, Subscription};

use corten_api::Typed;
use corten_meta::{Key, Object, Selector};
use reflector::Sink;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use store::Store;
use subscription::Subscribers;
use tokio::sync::{Notify, watch};

/// The objects of one kind (or of a selection of it).
pub struct Cache {
    store: RwLock<Store>,
    subscribers: Subscribers,
    synced: watch::Sender<bool>,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache { store: RwLock::default(), subscribers: Subscribers::default(), synced: watch::Sender::new(false) }
    }
}

impl Cache {
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.read().get(&key.namespace, &key.name)
    }

    /// Returns the objects of a namespace; "" means all.
    pub fn list(&self, namespace: &str) -> Vec<Arc<Object>> {
        if namespace.is_empty() { self.all() } else { self.read().namespace(namespace) }
    }

    pub fn all(&self) -> Vec<Arc<Object>> {
        self.read().all()
    }

    pub fn len(&self) -> usize {
        self.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the objects that have an owner reference to this uid.
    pub fn by_owner(&self, uid: &str) -> Vec<Arc<Object>> {
        self.read().by_owner(uid)
    }

    /// Returns the objects that an index made with [`Cache::add_index`] has for `value`.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<Object>> {
        self.read().by_index(index, value)
    }

    /// Returns the stamp of a part of the cache: as long as it stays equal, the part has the same objects at the same
    /// revisions. A caller that compares later takes the stamp before it reads.
    pub fn stamp(&self, part: Part<'_>) -> u64 {
        self.read().stamp(part)
    }

    /// Indexes every object, now and later, by the values that `values` returns. A second index of the same name is
    /// ignored, so that components that share a cache may each add it.
    pub fn add_index(&self, name: &'static str, values: impl Fn(&Object) -> Vec<String> + Send + Sync + 'static) {
        self.write().add_index(name, Box::new(values));
    }

    /// Returns the objects of a namespace ("" means all) whose labels match.
    pub fn select(&self, namespace: &str, selector: &Selector) -> Vec<Arc<Object>> {
        let mut objects = self.list(namespace);
        objects.retain(|object| selector.matches(&object.header.labels));
        objects
    }

    /// Returns a typed object, decoded now.
    pub fn typed<K: Typed>(&self, key: &Key) -> Option<K> {
        decode(&*self.get(key)?)
    }

    /// Returns the typed objects of a namespace ("" means all), decoded now.
    pub fn typed_list<K: Typed>(&self, namespace: &str) -> Vec<K> {
        self.list(namespace).iter().filter_map(|object| decode(object)).collect()
    }

    /// Waits until the first list is complete. Also returns if the cache is shut down before that.
    pub async fn synced(&self) {
        // The cache holds the sender, so waiting ends only by the value.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Subscribes to all objects in the cache and to every change from now on.
    pub fn subscribe(&self) -> Subscription {
        self.subscribe_with(&Arc::default())
    }

    /// Subscribes as [`Cache::subscribe`] does, for a caller with several subscriptions that share one `bell`. Only one
    /// task may wait for the bell; it then polls each by [`Subscription::try_next`].
    pub fn subscribe_with(&self, bell: &Arc<Notify>) -> Subscription {
        // Every change takes this lock, so that none is missed and none is delivered twice.
        let store = self.read();
        self.subscribers.subscribe(store.all(), bell)
    }

    /// Locks the store. A panic under the lock leaves it consistent, because every change is one call.
    fn read(&self) -> RwLockReadGuard<'_, Store> {
        self.store.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Store> {
        self.store.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Cache {
    fn apply(&self, object: Arc<Object>, deleted: bool) {
        let mut store = self.write();
        let old = store.get(&object.header.namespace, &object.header.name);
        if old.as_ref().is_some_and(|old| old.revision >= object.revision) {
            return;
        }
        let key = object.key();
        let new = if deleted {
            if store.remove(&key.namespace, &key.name).is_none() {
                return;
            }
            None
        } else {
            store.insert(object.clone());
            Some(object)
        };
        self.subscribers.tell(Change { key, old, new });
    }

    fn replace(&self, objects: Vec<Arc<Object>>) {
        let mut store = self.write();
        for (old, new) in store.replace(objects) {
            let Some(object) = new.as_ref().or(old.as_ref()) else { continue };
            self.subscribers.tell(Change { key: object.key(), old, new });
        }
        self.synced.send_replace(true);
    }

    fn close(&self) {
        self.subscribers.close();
        self.synced.send_replace(true);
    }
}

/// Decodes an object. One that does not decode is left out of typed views and logged: the API server admits none.
fn decode<K: Typed>(object: &Object) -> Option<K> {
    corten_api::decode_object(object)
        .inspect_err(|error| tracing::warn!(kind = K::KIND, key = %object.key(), %error, "cannot decode an object"))
        .ok()
}

#[cfg(test)]
mod tests;
