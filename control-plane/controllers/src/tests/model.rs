//! A model of the cluster for tests: objects in memory, with plans applied as by the API server.
//!
//! It checks the two properties of every controller: it converges to an empty plan, and the order of lists does not
//! matter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolume, Pod, Service};
use corten_client::Change;
use corten_meta::{Key, Object, Value};
use jiff::Timestamp;
use serde_json::json;

use crate::runtime::{
    Action, Decide, Failure, Plan, ResourceType, ScaleAnswer, ScaleQuestion, View, claim_of_volume, node_of_pod,
    selector_of_service,
};
use crate::volume_claims::uses;

pub use testkit_fixture::NOW;

/// One change of the model, as a watch would report it; a deleted object has no state after it.
#[derive(Clone)]
pub struct LoggedChange {
    pub kind: String,
    pub change: Change,
}

#[derive(Clone, Default)]
pub struct Model {
    objects: BTreeMap<(String, Key), Arc<Object>>,
    pub revision: u64,
    /// All changes so far, if they are logged.
    pub log: Option<Vec<LoggedChange>>,
    /// Whether deleted pods that run stay until their kubelet removes them.
    pub graceful: bool,
    /// Whether lists are reversed.
    pub reversed: bool,
    pub failure: Option<Failure>,
    /// The scales that the server returns.
    pub scales: BTreeMap<ScaleQuestion, ScaleAnswer>,
    /// `Type reason message` of every recorded event.
    pub events: Vec<String>,
    /// `node/name` of every directory that nodes removed.
    pub removed: BTreeSet<String>,
}

impl View for Model {
    fn get(&self, resource: ResourceType, key: &Key) -> Option<Arc<Object>> {
        self.objects.get(&(resource.kind.to_owned(), key.clone())).cloned()
    }

    fn list(&self, resource: ResourceType, namespace: &str) -> Vec<Arc<Object>> {
        let matching = self
            .objects
            .iter()
            .filter(|((kind, key), _)| *kind == resource.kind && (namespace.is_empty() || key.namespace == namespace));
        let mut found: Vec<Arc<Object>> = matching.map(|(_, object)| object.clone()).collect();
        if self.reversed {
            found.reverse();
        }
        found
    }

    fn owned(&self, resource: ResourceType, uid: &str) -> Vec<Arc<Object>> {
        let mut found = self.list(resource, "");
        found.retain(|object| object.header.owners.iter().any(|owner| owner.uid == uid));
        found
    }

    fn orphans(&self, resource: ResourceType, namespace: &str) -> Vec<Arc<Object>> {
        let mut found = self.list(resource, namespace);
        found.retain(|object| object.controller().is_none());
        found
    }

    fn labelled(&self, resource: ResourceType, namespace: &str, (key, value): (&str, &str)) -> Vec<Arc<Object>> {
        let mut found = self.list(resource, namespace);
        found.retain(|object| object.header.labels.get(key).map(String::as_str) == Some(value));
        found
    }

    fn services_for(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<Arc<Object>> {
        let mut found = self.list(ResourceType::of::<Service>(), namespace);
        found.retain(|service| {
            selector_of_service(service).iter().next().is_some_and(|(k, v)| labels.get(k) == Some(v))
        });
        found
    }

    fn volumes_for(&self, claim: &Key) -> Vec<Arc<Object>> {
        let mut found = self.list(ResourceType::of::<PersistentVolume>(), "");
        found.retain(|volume| [String::new(), claim.to_string()].contains(&claim_of_volume(volume)));
        found
    }

    fn pods_on(&self, node: &str) -> Vec<Arc<Object>> {
        let mut found = self.list(ResourceType::of::<Pod>(), "");
        found.retain(|pod| node_of_pod(pod).as_deref() == Some(node));
        found
    }

    fn scale(&self, question: &ScaleQuestion) -> Option<ScaleAnswer> {
        self.scales.get(question).cloned()
    }

    fn last_failure(&self) -> Option<Failure> {
        self.failure.clone()
    }
}

impl Model {
    /// Returns a model that logs its changes and deletes pods gracefully.
    pub fn logged() -> Model {
        Model { log: Some(Vec::new()), graceful: true, ..Model::default() }
    }

    /// Returns all objects, with their kinds.
    pub fn objects(&self) -> impl Iterator<Item = (&str, &Arc<Object>)> {
        self.objects.iter().map(|((kind, _), object)| (kind.as_str(), object))
    }

