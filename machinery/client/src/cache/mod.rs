//! Shared caches: one copy of a kind's objects in a process, kept current by a watch, read by everybody.
//!
//! Contract: a cache never goes back in time for one object, except after the server lost history and the cache was
//! listed anew. What a subscriber is told has already happened in the cache. Changes of one object may be merged for
//! a slow subscriber (level, not edge), so its memory is bounded by the number of objects. Objects are the encoded
//! bytes that the server holds; typed views are decoded on demand and not kept.

mod reflector;
mod shared;
mod store;
mod subscription;

pub use shared::Caches;
pub use store::Part;
pub use subscription::{Change, Subscription};

use corten_api::Typed;
use corten_meta::{Key, Object, Selector};
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

    /// The objects of a namespace; "" means all.
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

    /// The objects that have an owner reference to this uid.
    pub fn by_owner(&self, uid: &str) -> Vec<Arc<Object>> {
        self.read().by_owner(uid)
    }

    /// The objects that an index made with [`Cache::add_index`] files under `value`.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<Object>> {
        self.read().by_index(index, value)
    }

    /// What a part of the cache is stamped with: as long as that stays, the part holds the same objects in the same
    /// versions. Who wants to know later whether what he read is still so takes the stamp before he reads.
    pub fn stamp(&self, part: Part<'_>) -> u64 {
        self.read().stamp(part)
    }

    /// Files every object, now and later, under the values that `values` names. A second index of the same name is
    /// ignored, so that components sharing a cache may each ask for it.
    pub fn add_index(&self, name: &'static str, values: impl Fn(&Object) -> Vec<String> + Send + Sync + 'static) {
        self.write().add_index(name, Box::new(values));
    }

    /// The objects of a namespace ("" means all) whose labels match.
    pub fn select(&self, namespace: &str, selector: &Selector) -> Vec<Arc<Object>> {
        let mut objects = self.list(namespace);
        objects.retain(|object| selector.matches(&object.header.labels));
        objects
    }

    /// A typed view, decoded now.
    pub fn typed<K: Typed>(&self, key: &Key) -> Option<K> {
        decode(&*self.get(key)?)
    }

    /// Typed views of a namespace ("" means all), decoded now.
    pub fn typed_list<K: Typed>(&self, namespace: &str) -> Vec<K> {
        self.list(namespace).iter().filter_map(|object| decode(object)).collect()
    }

    /// Waits until the first list is complete. Returns also when the cache was shut down before that.
    pub async fn synced(&self) {
        // The cache holds the sender, so waiting ends only by the value.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Everything in the cache, and every change from here on.
    pub fn subscribe(&self) -> Subscription {
        self.subscribe_with(&Arc::default())
    }

    /// As [`Cache::subscribe`] for somebody with several subscriptions who is told by one bell that one of them has
    /// something. Only one may wait for the bell, and then asks each by [`Subscription::try_next`].
    pub fn subscribe_with(&self, bell: &Arc<Notify>) -> Subscription {
        // Under the lock that every change takes, so that none is missed and none told twice.
        let store = self.read();
        self.subscribers.subscribe(store.all(), bell)
    }

    /// One event of a watch: an addition, a modification, or (with `deleted`) a deletion.
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

    /// The result of a list: what is not in it is gone.
    fn replace(&self, objects: Vec<Arc<Object>>) {
        let mut store = self.write();
        for (old, new) in store.replace(objects) {
            let Some(object) = new.as_ref().or(old.as_ref()) else { continue };
            self.subscribers.tell(Change { key: object.key(), old, new });
        }
        self.synced.send_replace(true);
    }

    /// Ends every subscription after what is pending, and every wait for the first list.
    fn close(&self) {
        self.subscribers.close();
        self.synced.send_replace(true);
    }

    /// A panic under the lock leaves a consistent store, because every change is one call.
    fn read(&self) -> RwLockReadGuard<'_, Store> {
        self.store.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Store> {
        self.store.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An object that does not decode is left out of typed views, with a note: the API server lets none in.
fn decode<K: Typed>(object: &Object) -> Option<K> {
    corten_api::decode_object(object)
        .inspect_err(|error| tracing::warn!(kind = K::KIND, key = %object.key(), %error, "cannot decode an object"))
        .ok()
}

#[cfg(test)]
mod tests;
