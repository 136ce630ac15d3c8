//! The converted objects of a resource: stored objects that the conversion webhook converted to one version, shared by
//! all lists and watches of that version. (`request_conversions.rs` has the conversions of one request.)
//!
//! As in upstream's watch cache of a version, an object stays converted until it is written again or its
//! CustomResourceDefinition changes. A read of one object by its name converts again, and never uses this.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corten_meta::{Key, Object};
use tokio::time::Instant;

/// The number of states of an object that are kept: an event of a watch has the last and the one before.
const STATES: usize = 2;

#[derive(Default)]
pub struct ConversionCache {
    objects: Mutex<HashMap<Key, Vec<Arc<Object>>>>,
    /// Held while all missing objects are converted, so that other requests wait instead of converting the same.
    pub filling: tokio::sync::Mutex<()>,
    /// The time since conversions fail.
    failing: Mutex<Option<Instant>>,
}

impl ConversionCache {
    /// Returns this state of an object, converted.
    pub fn get(&self, stored: &Object) -> Option<Arc<Object>> {
        self.lock().get(&key(stored))?.iter().find(|object| object.revision == stored.revision).cloned()
    }

    /// Keeps a converted object instead of its oldest state.
    pub fn keep(&self, converted: &Arc<Object>) {
        let mut objects = self.lock();
        let states = objects.entry(key(converted)).or_default();
        states.retain(|state| state.revision != converted.revision);
        states.push(Arc::clone(converted));
        states.sort_by_key(|state| state.revision);
        if states.len() > STATES {
            states.remove(0);
        }
    }

    /// Removes the objects that no longer exist, once they are as many as the others.
    pub fn forget_others(&self, present: &[Arc<Object>]) {
        let mut objects = self.lock();
        if objects.len() > 2 * present.len() {
            let present: HashMap<Key, ()> = present.iter().map(|object| (key(object), ())).collect();
            objects.retain(|key, _| present.contains_key(key));
        }
    }

    /// Returns the Retry-After of a client while conversions fail: the longer they fail, the longer it is.
    pub fn seconds_to_wait(&self, is_failing: bool, now: Instant) -> i32 {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let since = *failing.get_or_insert(now);
        if !is_failing {
            *failing = None;
        }
        (0.06 * (now - since).as_secs_f64()).exp().min(30.0) as i32
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Arc<Object>>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(object: &Object) -> Key {
    Key::new(object.header.namespace.as_str(), object.header.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_wait_longer_the_longer_conversions_fail() {
        let cache = ConversionCache::default();
        let now = Instant::now();
        let wait = |is_failing: bool, seconds: u64| {
            cache.seconds_to_wait(is_failing, now + std::time::Duration::from_secs(seconds))
        };
        assert_eq!([wait(true, 0), wait(true, 11), wait(true, 12), wait(true, 300)], [1, 1, 2, 30]);
        wait(false, 301);
        assert_eq!(wait(true, 302), 1);
    }

    #[test]
    fn the_last_states_of_existing_objects_are_kept() {
        let object = |name: &str, revision: u64| {
            let value = serde_json::json!({ "apiVersion": "g/v1", "kind": "K", "metadata": { "name": name } });
            Arc::new(Object::from_value(&value, revision).unwrap())
        };
        let cache = ConversionCache::default();
        let states = [object("a", 3), object("a", 1), object("a", 2), object("b", 4)];
        states.iter().for_each(|state| cache.keep(state));
        let kept: Vec<bool> = states.iter().map(|state| cache.get(state).is_some()).collect();
        assert_eq!(kept, [true, false, true, true]);
        cache.forget_others(&states[..1]);
        assert!(cache.get(&states[3]).is_some(), "few deleted objects are not searched for");
        cache.keep(&object("c", 5));
        cache.forget_others(&states[..1]);
        assert_eq!((cache.get(&states[0]).is_some(), cache.get(&states[3]).is_some()), (true, false));
    }
}
