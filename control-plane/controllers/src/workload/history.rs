//! The revision history of a template as ControllerRevisions, by which DaemonSets and StatefulSets roll forward and
//! back.

use std::collections::BTreeSet;
use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::ControllerRevision;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use corten_api::k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use corten_meta::{Object, Selector};
use serde_json::{Value, json};

use super::owner::{Claimed, claim, controller_reference};
use super::template;
use crate::runtime::{Action, ResourceType, View};

/// The label with a pod's revision: the hash alone for a DaemonSet, the revision's name for a StatefulSet.
pub const REVISION_HASH_LABEL: &str = "controller-revision-hash";
/// The label with a revision's hash. The revisions of a DaemonSet have it under the label of its pods instead.
const HASH_LABEL: &str = "controller.kubernetes.io/hash";

/// The state of the current template in the history.
pub enum Current {
    /// The template is the newest revision.
    Is(Box<ControllerRevision>),
    /// The revision must be created, or an older equal one renumbered.
    Becomes(Box<Action>),
    /// Another object has the revision's name.
    Collides,
}

/// The revisions of one owner at the time of `observe`.
pub struct History {
    /// The owner's revisions, and orphans that match its selector.
    candidates: Vec<ControllerRevision>,
    /// All revisions in the namespace: their names are taken.
    present: Vec<Arc<Object>>,
}

impl History {
    pub fn observe(view: &dyn View, namespace: &str, uid: &str, selector: &Selector) -> History {
        let present = view.list(ResourceType::of::<ControllerRevision>(), namespace);
        History { candidates: view.claimable(namespace, uid, selector), present }
    }

    /// Returns the owner's revisions, oldest first, and the writes that adopt the orphans among them. A set that is
    /// created again after its objects were orphaned continues its history.
    pub fn claim<K: Typed>(&self, owner: &K, selector: &Selector) -> Claimed<ControllerRevision> {
        let mut claimed = claim(owner, selector, &self.candidates);
        claimed.owned.sort_unstable_by(|a, b| (a.revision, a.name()).cmp(&(b.revision, b.name())));
        claimed
    }

    /// Finds or creates the revision of the owner's current template. `owned` is sorted, oldest first.
    pub fn current<K: Typed>(&self, owner: &K, owned: &[ControllerRevision], collisions: Option<i32>) -> Current {
        let data = data_of(owner);
        let newest = owned.last().map_or(0, |revision| revision.revision);
        let equal = owned.iter().rev().find(|revision| revision.data.as_ref().map(|raw| &raw.0) == Some(&data));
        if let Some(equal) = equal {
            if equal.revision == newest {
                return Current::Is(Box::new(equal.clone()));
            }
            let mut renewed = equal.clone();
            renewed.revision = newest + 1;
            return Current::Becomes(Box::new(Action::update(&renewed)));
        }
        let revision = new_revision(owner, data, newest + 1, collisions);
        if self.present.iter().any(|other| other.header.name == revision.name()) {
            return Current::Collides;
        }
        Current::Becomes(Box::new(Action::create(&revision)))
    }
}

/// Returns the template as the patch that `kubectl rollout undo` applies.
fn data_of<K: Typed>(owner: &K) -> Value {
    let mut template = owner.to_value()["spec"]["template"].take();
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

fn new_revision<K: Typed>(owner: &K, data: Value, number: i64, collisions: Option<i32>) -> ControllerRevision {
    let hash = template::hash(&data, collisions.filter(|count| *count > 0));
    let selector = owner.to_value()["spec"]["template"]["metadata"]["labels"].take();
    let mut labels: std::collections::BTreeMap<String, String> = selector
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect();
    let label = if K::KIND == "DaemonSet" { REVISION_HASH_LABEL } else { HASH_LABEL };
    labels.insert(label.to_owned(), hash.clone());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", owner.name())),
            namespace: owner.meta().namespace.clone(),
            labels: Some(labels),
            annotations: owner.meta().annotations.clone(),
            owner_references: Some(vec![controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: number,
    }
}

/// Returns the hash that pods of a revision carry in their label.
pub fn hash_of(revision: &ControllerRevision) -> String {
    let labels = revision.metadata.labels.as_ref();
    let hash = labels.and_then(|labels| labels.get(HASH_LABEL).or_else(|| labels.get(REVISION_HASH_LABEL)));
    hash.cloned().unwrap_or_default()
}

/// Deletes the oldest revisions beyond the limit that no pod runs.
pub fn clean_up(owned: &[ControllerRevision], live: &BTreeSet<&str>, limit: i32) -> Vec<Action> {
    let runs = |revision: &&ControllerRevision| live.contains(hash_of(revision).as_str());
    let idle: Vec<&ControllerRevision> = owned.iter().filter(|revision| !runs(revision)).collect();
    let surplus = idle.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    idle.into_iter().take(surplus).map(Action::delete).collect()
}
