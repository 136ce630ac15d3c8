//! What becomes of a StatefulSet's claims: kept, or deleted with the set or with the pod that a scale-down takes.
//!
//! Nothing is deleted here. A claim that shall go is given an owner, and goes with it by garbage collection. Claims
//! that somebody else controls, or that belong to an earlier set or pod of the same name, are left alone.

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::StatefulSet;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use corten_client::Change;
use corten_meta::Key;

use super::Pass;
use super::identity::{claims_of, ordinal_of};
use crate::runtime::{Plan, View, key_of};
use crate::workload::owner::{controller_reference, set_references};

impl Pass<'_> {
    /// Whether claims go with the set, and with a pod that is scaled away.
    fn policy(&self) -> (bool, bool) {
        let policy = self.spec.persistent_volume_claim_retention_policy.as_ref();
        let deletes = |choice: Option<&String>| choice.is_some_and(|choice| choice == "Delete");
        (
            deletes(policy.and_then(|policy| policy.when_deleted.as_ref())),
            deletes(policy.and_then(|policy| policy.when_scaled.as_ref())),
        )
    }

    /// The owners of a claim that is made new.
    pub(super) fn owners_of_new_claim(&self) -> Option<Vec<OwnerReference>> {
        self.policy().0.then(|| vec![controller_reference(self.set)])
    }

    /// A claim of the ordinal that still waits to go with a pod that is gone: its successor must not use it.
    pub(super) fn has_stale_claim(&self, ordinal: i32) -> bool {
        let pod = format!("{}-{ordinal}", self.set.name());
        let waits = |claim: &PersistentVolumeClaim| references(claim).iter().any(|owner| names(owner, Pod::KIND, &pod));
        self.present_claims(ordinal).any(waits)
    }

    /// Gives the claims of a pod the owners that the policy asks for.
    pub(super) fn align_claims(&self, plan: &mut Plan, pod: &Pod) {
        let Some(ordinal) = ordinal_of(self.set, pod) else { return };
        for claim in self.present_claims(ordinal) {
            if let Some(wanted) = self.wanted_owners(claim, pod, ordinal).filter(|wanted| *wanted != references(claim))
            {
                plan.push(set_references(claim, wanted));
            }
        }
    }

    fn present_claims(&self, ordinal: i32) -> impl Iterator<Item = &PersistentVolumeClaim> {
        let names: Vec<String> = claims_of(self.set, ordinal).iter().map(|claim| claim.name().to_owned()).collect();
        self.claims.iter().filter(move |claim| names.iter().any(|name| name == claim.name()))
    }

    /// None where the claim must be left as it is.
    fn wanted_owners(&self, claim: &PersistentVolumeClaim, pod: &Pod, ordinal: i32) -> Option<Vec<OwnerReference>> {
        let (with_set, with_pod) = self.policy();
        let of_set = |owner: &OwnerReference| names(owner, StatefulSet::KIND, self.set.name());
        let of_pod = |owner: &OwnerReference| names(owner, Pod::KIND, pod.name());
        let present = references(claim);
        let stale = |owner: &&OwnerReference| {
            (of_set(owner) && Some(&owner.uid) != self.set.metadata.uid.as_ref())
                || (of_pod(owner) && Some(&owner.uid) != pod.metadata.uid.as_ref())
        };
        if present.iter().any(|owner| stale(&owner)) {
            return None;
        }
        let mut wanted: Vec<OwnerReference> =
            present.iter().filter(|owner| !of_set(owner) && !of_pod(owner)).cloned().collect();
        if (with_set || with_pod) && wanted.iter().any(|owner| owner.controller == Some(true)) {
            return Some(wanted);
        }
        let scaled_away = !(self.start()..self.start() + self.replicas()).contains(&ordinal);
        if with_pod && scaled_away {
            wanted.push(controller_reference(pod));
        } else if with_set {
            wanted.push(controller_reference(self.set));
        }
        Some(wanted)
    }
}

fn references(claim: &PersistentVolumeClaim) -> Vec<OwnerReference> {
    claim.metadata.owner_references.clone().unwrap_or_default()
}

fn names(owner: &OwnerReference, kind: &str, name: &str) -> bool {
    owner.kind == kind && owner.name == name
}

/// A claim that is gone may be what the next pod of its name waits for.
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
