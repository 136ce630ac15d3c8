//! Storage protection: a finalizer keeps volumes, claims and VolumeAttributesClasses until nothing uses them.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use corten_api::k8s_openapi::api::storage::v1::VolumeAttributesClass;
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use crate::runtime::{Action, Controller, Plan, View, Watch, decode};
use crate::volume_claims::{claims_of, is_shut_down, uses};

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
const CLASS_FINALIZER: &str = "kubernetes.io/vac-protection";

pub struct ClaimProtectionController;
pub struct VolumeProtectionController;
pub struct AttributesClassProtectionController;

impl Controller for ClaimProtectionController {
    type Observed = (PersistentVolumeClaim, bool);

    const NAME: &'static str = "pvc-protection-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<PersistentVolumeClaim>(), Watch::mapped::<Pod>(of_pod)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Self::Observed> {
        let claim: PersistentVolumeClaim = view.typed(key)?;
        // The users matter only for a claim that is being deleted.
        let leaving = claim.metadata.deletion_timestamp.is_some();
        let used = leaving && view.all::<Pod>(&key.namespace).iter().any(|pod| uses(pod, &claim));
        Some((claim, used))
    }

    fn reconcile(&self, (claim, used): &Self::Observed, _now: Timestamp) -> Plan {
        let mut plan = protect(claim, CLAIM_FINALIZER, *used);
        // A pod may have been scheduled a moment ago: without its claim it would lose its data.
        if !plan.is_empty() && claim.metadata.deletion_timestamp.is_some() {
            plan.actions.insert(0, Action::Unused { claim: Box::new(claim.clone()) });
        }
        plan
    }
}

impl Controller for VolumeProtectionController {
    type Observed = PersistentVolume;

    const NAME: &'static str = "pv-protection-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<PersistentVolume>()]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<PersistentVolume> {
        view.typed(key)
    }

    fn reconcile(&self, volume: &PersistentVolume, _now: Timestamp) -> Plan {
        let bound = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        protect(volume, VOLUME_FINALIZER, bound)
    }
}

impl Controller for AttributesClassProtectionController {
    type Observed = (VolumeAttributesClass, bool);

    const NAME: &'static str = "volumeattributesclass-protection-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<VolumeAttributesClass>(),
            Watch::mapped::<PersistentVolumeClaim>(|_, change| left(change, classes_of_claim)),
            Watch::mapped::<PersistentVolume>(|_, change| left(change, classes_of_volume)),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Self::Observed> {
        let class: VolumeAttributesClass = view.typed(key)?;
        let named = |classes: Vec<String>| classes.contains(&key.name);
        let used = class.metadata.deletion_timestamp.is_some()
            && (view.all::<PersistentVolumeClaim>("").iter().any(|claim| named(classes_of_claim(claim)))
                || view.all::<PersistentVolume>("").iter().any(|volume| named(classes_of_volume(volume))));
        Some((class, used))
    }

    fn reconcile(&self, (class, used): &Self::Observed, _now: Timestamp) -> Plan {
        protect(class, CLASS_FINALIZER, *used)
    }
}

/// Returns the classes that a claim requests, has, or is being modified to.
fn classes_of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let status = claim.status.as_ref();
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
    let present = status.and_then(|status| status.current_volume_attributes_class_name.clone());
    let target =
        status.and_then(|status| status.modify_volume_status.as_ref()?.target_volume_attributes_class_name.clone());
    [wanted, present, target].into_iter().flatten().collect()
}

fn classes_of_volume(volume: &PersistentVolume) -> Vec<String> {
    volume.spec.iter().filter_map(|spec| spec.volume_attributes_class_name.clone()).collect()
}

/// Returns the classes that an object named before the change and no longer does: one of them may be unused now.
fn left<K: Typed>(change: &Change, classes: fn(&K) -> Vec<String>) -> Vec<Key> {
    let before = change.old.as_ref().and_then(decode::<K>).map(|old| classes(&old)).unwrap_or_default();
    let after = change.new.as_ref().and_then(decode::<K>).map(|new| classes(&new)).unwrap_or_default();
    before.into_iter().filter(|class| !after.contains(class)).map(|class| Key::new("", class)).collect()
}

/// Returns the claims of a pod that no longer uses them.
fn of_pod(_: &dyn View, change: &Change) -> Vec<Key> {
    let gone = change.new.is_none();
    // Of the existing pods only terminating ones may have stopped their use: most are not even decoded.
    let version = change.object().filter(|pod| gone || pod.header.deletion_timestamp.is_some());
    let Some(pod) = version.and_then(decode::<Pod>).filter(|pod| gone || is_shut_down(pod)) else { return Vec::new() };
    claims_of(&pod).map(|name| Key::new(change.key.namespace.clone(), name)).collect()
}

fn protect<K: Typed>(object: &K, finalizer: &str, used: bool) -> Plan {
    let mut updated = object.clone();
    let held = updated.meta().finalizers.iter().flatten().any(|name| name == finalizer);
    let leaving = updated.meta().deletion_timestamp.is_some();
    let finalizers = updated.meta_mut().finalizers.get_or_insert_default();
    match (leaving, held) {
        (false, false) => finalizers.push(finalizer.to_owned()),
        (true, true) if !used => finalizers.retain(|name| name != finalizer),
        _ => return Plan::nothing(),
    }
    Plan::from(Action::update(&updated))
}
