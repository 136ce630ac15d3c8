//! Feeds: the changes of a kind for one subscriber that keeps by itself what it needs of each object.
//!
//! Contract: that of a cache, with one difference: a feed keeps no object, so a [`Change`](super::Change) of it never has
//! an old state, beside that of an object that came and went before the subscriber looked.

use super::reflector::Sink;
use super::subscription::{Change, Subscribers, Subscription};
use corten_meta::{Key, Object};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// The changes of one kind. It keeps the revisions of objects, and no object.
pub struct Feed {
    revisions: Mutex<HashMap<Box<str>, u64>>,
    subscribers: Subscribers,
    synced: watch::Sender<bool>,
}

/// A feed with its one subscription.
pub struct Fed {
    pub feed: Arc<Feed>,
    pub subscription: Subscription,
}

/// Returns the name of an object in the map of revisions.
fn name(object: &Object) -> Box<str> {
    format!("{}/{}", object.header.namespace, object.header.name).into()
}

/// Returns the key of a name in the map of revisions. No namespace has a slash.
fn key(name: &str) -> Key {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    Key::new(namespace, name)
}

impl Feed {
    /// Makes a feed that rings `bell` on every change.
    pub(super) fn open(bell: &Arc<Notify>) -> Fed {
        let subscribers = Subscribers::default();
        let subscription = subscribers.subscribe(Vec::new(), bell);
        let feed = Feed { revisions: Mutex::default(), subscribers, synced: watch::Sender::new(false) };
        Fed { feed: Arc::new(feed), subscription }
    }

    /// Waits until all changes of the first list have arrived. Also returns if the feed is shut down before that.
    pub async fn synced(&self) {
        // The feed holds the sender, so waiting ends only by the value.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, u64>> {
        self.revisions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Feed {
    fn apply(&self, object: Arc<Object>, deleted: bool) {
        let mut revisions = self.lock();
        let name = name(&object);
        if revisions.get(&name).is_some_and(|known| *known >= object.revision) {
            return;
        }
        let key = object.key();
        if !deleted {
            revisions.insert(name, object.revision);
            self.subscribers.tell(Change { key, old: None, new: Some(object) });
        } else if revisions.remove(&name).is_some() {
            self.subscribers.tell(Change { key, old: Some(object), new: None });
        }
    }

    fn replace(&self, objects: Vec<Arc<Object>>) {
        let mut revisions = self.lock();
        let mut listed = HashMap::with_capacity(objects.len());
        for object in objects {
            let name = name(&object);
            let revision = object.revision;
            if revisions.remove(&name) != Some(revision) {
                self.subscribers.tell(Change { key: object.key(), old: None, new: Some(object) });
            }
            listed.insert(name, revision);
        }
        for gone in std::mem::replace(&mut *revisions, listed).into_keys() {
            self.subscribers.tell(Change { key: key(&gone), old: None, new: None });
        }
        self.synced.send_replace(true);
    }

    fn close(&self) {
        self.subscribers.close();
        self.synced.send_replace(true);
    }
}
