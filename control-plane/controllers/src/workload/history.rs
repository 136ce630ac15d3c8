//! The history of a template as ControllerRevisions: what DaemonSets and StatefulSets roll forward and back by.

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::ControllerRevision;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use corten_api::k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};

use super::owner::controller_reference;
use super::template;
use crate::runtime::Action;

pub const REVISION_HASH_LABEL: &str = "controller-revision-hash";

/// What must be written so that the present template is the newest revision of the history.
pub enum Current {
    /// It is; nothing to write.
    Is(Box<ControllerRevision>),
    /// It must be created, or an older equal one numbered anew.
    Becomes(Box<Action>),
    /// The name it would have is taken by another.
    Collides,
}

/// Finds or makes the revision of the owner's present template. `all` are the revisions in the namespace.
pub fn current<K: Typed>(owner: &K, all: &[ControllerRevision], collisions: Option<i32>) -> Current {
    let owned = owned(owner, all);
    let data = data_of(owner);
    let newest = owned.last().map_or(0, |revision| revision.revision);
    let equal = owned.iter().rev().find(|revision| revision.data.as_ref().map(|raw| &raw.0) == Some(&data));
    if let Some(equal) = equal {
        if equal.revision == newest {
            return Current::Is(Box::new((*equal).clone()));
        }
        let mut renewed = (*equal).clone();
        renewed.revision = newest + 1;
        return Current::Becomes(Box::new(Action::update(&renewed)));
    }
    let revision = new_revision(owner, data, newest + 1, collisions);
    if all.iter().any(|other| other.name() == revision.name()) {
        return Current::Collides;
    }
    Current::Becomes(Box::new(Action::create(&revision)))
}

/// The owner's revisions, oldest first.
pub fn owned<'a, K: Typed>(owner: &K, all: &'a [ControllerRevision]) -> Vec<&'a ControllerRevision> {
    let uid = owner.meta().uid.as_deref().unwrap_or_default();
    let mut owned: Vec<&ControllerRevision> =
        all.iter().filter(|one| super::owner::is_controlled_by(&one.metadata, uid)).collect();
    owned.sort_by_key(|revision| (revision.revision, revision.name().to_owned()));
    owned
}

/// The template as the patch that `kubectl rollout undo` sends back.
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
    labels.insert(REVISION_HASH_LABEL.to_owned(), hash.clone());
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

/// The hash that pods of a revision carry.
pub fn hash_of(revision: &ControllerRevision) -> String {
    revision.metadata.labels.as_ref().and_then(|labels| labels.get(REVISION_HASH_LABEL)).cloned().unwrap_or_default()
}

/// Deletions of the oldest revisions beyond the limit that nothing runs.
pub fn clean_up(owned: &[&ControllerRevision], live: &[String], limit: i32) -> Vec<Action> {
    let idle: Vec<&&ControllerRevision> = owned.iter().filter(|revision| !live.contains(&hash_of(revision))).collect();
    let surplus = idle.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    idle.into_iter().take(surplus).map(|revision| Action::delete(*revision)).collect()
}
