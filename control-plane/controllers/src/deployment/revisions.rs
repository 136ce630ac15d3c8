//! The new ReplicaSet, its revision number, and the history that `kubectl rollout` reads.

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet, ReplicaSetSpec};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Pass, bounds, replicas, rollout, size_of, total};
use crate::runtime::{Action, Reference, Report, ResourceType};
use crate::workload::owner;
use crate::workload::template::{self, TEMPLATE_HASH_LABEL, without_hash};

pub const REVISION: &str = "deployment.kubernetes.io/revision";
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
pub const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
/// The annotations of a Deployment that its ReplicaSets do not inherit.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];
const MAX_HISTORY_CHARACTERS: usize = 2000;
const MAX_NAME: usize = 253;

/// Returns the oldest ReplicaSet with the Deployment's template. The slice is sorted by age.
pub fn find_new(deployment: &Deployment, sets: &[ReplicaSet]) -> Option<usize> {
    let wanted = without_hash(&deployment.spec.as_ref()?.template);
    sets.iter().position(|set| {
        let template = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
        template.is_some_and(|template| without_hash(template) == wanted)
    })
}

/// Returns the name of the ReplicaSet for the current template, and the hash in it.
pub fn new_name(deployment: &Deployment) -> Option<(String, String)> {
    let salt = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = template::hash(deployment.to_value().pointer("/spec/template")?, salt);
    let name: String = deployment.name().chars().take(MAX_NAME - 1 - hash.len()).collect();
    Some((format!("{name}-{hash}"), hash))
}

pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

pub fn revision(set: &ReplicaSet) -> i64 {
    annotation(&set.metadata, REVISION).and_then(|revision| revision.parse().ok()).unwrap_or(0)
}

/// Writes the sizes a ReplicaSet was scaled for, so that a later change of them is recognised as scaling.
pub fn annotate_bounds(set: &mut ReplicaSet, deployment: &Deployment) -> bool {
    let desired = replicas(deployment);
    let annotations = set.metadata.annotations.get_or_insert_default();
    let mut changed = false;
    for (key, value) in [(DESIRED_REPLICAS, desired), (MAX_REPLICAS, desired.saturating_add(bounds(deployment).0))] {
        let value = value.to_string();
        changed |= annotations.get(key) != Some(&value);
        annotations.insert(key.to_owned(), value);
    }
    changed
}

/// Copies the inherited annotations and sets the new revision; the old revision goes into the revision history.
fn annotate(set: &mut ReplicaSet, deployment: &Deployment, new_revision: i64) -> bool {
    let before = set.metadata.annotations.clone().unwrap_or_default();
    let annotations = set.metadata.annotations.get_or_insert_default();
    let inherited = deployment.metadata.annotations.iter().flatten();
    annotations
        .extend(inherited.filter(|(key, _)| !NOT_COPIED.contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone())));
    let current = before.get(REVISION).and_then(|revision| revision.parse::<i64>().ok());
    if current.unwrap_or(0) < new_revision {
        annotations.insert(REVISION.to_owned(), new_revision.to_string());
        if let Some(current) = current {
            let history = annotations.get(REVISION_HISTORY).map(String::as_str).unwrap_or_default();
            let history = lengthened_history(history, &current.to_string());
            annotations.insert(REVISION_HISTORY.to_owned(), history);
        }
    }
    *annotations != before
}

/// Sets the Deployment's revision to that of its new ReplicaSet; reports whether it changed. It is written with the
/// status: an update of the main resource would increment the generation.
pub fn take_revision(deployment: &mut Deployment, new: &ReplicaSet) -> bool {
    let Some(revision) = annotation(&new.metadata, REVISION) else { return false };
    let before =
        deployment.metadata.annotations.get_or_insert_default().insert(REVISION.to_owned(), revision.to_owned());
    before.as_deref() != Some(revision)
}

fn lengthened_history(history: &str, revision: &str) -> String {
    let mut revisions: Vec<&str> = history.split(',').filter(|revision| !revision.is_empty()).collect();
    revisions.push(revision);
    while revisions.len() > 1 && revisions.join(",").len() > MAX_HISTORY_CHARACTERS {
        revisions.remove(0);
    }
    revisions.join(",")
}

