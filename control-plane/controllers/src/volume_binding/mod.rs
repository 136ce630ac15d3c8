//! The PersistentVolume controller: binds a claim to the smallest volume that satisfies it, for good.
//!
//! Each side refers to the other. The volume is written first, so that no two claims can take it; then the claim.
//! Volumes that do not exist yet are created by a provisioner, which the claim names. [`phases`] reclaims a volume
//! whose claim is deleted; [`recycling`] scrubs one for the next claim; [`classes`] sets the class of a claim without
//! one.

mod classes;
mod phases;
mod recycling;

pub use phases::VolumePhases;
pub use recycling::{Recycler, Recyclers};

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use corten_api::k8s_openapi::api::storage::v1::StorageClass;
use corten_client::Change;
use corten_meta::{Key, Quantity};
use jiff::Timestamp;

use crate::metrics;
use crate::runtime::{Action, Controller, Plan, View, Watch, decode, key_of};
use crate::workload::owner::selector;

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Binds claims. One worker: two claims must never choose the same volume.
pub struct ClaimBinder;

pub struct Observed {
    claim: PersistentVolumeClaim,
    volumes: Vec<PersistentVolume>,
    class: Option<StorageClass>,
    /// The default class, if no volume satisfies the claim; none if the claim has a class.
    default_class: Option<String>,
}

impl Controller for ClaimBinder {
    type Observed = Observed;

    const NAME: &'static str = "persistent-volume-binder";
    const COMPONENT: &'static str = "persistentvolume-controller";
    const WORKERS: usize = 1;

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<PersistentVolumeClaim>(),
            Watch::mapped::<PersistentVolume>(of_volume),
            Watch::mapped::<StorageClass>(classes::of_class),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let claim: PersistentVolumeClaim = view.typed(key)?;
        let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|name| !name.is_empty());
        let mut volumes: Vec<PersistentVolume> = match named {
            Some(name) => view.typed(&Key::new("", name)).into_iter().collect(),
            None => view.volumes_for(key).iter().filter_map(decode).collect(),
        };
        volumes.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        let wanted = classes::class_of(&claim);
        let class = wanted.and_then(|name| view.typed(&Key::new("", name)));
        let default_class = if wanted.is_none() { classes::default_class(view) } else { None };
        Some(Observed { claim, volumes, class, default_class })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let mut plan = bind(observed);
        count(&mut plan, &observed.claim);
        plan
    }
}

/// Counts the claim as bound or unbound.
fn count(plan: &mut Plan, claim: &PersistentVolumeClaim) {
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let family = if bound { &metrics::CLAIMS_BOUND } else { &metrics::CLAIMS_UNBOUND };
    let attributes = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let class = classes::class_of(claim).unwrap_or_default();
    plan.count(family, [claim.namespace().into(), class.into(), attributes.unwrap_or_default().into()], 1.0);
}

fn bind(observed: &Observed) -> Plan {
    let claim = &observed.claim;
    match claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty()) {
        Some(name) => bound(observed, name),
        None if claim.metadata.deletion_timestamp.is_some() => Plan::nothing(),
        None => unbound(observed),
    }
}

/// Returns the claim that a volume refers to; for an available volume all pending claims.
fn of_volume(view: &dyn View, change: &Change) -> Vec<Key> {
    let versions = [&change.old, &change.new].into_iter().flatten().filter_map(decode::<PersistentVolume>);
    let mut keys: Vec<Key> =
        versions.filter_map(|volume| volume.spec?.claim_ref).map(|reference| key_of_reference(&reference)).collect();
    if keys.is_empty() {
        keys = view.all::<PersistentVolumeClaim>("").iter().filter(is_waiting).map(key_of).collect();
    }
    keys.dedup();
    keys
}

/// Reports whether the claim has no volume yet.
fn is_waiting(claim: &&PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().is_none_or(|spec| spec.volume_name.is_none())
}

fn key_of_reference(reference: &ObjectReference) -> Key {
    Key::new(reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default())
}

/// Reports whether the volume refers to this claim: by name, and by uid if it has one.
fn points_at(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    reference.is_some_and(|reference| {
        let same_uid =
            reference.uid.as_ref().is_none_or(|uid| uid.is_empty() || Some(uid) == claim.metadata.uid.as_ref());
        key_of_reference(reference) == key_of(claim) && same_uid
    })
}

