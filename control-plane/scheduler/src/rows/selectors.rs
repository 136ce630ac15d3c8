//! The selectors of the Services and controllers of a pod. Pods without topology spread constraints are spread by
//! these.

use std::collections::{BTreeMap, HashMap};

use corten_meta::{Key, Selector};

use super::pod::PodRow;

/// The selectors of Services, ReplicationControllers, ReplicaSets and StatefulSets.
#[derive(Default)]
pub struct Selectors {
    /// By namespace, then name.
    services: HashMap<String, BTreeMap<String, BTreeMap<String, String>>>,
    owners: HashMap<(&'static str, Key), Selector>,
}

impl Selectors {
    /// Sets or removes a Service. One without a selector selects nothing.
    pub fn set_service(&mut self, key: &Key, selector: Option<BTreeMap<String, String>>) {
        let services = self.services.entry(key.namespace.clone()).or_default();
        match selector.filter(|selector| !selector.is_empty()) {
            Some(selector) => drop(services.insert(key.name.clone(), selector)),
            None => drop(services.remove(&key.name)),
        }
    }

    pub fn set_owner(&mut self, kind: &'static str, key: &Key, selector: Option<Selector>) {
        match selector {
            Some(selector) => drop(self.owners.insert((kind, key.clone()), selector)),
            None => drop(self.owners.remove(&(kind, key.clone()))),
        }
    }

    /// Returns the combined selector of all that select the pod; empty if none does.
    pub fn of(&self, pod: &PodRow) -> Selector {
        let mut labels = BTreeMap::new();
        for selector in self.services.get(pod.namespace()).into_iter().flat_map(BTreeMap::values) {
            if selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value)) {
                labels.extend(selector.clone());
            }
        }
        let mut selector = Selector::from_set(&labels);
        if let Some((kind, name)) = &pod.demand.owner {
            let kind = ["ReplicationController", "ReplicaSet", "StatefulSet"].into_iter().find(|known| known == kind);
            let key = Key { namespace: pod.namespace().to_owned(), name: name.clone() };
            let owner = kind.and_then(|kind| self.owners.get(&(kind, key)));
            for requirement in owner.iter().flat_map(|owner| owner.requirements()) {
                selector = selector.and(requirement.clone());
            }
        }
        selector
    }
}