impl Pass<'_> {
    /// Updates revision, inherited annotations and minReadySeconds of the new ReplicaSet, and the Deployment's own
    /// revision. Reports whether it planned a write.
    pub(super) fn sync_revision(&mut self) -> bool {
        let Some(new) = &self.new else { return false };
        let next = self.old.iter().map(revision).max().unwrap_or(0).saturating_add(1);
        let mut updated = new.clone();
        let annotated = annotate(&mut updated, &self.deployment, next);
        let wanted = self.deployment.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
        let spec = updated.spec.get_or_insert_default();
        let same_min_ready = spec.min_ready_seconds.unwrap_or(0) == wanted.unwrap_or(0);
        spec.min_ready_seconds = wanted;
        if annotated || !same_min_ready {
            self.plan.push(Action::update(&updated));
            return true;
        }
        let mut deployment = self.deployment.clone();
        if take_revision(&mut deployment, new) {
            self.plan.push(Action::update_status(&deployment));
            return true;
        }
        false
    }

    /// Creates the ReplicaSet of the current template, or increments the collision count if another object has its
    /// name.
    pub(super) fn create_new(&mut self) {
        let Some(set) = self.new_replica_set() else { return };
        if self.observed.collides {
            let status = self.deployment.status.get_or_insert_with(DeploymentStatus::default);
            status.collision_count = Some(status.collision_count.unwrap_or(0).saturating_add(1));
            self.plan.push(Action::update_status(&self.deployment));
            return;
        }
        let size = size_of(&set);
        self.plan.push(Action::Create {
            resource: ResourceType::of::<ReplicaSet>(),
            object: set.to_value(),
            report: Some(Report {
                about: Reference::to(&self.deployment),
                success: ("", "".into()),
                failure: ("ReplicaSetCreateError", "Failed to create new replica set: ".into()),
            }),
        });
        if size > 0 {
            let message = format!("Scaled up replica set {} from 0 to {size}", set.name());
            self.plan.push(Action::normal(&self.deployment, "ScalingReplicaSet", message));
        }
        self.mark_created(&set);
    }

    fn new_replica_set(&self) -> Option<ReplicaSet> {
        let spec = self.deployment.spec.as_ref()?;
        let (name, hash) = new_name(&self.deployment)?;
        let mut template = spec.template.clone();
        let hash_label = (TEMPLATE_HASH_LABEL.to_owned(), hash.clone());
        template.metadata.get_or_insert_default().labels.get_or_insert_default().extend([hash_label.clone()]);
        let mut selector = spec.selector.clone();
        selector.match_labels.get_or_insert_default().extend([hash_label]);
        let mut set = ReplicaSet {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: self.deployment.metadata.namespace.clone(),
                labels: template.metadata.as_ref().and_then(|meta| meta.labels.clone()),
                owner_references: Some(vec![owner::controller_reference(&self.deployment)]),
                ..ObjectMeta::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: Some(0),
                min_ready_seconds: spec.min_ready_seconds,
                selector,
                template: Some(template),
            }),
            status: None,
        };
        let size = rollout::new_size(&self.deployment, total(self.old.iter().map(size_of)), 0);
        set.spec.get_or_insert_default().replicas = Some(size);
        annotate(&mut set, &self.deployment, self.old.iter().map(revision).max().unwrap_or(0).saturating_add(1));
        annotate_bounds(&mut set, &self.deployment);
        Some(set)
    }

    /// Deletes the oldest empty ReplicaSets beyond the revision history limit.
    pub(super) fn clean_up(&mut self) {
        let Some(limit) = self.deployment.spec.as_ref().and_then(|spec| spec.revision_history_limit) else { return };
        let mut alive: Vec<&ReplicaSet> =
            self.old.iter().filter(|set| set.metadata.deletion_timestamp.is_none()).collect();
        let surplus = alive.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        alive.sort_by_key(|set| (revision(set), set.metadata.creation_timestamp.as_ref().map(|time| time.0)));
        let idle = |set: &&&ReplicaSet| {
            let status = set.status.clone().unwrap_or_default();
            status.replicas == 0 && size_of(set) == 0 && set.metadata.generation <= status.observed_generation
        };
        self.plan.actions.extend(alive.iter().take(surplus).filter(idle).map(|set| Action::delete(*set)));
    }
}
