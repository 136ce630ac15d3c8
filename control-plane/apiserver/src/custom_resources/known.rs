//! The CustomResourceDefinitions as last reconciled, and the kinds that they define.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corten_api::Kind;
use corten_meta::{Object, Value};
use tokio::sync::RwLock;

use super::crd::{self, Names};

/// The cache of CRDs and their kinds: one changed CRD among a thousand costs only its own conversion.
#[derive(Default)]
pub struct Kinds {
    known: Mutex<HashMap<String, Arc<Known>>>,
    /// Held for writing from when CRDs become established until discovery lists their kinds.
    pub establishing: RwLock<()>,
}

/// A CRD as last reconciled.
pub struct Known {
    pub object: Arc<Object>,
    pub names: Names,
    /// Whether its objects are served.
    pub is_served: bool,
    is_terminating: bool,
    made: Mutex<Made>,
}

/// The kinds of a CRD's spec and served names: a new status does not change them.
#[derive(Clone, Default)]
pub struct Made {
    names: Value,
    pub kinds: Vec<Arc<Kind>>,
}

impl Known {
    pub fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the kinds of the CRD with its current or next status.
    pub fn kinds(&self, crd: &Value) -> Vec<Arc<Kind>> {
        let mut made = self.made();
        let names = crd::served_names(crd);
        if made.names != *names {
            let kinds = crd::kinds(crd, self.object.revision);
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
        let crd = object.value();
        let same = |known: &&Arc<Known>| {
            let old = &known.object.header;
            let new = &object.header;
            old.uid == new.uid && old.generation == new.generation
        };
        let made = Mutex::new(before.filter(same).map(|known| known.made().clone()).unwrap_or_default());
        let names = Names::of(&crd);
        let is_served = crd::is_served(&crd);
        let is_terminating = crd::is_terminating(&crd);
        let known = Arc::new(Known { object: Arc::clone(object), names, is_served, is_terminating, made });
        known.kinds(&crd);
        all.insert(object.header.name.clone(), Arc::clone(&known));
        known
    }

    /// Returns the names of the CRDs whose objects are being deleted.
    pub fn terminating(&self) -> HashSet<String> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|(_, known)| known.is_terminating).map(|(name, _)| name.clone()).collect()
    }

    /// Returns the group versions of the CRDs, established or not.
    pub fn announced(&self) -> BTreeSet<(String, String)> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let kinds = all.values().flat_map(|known| known.made().kinds.clone()).filter(|kind| !kind.verbs.is_empty());
        kinds.map(|kind| (kind.group.clone(), kind.version.clone())).collect()
    }

    pub fn forget_others(&self, crds: &[Arc<Known>]) {
        let names: HashSet<&str> = crds.iter().map(|known| known.object.header.name.as_str()).collect();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).retain(|name, _| names.contains(name.as_str()));
    }
}
