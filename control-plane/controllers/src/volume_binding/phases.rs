//! The phase of a volume, and its reclaim policy when its claim is deleted: retained, deleted by its provisioner, or
//! scrubbed for the next claim.
//!
//! A volume whose reclaim failed stays `Failed` until it succeeds, so that an administrator sees it.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_client::Change;
use corten_meta::{Key, Object};
use jiff::Timestamp;

use super::recycling::Recyclers;
use super::{BOUND_BY_CONTROLLER, is_complete, key_of_reference, recycling};
use crate::metrics;
use crate::runtime::{
    Action, Controller, Failure, Plan, Reference, Report, ResourceType, View, Watch, claim_of_volume, decode, key_of,
    mentions,
};
use crate::volume_claims::claims_of;
use crate::workload::pods;

pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

const FAILED_DELETE: &str = "VolumeFailedDelete";

/// Updates the phase of volumes, and reclaims them.
#[derive(Default)]
pub struct VolumePhases {
    pub recyclers: Recyclers,
}

pub struct Observed {
    pub volume: PersistentVolume,
    /// The claim with the name that the volume refers to, which may be another one by now.
    pub claim: Option<PersistentVolumeClaim>,
    /// The pod with the name of the volume's recycler.
    pub recycler: Option<Pod>,
    /// The pods that still use the claim of a volume that is to be recycled.
    pub users: Vec<Key>,
    /// The failure of the last attempt to reclaim the volume.
    failure: Option<Failure>,
}

impl Controller for VolumePhases {
    type Observed = Observed;

    const NAME: &'static str = "persistent-volume-binder";
    const COMPONENT: &'static str = "persistentvolume-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<PersistentVolume>(),
            Watch::mapped::<PersistentVolumeClaim>(volumes_of_claim),
            Watch::mapped::<Pod>(of_pod),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let volume: PersistentVolume = view.typed(key)?;
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).map(key_of_reference);
        let claim = reference.as_ref().and_then(|key| view.typed(key));
        let recycles = policy(&volume) == "Recycle" && standing(&volume, claim.as_ref()) == Standing::Released;
        let recycler = recycling::recycler_of(&key.name);
        Some(Observed {
            users: reference.filter(|_| recycles).map(|claim| users_of(view, &claim)).unwrap_or_default(),
            recycler: Some(recycler).filter(|_| recycles).and_then(|pod| view.typed(&pod)),
            failure: view.last_failure().filter(|failure| failure.reason == FAILED_DELETE),
            volume,
            claim,
        })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = self.keep(observed, now);
        count(&mut plan, &observed.volume);
        plan
    }
}

impl VolumePhases {
    fn keep(&self, observed: &Observed, now: Timestamp) -> Plan {
        let volume = &observed.volume;
        match standing(volume, observed.claim.as_ref()) {
            Standing::Free => Plan::from(phase_update(volume, "Available", None, now)),
            Standing::Bound => Plan::from(phase_update(volume, "Bound", None, now)),
            // A volume provisioned for this claim alone is of no use to another.
            Standing::Overtaken if is_provisioned(volume) && policy(volume) == "Delete" => self.released(observed, now),
            Standing::Overtaken => Plan::from(unbind(volume)),
            Standing::Released => self.released(observed, now),
        }
    }

    /// Sets the phase Released first, and then applies the reclaim policy.
    fn released(&self, observed: &Observed, now: Timestamp) -> Plan {
        let volume = &observed.volume;
        if !matches!(phase(volume), "Released" | "Failed") {
            let mut actions = phase_update(volume, "Released", None, now);
            let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            // A claim that another writer bound may not be in the cache yet: only the server knows that it is deleted.
            if let Some(reference) = reference.filter(|_| observed.claim.is_none()) {
                actions.insert(0, Action::absent::<PersistentVolumeClaim>(key_of_reference(reference)));
            }
            return Plan::from(actions);
        }
        match policy(volume) {
            "Recycle" => recycling::recycle(&self.recyclers, observed, now),
            "Delete" => delete(observed, now),
            _ => Plan::nothing(),
        }
    }
}

/// Counts the volume by its plugin and whether it is bound.
fn count(plan: &mut Plan, volume: &PersistentVolume) {
    let Some(spec) = &volume.spec else { return };
    let plugin = match spec {
        spec if spec.host_path.is_some() => "kubernetes.io/host-path",
        spec if spec.nfs.is_some() => "kubernetes.io/nfs",
        spec if spec.local.is_some() => "kubernetes.io/local-volume",
        spec if spec.iscsi.is_some() => "kubernetes.io/iscsi",
        spec if spec.fc.is_some() => "kubernetes.io/fc",
        _ => "N/A",
    };
    let driver = spec.csi.as_ref().map(|csi| format!("kubernetes.io/csi:{}", csi.driver));
    let mode = spec.volume_mode.as_deref().unwrap_or("Filesystem");
    plan.count(&metrics::VOLUMES, [driver.as_deref().unwrap_or(plugin).into(), mode.into()], 1.0);
    let family = if phase(volume) == "Bound" { &metrics::VOLUMES_BOUND } else { &metrics::VOLUMES_UNBOUND };
    plan.count(family, [spec.storage_class_name.as_deref().unwrap_or_default().into()], 1.0);
}

/// The relation of a volume to the claim it refers to.
#[derive(PartialEq, Eq)]
enum Standing {
    Free,
    Bound,
    /// The claim has another volume.
    Overtaken,
    /// The claim is deleted, or another one has its name now: it must not see the data.
    Released,
}

