//! Owner references: the objects that a controller owns, and the writes that adopt and release them.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use corten_client::Change;
use corten_meta::{Key, Object, Selector};
use serde_json::{Value, json};

use crate::runtime::{Action, PodRow, ResourceType, View, key_of};

/// Returns the controller reference to an owner, for objects that it creates.
pub fn controller_reference<K: Typed>(owner: &K) -> OwnerReference {
    let api_version = if K::GROUP.is_empty() { K::VERSION.to_owned() } else { format!("{}/{}", K::GROUP, K::VERSION) };
    OwnerReference {
        api_version,
        kind: K::KIND.to_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|reference| reference.controller == Some(true))
}

pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|owner| owner.uid == uid)
}

/// Converts a label selector as upstream does; one that does not parse selects nothing.
pub fn selector(selector: &LabelSelector) -> Selector {
    let requirements: Vec<Value> = selector.match_expressions.iter().flatten()
        .map(|requirement| json!({"key": requirement.key, "operator": requirement.operator, "values": requirement.values}))
        .collect();
    let value = json!({"matchLabels": selector.match_labels, "matchExpressions": requirements});
    Selector::from_label_selector(&value).unwrap_or_else(|_| Selector::nothing())
}

pub struct Claimed<T> {
    pub owned: Vec<T>,
    pub actions: Vec<Action>,
}

/// An object that a controller can adopt, decoded or as a row.
pub trait Claimable: Clone {
    fn claim_name(&self) -> &str;
    fn claim_labels(&self) -> Option<&BTreeMap<String, String>>;
    /// Returns the uid of the object's controller.
    fn controller_uid(&self) -> Option<&str>;
    fn is_leaving(&self) -> bool;
    /// Keeps the owner references for which `keep` returns true, and adds one.
    fn reference_anew(&self, keep: &dyn Fn(&str) -> bool, add: Option<OwnerReference>) -> Action;
}

impl<T: Typed> Claimable for T {
    fn claim_name(&self) -> &str {
        self.name()
    }

    fn claim_labels(&self) -> Option<&BTreeMap<String, String>> {
        self.meta().labels.as_ref()
    }

    fn controller_uid(&self) -> Option<&str> {
        controller_of(self.meta()).map(|owner| owner.uid.as_str())
    }

    fn is_leaving(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    fn reference_anew(&self, keep: &dyn Fn(&str) -> bool, add: Option<OwnerReference>) -> Action {
        let kept = self.meta().owner_references.iter().flatten().filter(|reference| keep(&reference.uid)).cloned();
        set_references(self, kept.chain(add).collect())
    }
}

impl Claimable for PodRow {
    fn claim_name(&self) -> &str {
        self.name()
    }

    fn claim_labels(&self) -> Option<&BTreeMap<String, String>> {
        Some(&self.object.header.labels)
    }

    fn controller_uid(&self) -> Option<&str> {
        self.object.controller().map(|owner| owner.uid.as_str())
    }

    fn is_leaving(&self) -> bool {
        self.object.header.deletion_timestamp.is_some()
    }

