//! The retention policy of a StatefulSet's claims: retained, or deleted with the set or with a pod that a scale-down
//! deletes.
//!
//! Nothing is deleted here. A claim to be deleted gets an owner, and the garbage collector deletes it with the owner.
//! Claims that another controller owns, or that belong to an earlier set or pod of the same name, are not changed.

use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::StatefulSet;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use corten_client::Change;
use corten_meta::{Key, Object, Owner};

use super::Pass;
use super::identity::claims_of;
use crate::runtime::{Action, Plan, PodRow, View, decode, key_of};
use crate::workload::owner::controller_reference;

impl Pass<'_> {
    /// Returns whether claims are deleted with the set, and with a pod on scale-down.
    fn policy(&self) -> (bool, bool) {
        let policy = self.spec.persistent_volume_claim_retention_policy.as_ref();
        let deletes = |choice: Option<&String>| choice.is_some_and(|choice| choice == "Delete");
        (
            deletes(policy.and_then(|policy| policy.when_deleted.as_ref())),
            deletes(policy.and_then(|policy| policy.when_scaled.as_ref())),
        )
    }

    /// Returns the owners of a new claim.
    pub(super) fn owners_of_new_claim(&self) -> Option<Vec<OwnerReference>> {
        self.policy().0.then(|| vec![controller_reference(self.set)])
    }

    /// Reports whether a claim of the ordinal still waits for deletion with a deleted pod: the pod's successor must not
    /// use it.
    pub(super) fn has_stale_claim(&self, ordinal: i32) -> bool {
        let pod = format!("{}-{ordinal}", self.set.name());
        self.present_claims(ordinal).any(|claim| claim.header.owners.iter().any(|owner| names(owner, Pod::KIND, &pod)))
    }

    /// Sets the owners that the policy requires on the claims of a pod.
    pub(super) fn align_claims(&self, plan: &mut Plan, ordinal: i32, pod: &PodRow) {
        for claim in self.present_claims(ordinal) {
            let Some(wanted) = self.wanted_owner(claim, pod, ordinal) else { continue };
            let ours = claim.header.owners.iter().filter(|owner| self.is_ours(owner, pod));
            if !ours.eq(wanted.iter()) {
                let keep =
                    |uid: &str| !claim.header.owners.iter().any(|owner| owner.uid == uid && self.is_ours(owner, pod));
                plan.actions.extend(owned_anew(claim, &keep, wanted.as_ref().map(reference_to)));
            }
        }
    }

    fn present_claims(&self, ordinal: i32) -> impl Iterator<Item = &Arc<Object>> {
        claims_of(self.set, ordinal).filter_map(|(name, _)| self.claims.get(name.as_str()).copied())
    }

    /// Reports whether the policy manages the reference.
    fn is_ours(&self, owner: &Owner, pod: &PodRow) -> bool {
        names(owner, StatefulSet::KIND, self.set.name()) || names(owner, Pod::KIND, pod.name())
    }

    /// Returns the owner reference that the policy requires, or that it requires none; nothing if the claim must not be
    /// changed.
    fn wanted_owner(&self, claim: &Object, pod: &PodRow, ordinal: i32) -> Option<Option<Owner>> {
        let (with_set, with_pod) = self.policy();
        let (set_uid, pod_uid) = (self.set.metadata.uid.as_deref().unwrap_or_default(), &pod.object.header.uid);
        let (ours, foreign): (Vec<&Owner>, Vec<&Owner>) =
            claim.header.owners.iter().partition(|owner| self.is_ours(owner, pod));
        if ours.iter().any(|owner| owner.uid != if owner.kind == Pod::KIND { pod_uid } else { set_uid }) {
            return None;
        }
        if (with_set || with_pod) && foreign.iter().any(|owner| owner.controller) {
            return Some(None);
        }
        let scaled_away = !self.ordinals().contains(&ordinal);
        let reference = |api_version: &str, kind: &str, name: &str, uid: &str| Owner {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            controller: true,
            block_owner_deletion: true,
        };
        Some(if with_pod && scaled_away {
            Some(reference("v1", Pod::KIND, pod.name(), pod_uid))
        } else if with_set {
            Some(reference("apps/v1", StatefulSet::KIND, self.set.name(), set_uid))
        } else {
            None
        })
    }
}

/// Returns an update of the claim with the kept references and one more. An update, because the role permits no patch
/// of claims.
fn owned_anew(claim: &Arc<Object>, keep: &dyn Fn(&str) -> bool, add: Option<OwnerReference>) -> Option<Action> {
    let mut updated: PersistentVolumeClaim = decode(claim)?;
    let mut references = updated.metadata.owner_references.take().unwrap_or_default();
    references.retain(|reference| keep(&reference.uid));
    references.extend(add);
    updated.metadata.owner_references = Some(references).filter(|references| !references.is_empty());
    Some(Action::update(&updated))
}

fn reference_to(owner: &Owner) -> OwnerReference {
    OwnerReference {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        controller: Some(owner.controller),
        block_owner_deletion: Some(owner.block_owner_deletion),
    }
}

fn names(owner: &Owner, kind: &str, name: &str) -> bool {
    owner.kind == kind && owner.name == name
}

/// Returns the set whose next pod may wait for the deletion of a claim.
pub(super) fn of_claim(view: &dyn View, change: &Change) -> Vec<Key> {
    if change.new.is_some() {
        return Vec::new();
    }
    let makes = |set: &&StatefulSet| {
        let mut templates = set.spec.iter().flat_map(|spec| spec.volume_claim_templates.iter().flatten());
        templates.any(|template| change.key.name.starts_with(&format!("{}-{}-", template.name(), set.name())))
    };
    view.all::<StatefulSet>(&change.key.namespace).iter().filter(makes).map(key_of).collect()
}