fn standing(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> Standing {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let was_bound = reference.is_some_and(|reference| reference.uid.as_ref().is_some_and(|uid| !uid.is_empty()));
    let given = |claim: &PersistentVolumeClaim| claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    match claim {
        Some(claim) if is_complete(volume, claim) => match given(claim).filter(|name| !name.is_empty()) {
            Some(other) if other != volume.name() => Standing::Overtaken,
            _ => Standing::Bound,
        },
        _ if was_bound => Standing::Released,
        _ => Standing::Free,
    }
}

fn policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain")
}

pub(super) fn phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn is_provisioned(volume: &PersistentVolume) -> bool {
    volume.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(PROVISIONED_BY))
}

/// Updates phase and message, if they changed.
fn phase_update(volume: &PersistentVolume, phase: &str, message: Option<String>, now: Timestamp) -> Vec<Action> {
    let mut updated = volume.clone();
    let status = updated.status.get_or_insert_default();
    if status.phase.as_deref() != Some(phase) {
        status.phase = Some(phase.to_owned());
        status.last_phase_transition_time = Some(Time(now));
    }
    status.message = message;
    if updated == *volume { Vec::new() } else { vec![Action::update_status(&updated)] }
}

/// Reports that the volume could not be reclaimed, once for each reason.
pub(super) fn failed(volume: &PersistentVolume, reason: &str, message: &str, now: Timestamp) -> Plan {
    let mut actions = phase_update(volume, "Failed", Some(message.to_owned()), now);
    if !actions.is_empty() {
        actions.push(Action::warning(volume, reason, message));
    }
    Plan::from(actions)
}

/// Makes the volume available for any claim, or for the one a user reserved it for.
pub(super) fn unbind(volume: &PersistentVolume) -> Action {
    let mut updated = volume.clone();
    let annotations = updated.metadata.annotations.get_or_insert_default();
    let by_controller = annotations.remove(BOUND_BY_CONTROLLER).is_some();
    if annotations.is_empty() {
        updated.metadata.annotations = None;
    }
    let spec = updated.spec.get_or_insert_default();
    match &mut spec.claim_ref {
        Some(reference) if !by_controller => reference.uid = None,
        reference => *reference = None,
    }
    Action::update(&updated)
}

/// Deletes a volume without a provisioner or driver; for others it is the provisioner's task.
fn delete(observed: &Observed, now: Timestamp) -> Plan {
    let volume = &observed.volume;
    let Some(spec) = volume.spec.as_ref().filter(|spec| !is_provisioned(volume) && spec.csi.is_none()) else {
        return Plan::nothing();
    };
    let refused = |message: String| failed(volume, FAILED_DELETE, &message, now);
    match &spec.host_path {
        Some(source) if source.path.starts_with("/tmp/") => {
            let report =
                Report { about: Reference::to(volume), success: ("", "".into()), failure: (FAILED_DELETE, "".into()) };
            let failure = observed.failure.as_ref().map(|failure| failure.message.clone());
            let mut actions = failure.map(|why| phase_update(volume, "Failed", Some(why), now)).unwrap_or_default();
            actions.push(Action::RemoveDirectory { path: source.path.clone(), report });
            actions.push(Action::delete(volume));
            Plan::from(actions)
        }
        Some(source) => {
            refused(format!("host_path deleter only supports /tmp/.+ but received provided {}", source.path))
        }
        None => {
            let name = volume.name();
            refused(format!(
                "error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"
            ))
        }
    }
}

/// Returns the pods that use a claim and have not terminated, by name.
fn users_of(view: &dyn View, claim: &Key) -> Vec<Key> {
    let all = view.list(ResourceType::of::<Pod>(), &claim.namespace);
    let uses = |pod: &Pod| !pods::is_terminal(pod) && claims_of(pod).any(|name| name == claim.name);
    let mut users: Vec<Key> =
        all.iter().filter(|pod| may_use_claims(pod)).filter_map(decode).filter(uses).map(|pod| key_of(&pod)).collect();
    users.sort_unstable();
    users
}

fn may_use_claims(pod: &Object) -> bool {
    mentions(pod, "\"persistentVolumeClaim\"") || mentions(pod, "\"ephemeral\"")
}

/// Returns the volume of a claim; for a deleted claim also the volumes that were provisioned for it and that it does
/// not name.
fn volumes_of_claim(view: &dyn View, change: &Change) -> Vec<Key> {
    let versions = [&change.old, &change.new].into_iter().flatten().filter_map(decode::<PersistentVolumeClaim>);
    let mut keys: Vec<Key> =
        versions.filter_map(|claim| claim.spec?.volume_name).map(|name| Key::new("", name)).collect();
    if change.new.is_none() {
        keys.extend(volumes_pointing_at(view, &change.key));
    }
    keys
}

fn volumes_pointing_at(view: &dyn View, claim: &Key) -> Vec<Key> {
    let volumes = view.volumes_for(claim);
    volumes.iter().filter(|volume| claim_of_volume(volume) == claim.to_string()).map(|volume| volume.key()).collect()
}

/// Returns the volume that the pod scrubs, and those whose claim the pod no longer uses.
fn of_pod(view: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys: Vec<Key> = recycling::volume_of(&change.key).into_iter().collect();
    let ended = change.old.as_ref().filter(|pod| change.new.is_none() && may_use_claims(pod)).and_then(decode::<Pod>);
    for claim in ended.iter().flat_map(claims_of) {
        keys.extend(volumes_pointing_at(view, &Key::new(change.key.namespace.clone(), claim)));
    }
    keys
}