    /// Returns all objects as the initial list of a watch.
    pub fn initial_list(&self) -> impl Iterator<Item = LoggedChange> {
        self.objects.iter().map(|((kind, key), object)| {
            let change = Change { key: key.clone(), old: None, new: Some(object.clone()) };
            LoggedChange { kind: kind.clone(), change }
        })
    }

    /// Stores an object as it is; generates uid and creation time if absent.
    pub fn put(&mut self, mut object: Value) {
        self.revision += 1;
        let kind = object["kind"].as_str().expect("a kind").to_owned();
        let key = Key::new(corten_meta::namespace(&object), corten_meta::name(&object));
        let metadata = object["metadata"].as_object_mut().expect("metadata");
        metadata.entry("uid").or_insert_with(|| json!(format!("uid-{}", self.revision)));
        metadata.entry("creationTimestamp").or_insert_with(|| json!(corten_meta::time::rfc3339(*NOW)));
        metadata.entry("generation").or_insert_with(|| json!(1));
        let object = Arc::new(Object::from_value(&object, self.revision).expect("a valid object"));
        let old = self.objects.insert((kind.clone(), key.clone()), object.clone());
        self.tell(kind, Change { key, old, new: Some(object) });
    }

    fn tell(&mut self, kind: String, change: Change) {
        if let Some(log) = &mut self.log {
            log.push(LoggedChange { kind, change });
        }
    }

    pub fn remove(&mut self, kind: &str, namespace: &str, name: &str) {
        let key = Key::new(namespace, name);
        self.revision += 1;
        if let Some(old) = self.objects.remove(&(kind.to_owned(), key.clone())) {
            self.tell(kind.to_owned(), Change { key, old: Some(old), new: None });
        }
    }

    /// Returns the keys of all objects of a kind.
    pub fn keys(&self, kind: &str) -> Vec<Key> {
        self.objects.keys().filter(|(of, _)| of == kind).map(|(_, key)| key.clone()).collect()
    }

    pub fn find(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.objects.get(&(kind.to_owned(), Key::new(namespace, name))).map(|object| object.value())
    }

    pub fn value(&self, kind: &str, namespace: &str, name: &str) -> Value {
        self.find(kind, namespace, name).unwrap_or_else(|| panic!("no {kind} {namespace}/{name}"))
    }

    pub fn names(&self, kind: &str) -> Vec<String> {
        self.objects.keys().filter(|(of, _)| of == kind).map(|(_, key)| key.name.clone()).collect()
    }

    pub fn typed<K: Typed>(&self) -> Vec<K> {
        let view: &dyn View = self;
        view.all("")
    }

    /// Applies a plan; a failed precondition is a bug of the controller, since there is no other writer.
    pub fn apply(&mut self, plan: &Plan) {
        for action in &plan.actions {
            self.attempt(action).unwrap_or_else(|refused| panic!("{refused}"));
        }
    }

    /// Applies one action, or rejects it as the API server would.
    pub fn attempt(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Event(event) => {
                let kind = if event.warning { "Warning" } else { "Normal" };
                self.events.push(format!("{kind} {} {}", event.reason, event.message));
                Ok(())
            }
            Action::RemoveLocalVolume { node, name, .. } => {
                self.removed.insert(format!("{node}/{name}"));
                Ok(())
            }
            Action::RemoveDirectory { path, .. } => {
                self.removed.insert(path.clone());
                Ok(())
            }
            Action::Create { resource, object, .. } => self.create(*resource, object.clone()),
            Action::Update { resource, object } => self.update(*resource, object.clone(), false),
            Action::UpdateStatus { resource, object } => self.update(*resource, object.clone(), true),
            Action::Patch { resource, key, patch, .. } => self.patch(*resource, key, patch),
            Action::Delete { resource, key, uid, .. } => self.delete(*resource, key, uid),
            Action::AskScale(_) | Action::Relay { .. } => Ok(()),
            Action::Unused { claim } => {
                let view: &dyn View = self;
                match view.all::<Pod>(claim.namespace()).iter().any(|pod| uses(pod, claim)) {
                    true => Err(format!("{} is used", claim.name())),
                    false => Ok(()),
                }
            }
            Action::Absent { resource, key } => match self.get(*resource, key) {
                Some(_) => Err(format!("{key} exists")),
                None => Ok(()),
            },
        }
    }

    fn present(&self, resource: ResourceType, key: &Key) -> Result<Arc<Object>, String> {
        self.get(resource, key).ok_or_else(|| format!("{} {key} is gone", resource.kind))
    }