/// Completes the binding of a claim that names its volume: the volume must refer back.
fn bound(observed: &Observed, name: &str) -> Plan {
    let claim = &observed.claim;
    let Some(volume) = observed.volumes.iter().find(|volume| volume.name() == name) else {
        return lost(claim, "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
    };
    let taken = volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_some());
    if taken && !points_at(volume, claim) {
        return lost(claim, "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!");
    }
    if !is_complete(volume, claim) {
        return Plan::from(take(volume, claim, false));
    }
    if claim.metadata.annotations.as_ref().is_none_or(|all| !all.contains_key(BIND_COMPLETED)) {
        return Plan::from(name_volume(claim, volume, false));
    }
    let mut updated = claim.clone();
    let status = updated.status.get_or_insert_default();
    // A bound claim may be smaller than its volume: its file system has not been expanded yet, and the kubelet reports
    // when it is.
    if status.phase.as_deref() != Some("Bound") {
        status.capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.clone());
    }
    status.phase = Some("Bound".to_owned());
    status.access_modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.clone());
    if updated == *claim { Plan::nothing() } else { Plan::from(Action::update_status(&updated)) }
}

fn is_complete(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    points_at(volume, claim) && reference.is_some_and(|reference| reference.uid == claim.metadata.uid)
}

fn lost(claim: &PersistentVolumeClaim, message: &str) -> Plan {
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Lost") {
        return Plan::nothing();
    }
    let mut updated = claim.clone();
    updated.status.get_or_insert_default().phase = Some("Lost".to_owned());
    Plan::from(vec![Action::update_status(&updated), Action::warning(claim, "ClaimLost", message)])
}

fn unbound(observed: &Observed) -> Plan {
    let claim = &observed.claim;
    let reserved = observed.volumes.iter().find(|volume| points_at(volume, claim));
    if let Some(volume) = reserved {
        return match is_complete(volume, claim) {
            true => Plan::from(name_volume(claim, volume, true)),
            false => Plan::from(take(volume, claim, false)),
        };
    }
    let waits =
        observed.class.as_ref().and_then(|class| class.volume_binding_mode.as_deref()) == Some("WaitForFirstConsumer");
    let placed = claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(SELECTED_NODE));
    if waits && !placed {
        return Plan::from(Action::normal(
            claim,
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding",
        ));
    }
    match best_match(&observed.volumes, claim) {
        Some(volume) => Plan::from(take(volume, claim, true)),
        None => classes::assign_default(observed).unwrap_or_else(|| classes::await_provisioner(observed)),
    }
}

/// Returns the smallest available volume that satisfies the claim.
fn best_match<'a>(volumes: &'a [PersistentVolume], claim: &PersistentVolumeClaim) -> Option<&'a PersistentVolume> {
    let wanted = claim.spec.clone().unwrap_or_default();
    let least = wanted.resources.and_then(|resources| resources.requests?.get("storage").cloned());
    let least = least.and_then(|quantity| Quantity::parse(&quantity.0).ok()).map_or(0, |quantity| quantity.as_milli());
    let (chosen, class) = (wanted.selector.as_ref().map(selector), classes::class_of(claim).unwrap_or_default());
    let size = |volume: &PersistentVolume| {
        let capacity = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
        Quantity::parse(&capacity.0).ok().map(|quantity| quantity.as_milli())
    };
    let fits = |volume: &&PersistentVolume| {
        let Some(spec) = &volume.spec else { return false };
        let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
        let offered = spec.access_modes.clone().unwrap_or_default();
        let none = Default::default();
        spec.claim_ref.is_none()
            && volume.metadata.deletion_timestamp.is_none()
            && spec.storage_class_name.as_deref().unwrap_or_default() == class
            && mode(&spec.volume_mode) == mode(&wanted.volume_mode)
            && wanted.access_modes.iter().flatten().all(|mode| offered.contains(mode))
            && chosen.as_ref().is_none_or(|selector| selector.matches(volume.metadata.labels.as_ref().unwrap_or(&none)))
            && size(volume).is_some_and(|size| size >= least)
    };
    volumes.iter().filter(fits).min_by_key(|volume| (size(volume), volume.name().to_owned()))
}

/// Makes the volume refer to the claim.
fn take(volume: &PersistentVolume, claim: &PersistentVolumeClaim, by_controller: bool) -> Action {
    let mut updated = volume.clone();
    updated.spec.get_or_insert_default().claim_ref = Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        ..ObjectReference::default()
    });
    if by_controller {
        updated.metadata.annotations.get_or_insert_default().insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
    }
    Action::update(&updated)
}

/// Makes the claim refer to its volume, and marks the binding as complete.
fn name_volume(claim: &PersistentVolumeClaim, volume: &PersistentVolume, by_controller: bool) -> Action {
    let mut updated = claim.clone();
    updated.spec.get_or_insert_default().volume_name = volume.metadata.name.clone();
    let annotations = updated.metadata.annotations.get_or_insert_default();
    annotations.insert(BIND_COMPLETED.to_owned(), "yes".to_owned());
    if by_controller {
        annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
    }
    Action::update(&updated)
}

#[cfg(test)]
mod tests;