    fn reference_anew(&self, keep: &dyn Fn(&str) -> bool, add: Option<OwnerReference>) -> Action {
        reference_anew(ResourceType::of::<Pod>(), &self.object, keep, add.as_ref())
    }
}

/// Changes the owner references of an object that is not decoded. Fails if it changed since it was read.
pub fn reference_anew(
    resource: ResourceType,
    object: &Object,
    keep: &dyn Fn(&str) -> bool,
    add: Option<&OwnerReference>,
) -> Action {
    let mut references = object.value()["metadata"]["ownerReferences"].take();
    let mut kept: Vec<Value> = references.as_array_mut().map(std::mem::take).unwrap_or_default();
    kept.retain(|reference| keep(reference["uid"].as_str().unwrap_or_default()));
    kept.extend(add.map(reference_value));
    let (uid, version) = (&object.header.uid, object.revision.to_string());
    Action::Patch {
        resource,
        key: object.key(),
        patch: json!({"metadata": {"uid": uid, "resourceVersion": version, "ownerReferences": kept}}),
        subresource: None,
    }
}

/// Splits the candidates: matching orphans are adopted, own objects that no longer match are released.
///
/// An owner that is being deleted adopts and releases nothing: the garbage collector decides about its objects.
pub fn claim<O: Typed, T: Claimable>(owner: &O, selector: &Selector, candidates: &[T]) -> Claimed<T> {
    let uid = owner.meta().uid.as_deref().unwrap_or_default();
    let leaving = owner.meta().deletion_timestamp.is_some();
    let mut claimed = Claimed { owned: Vec::with_capacity(candidates.len()), actions: Vec::new() };
    let mut candidates: Vec<&T> = candidates.iter().collect();
    candidates.sort_unstable_by(|a, b| a.claim_name().cmp(b.claim_name()));
    for candidate in candidates {
        let matches = selector.matches(candidate.claim_labels().unwrap_or(&BTreeMap::new()));
        match candidate.controller_uid() {
            Some(other) if other != uid => {}
            Some(_) if matches => claimed.owned.push(candidate.clone()),
            Some(_) if leaving => {}
            Some(_) => claimed.actions.push(candidate.reference_anew(&|one| one != uid, None)),
            None if !matches || leaving || candidate.is_leaving() => {}
            None => {
                claimed.actions.push(candidate.reference_anew(&|_| true, Some(controller_reference(owner))));
                claimed.owned.push(candidate.clone());
            }
        }
    }
    claimed
}

/// Replaces the owner references. Fails if the object changed since it was read.
fn set_references<T: Typed>(object: &T, references: Vec<OwnerReference>) -> Action {
    let references: Vec<Value> = references.iter().map(reference_value).collect();
    let version = &object.meta().resource_version;
    Action::patch(object, json!({"metadata": {"resourceVersion": version, "ownerReferences": references}}))
}

fn reference_value(reference: &OwnerReference) -> Value {
    let mut value = json!({
        "apiVersion": reference.api_version, "kind": reference.kind, "name": reference.name, "uid": reference.uid,
    });
    for (field, set) in [("controller", reference.controller), ("blockOwnerDeletion", reference.block_owner_deletion)] {
        if let Some(set) = set {
            value[field] = json!(set);
        }
    }
    value
}

/// Returns the changed object if it has just become an orphan or its labels have changed. Other changes of an orphan
/// concern no controller.
pub fn new_orphan(change: &Change) -> Option<&Arc<Object>> {
    let orphan = change.new.as_ref().filter(|object| object.controller().is_none())?;
    let known = |old: &Arc<Object>| old.controller().is_none() && old.header.labels == orphan.header.labels;
    (!change.old.as_ref().is_some_and(known)).then_some(orphan)
}

/// Returns the keys of the controllers of one kind that control the changed object, or did before.
pub fn owners_of(change: &Change, kind: &str) -> Vec<Key> {
    let mut keys: Vec<Key> = [&change.old, &change.new]
        .into_iter()
        .flatten()
        .filter_map(|object| object.controller().filter(|owner| owner.kind == kind))
        .map(|owner| Key { namespace: change.key.namespace.clone(), name: owner.name.clone() })
        .collect();
    keys.dedup();
    keys
}

/// Returns the keys of the controllers whose selector matches an orphan.
pub fn matching_orphan<K: Typed>(view: &dyn View, orphan: &Object, selector: fn(&K) -> Option<Selector>) -> Vec<Key> {
    if orphan.header.labels.is_empty() {
        return Vec::new();
    }
    let all: Vec<K> = view.all(&orphan.header.namespace);
    let takes = |controller: &&K| selector(controller).is_some_and(|selector| selector.matches(&orphan.header.labels));
    all.iter().filter(takes).map(key_of).collect()
}
