//! The CustomResourceDefinitions as they were last seen, and the kinds that were made of them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corten_api::Kind;
use corten_meta::{Object, Value};
use tokio::sync::RwLock;

use super::definition::{self, Names};

/// What is known of definitions that did not change: among a thousand of them, one that does costs its own.
#[derive(Default)]
pub struct Kinds {
    known: Mutex<HashMap<String, Arc<Known>>>,
    /// Held for writing from the moment that definitions become established until discovery lists their kinds.
    pub establishing: RwLock<()>,
}

/// A definition as it was last looked at.
pub struct Known {
    pub object: Arc<Object>,
    pub names: Names,
    /// Whether requests for its objects are answered.
    pub is_served: bool,
    is_terminating: bool,
    made: Mutex<Made>,
}

/// What was made of a definition's spec and the names that it is served under: another status makes nothing new.
#[derive(Clone, Default)]
pub struct Made {
    names: Value,
    pub kinds: Vec<Arc<Kind>>,
}

impl Known {
    pub fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kinds of the definition with the status that it has, or is about to have.
    pub fn kinds(&self, definition: &Value) -> Vec<Arc<Kind>> {
        let mut made = self.made();
        let names = definition::served_names(definition);
        if made.names != *names {
            let kinds = definition::kinds(definition, self.object.revision);
            *made = Made { names: names.clone(), kinds: kinds.into_iter().map(Arc::new).collect() };
        }
        made.kinds.clone()
    }
}

impl Kinds {
    pub fn of(&self, object: &Arc<Object>) -> Arc<Known> {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.get(&object.header.name);
        if let Some(known) = before.filter(|known| known.object.revision == object.revision) {
            return Arc::clone(known);
        }
        let definition = object.value();
        let same = |known: &&Arc<Known>| {
            let old = &known.object.header;
            let new = &object.header;
            old.uid == new.uid && old.generation == new.generation
        };
        let made = Mutex::new(before.filter(same).map(|known| known.made().clone()).unwrap_or_default());
        let names = Names::of(&definition);
        let is_served = definition::is_served(&definition);
        let is_terminating = definition::is_terminating(&definition);
        let known = Arc::new(Known { object: Arc::clone(object), names, is_served, is_terminating, made });
        known.kinds(&definition);
        all.insert(object.header.name.clone(), Arc::clone(&known));
        known
    }

    /// The names of the definitions whose objects are being deleted.
    pub fn terminating(&self) -> HashSet<String> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|(_, known)| known.is_terminating).map(|(name, _)| name.clone()).collect()
    }

    /// The group versions that the definitions name, be they established or not.
    pub fn announced(&self) -> BTreeSet<(String, String)> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let kinds = all.values().flat_map(|known| known.made().kinds.clone()).filter(|kind| !kind.verbs.is_empty());
        kinds.map(|kind| (kind.group.clone(), kind.version.clone())).collect()
    }

    pub fn forget_others(&self, definitions: &[Arc<Known>]) {
        let names: HashSet<&str> = definitions.iter().map(|known| known.object.header.name.as_str()).collect();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).retain(|name, _| names.contains(name.as_str()));
    }
}