    fn create(&mut self, resource: ResourceType, mut object: Value) -> Result<(), String> {
        if corten_meta::name(&object).is_empty() {
            let prefix = object["metadata"]["generateName"].as_str().expect("a name or a prefix of one");
            let name = format!("{prefix}{:05}", self.revision);
            object["metadata"]["name"] = json!(name);
        }
        let key = Key::new(corten_meta::namespace(&object), corten_meta::name(&object));
        if self.get(resource, &key).is_some() {
            return Err(format!("{} {key} already exists", resource.kind));
        }
        self.put(object);
        Ok(())
    }

    fn update(&mut self, resource: ResourceType, mut object: Value, status: bool) -> Result<(), String> {
        let key = Key::new(corten_meta::namespace(&object), corten_meta::name(&object));
        let mut current = self.present(resource, &key)?.value();
        if object["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"] {
            return Err(format!("{} {key} is stale", resource.kind));
        }
        if status {
            current["status"] = object["status"].take();
            // Metadata is updated with the status, as for most kinds.
            let annotations = object["metadata"]["annotations"].take();
            if !annotations.is_null() {
                current["metadata"]["annotations"] = annotations;
            }
            self.put(current);
            return Ok(());
        }
        if object["spec"] != current["spec"] {
            object["metadata"]["generation"] = json!(corten_meta::generation(&current) + 1);
        }
        if !current["status"].is_null() {
            object["status"] = current["status"].take();
        }
        self.put_or_release(object);
        Ok(())
    }

    fn patch(&mut self, resource: ResourceType, key: &Key, patch: &Value) -> Result<(), String> {
        let mut current = self.present(resource, key)?.value();
        for field in ["uid", "resourceVersion"] {
            let wanted = &patch["metadata"][field];
            if !wanted.is_null() && *wanted != current["metadata"][field] {
                return Err(format!("{} {key}: {field} differs", resource.kind));
            }
        }
        corten_meta::patch::merge_patch(&mut current, patch);
        self.put_or_release(current);
        Ok(())
    }

    /// Stores an object; removes a deleted one with its last finalizer, if deletions are graceful.
    fn put_or_release(&mut self, object: Value) {
        let free = object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        let left = !object["metadata"]["deletionTimestamp"].is_null() && object["kind"] != "Pod";
        if self.graceful && free && left {
            let kind = object["kind"].as_str().expect("a kind").to_owned();
            return self.remove(&kind, corten_meta::namespace(&object), corten_meta::name(&object));
        }
        self.put(object);
    }

    fn delete(&mut self, resource: ResourceType, key: &Key, uid: &str) -> Result<(), String> {
        let current = self.present(resource, key)?;
        if current.header.uid != uid {
            return Err(format!("{} {key} is another one", resource.kind));
        }
        let lingers = self.graceful && resource.kind == "Pod";
        if current.header.finalizers.is_empty() && !lingers {
            self.remove(resource.kind, &key.namespace, &key.name);
        } else if current.header.deletion_timestamp.is_none() {
            let mut value = current.value();
            value["metadata"]["deletionTimestamp"] = json!(corten_meta::time::rfc3339(*NOW));
            self.put(value);
        }
        Ok(())
    }
}

/// Returns the plan for one key.
pub fn decide(controller: &dyn Decide, model: &Model, namespace: &str, name: &str) -> Plan {
    decide_at(controller, model, &Key::new(namespace, name), *NOW)
}

/// Returns the plan for one key at a time. Decides twice, on lists in both orders: the plans must be equal.
pub fn decide_at(controller: &dyn Decide, model: &Model, key: &Key, now: Timestamp) -> Plan {
    let plan = controller.decide(model, key, now);
    crate::tests::rights::assert_permitted(controller.name(), &plan);
    let mut backwards = model.clone();
    backwards.reversed = !model.reversed;
    assert_eq!(controller.decide(&backwards, key, now), plan, "the order of lists matters to {}", controller.name());
    plan
}

/// Reconciles and applies until the plan is empty; returns the number of writes.
pub fn converges(controller: &dyn Decide, model: &mut Model, namespace: &str, name: &str) -> usize {
    let mut writes = 0;
    for _ in 0..100 {
        let plan = decide(controller, model, namespace, name);
        // Repeated events change nothing.
        if plan.actions.iter().all(Action::is_event) {
            model.apply(&plan);
            return writes;
        }
        writes += plan.actions.iter().filter(|action| !action.is_event()).count();
        model.apply(&plan);
    }
    panic!("{} does not converge: {:?}", controller.name(), decide(controller, model, namespace, name));
}
