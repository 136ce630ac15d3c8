//! Adoption and release: which objects a controller owns, and the writes that make the references say so.

use corten_api::Typed;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use corten_meta::Selector;
use serde_json::{Value, json};

use crate::runtime::Action;

/// The reference a controller puts on what it creates.
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

/// A label selector as upstream reads it; one that does not parse selects nothing.
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

/// Sorts the candidates into owned and not: matching orphans are adopted, own objects that match no longer released.
///
/// An owner on its way out adopts nothing, and releases nothing: the garbage collector decides about its objects.
pub fn claim<O: Typed, T: Typed>(owner: &O, selector: &Selector, candidates: &[T]) -> Claimed<T> {
    let uid = owner.meta().uid.as_deref().unwrap_or_default();
    let leaving = owner.meta().deletion_timestamp.is_some();
    let mut claimed = Claimed { owned: Vec::new(), actions: Vec::new() };
    let mut candidates: Vec<&T> = candidates.iter().collect();
    candidates.sort_by(|a, b| a.name().cmp(b.name()));
    for candidate in candidates {
        let meta = candidate.meta();
        let matches = selector.matches(meta.labels.as_ref().unwrap_or(&Default::default()));
        match controller_of(meta) {
            Some(reference) if reference.uid != uid => {}
            Some(_) if matches => claimed.owned.push(candidate.clone()),
            Some(_) if leaving => {}
            Some(_) => claimed.actions.push(references_patch(candidate, |reference| reference.uid != uid, None)),
            None if !matches || leaving || meta.deletion_timestamp.is_some() => {}
            None => {
                let reference = controller_reference(owner);
                claimed.actions.push(references_patch(candidate, |_| true, Some(reference)));
                claimed.owned.push(candidate.clone());
            }
        }
    }
    claimed
}

fn references_patch<T: Typed>(
    object: &T,
    keep: impl Fn(&OwnerReference) -> bool,
    add: Option<OwnerReference>,
) -> Action {
    let kept = object.meta().owner_references.iter().flatten().filter(|reference| keep(reference)).cloned();
    set_references(object, kept.chain(add).collect())
}

/// Replaces the owner references of exactly the version that was looked at.
pub fn set_references<T: Typed>(object: &T, references: Vec<OwnerReference>) -> Action {
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
