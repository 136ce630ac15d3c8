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

    fn name(&self) -> &'static str {
        "pvc-protection-controller"
    }

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

    fn name(&self) -> &'static str {
        "pv-protection-controller"
    }

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

    fn name(&self) -> &'static str {
        "volumeattributesclass-protection-controller"
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::model::{Model, converges, decide, mapped, pod};
    use serde_json::{Value, json};

    fn claim(deleting: bool) -> Value {
        let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": "default", "name": "data"}, "spec": {}});
        if deleting {
            claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            claim["metadata"]["finalizers"] = json!([CLAIM_FINALIZER]);
        }
        claim
    }

    fn user(node: &str) -> Value {
        pod("p")
            .on(node)
            .set("/spec/volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]))
            .value()
    }

    fn finalizers(model: &Model) -> Value {
        model.value("PersistentVolumeClaim", "default", "data")["metadata"]["finalizers"].take()
    }

    #[test]
    fn a_claim_is_held_while_a_scheduled_pod_uses_it() {
        let mut model = Model::default();
        model.put(claim(false));
        converges(&ClaimProtectionController, &mut model, "default", "data");
        assert_eq!(finalizers(&model), json!([CLAIM_FINALIZER]));
        for (node, kept) in [("n", json!([CLAIM_FINALIZER])), ("", json!([]))] {
            model.put(claim(true));
            model.put(user(node));
            converges(&ClaimProtectionController, &mut model, "default", "data");
            assert_eq!(finalizers(&model), kept, "a pod on {node:?}");
        }
        assert_eq!(mapped::<Pod>(&ClaimProtectionController, &model, Some(&user("n")), None), ["default/data"]);
    }

    /// The claim of an ephemeral volume is deleted with its pod: another pod of its name waits for that, and so does
    /// foreground deletion.
    #[test]
    fn the_claim_of_an_ephemeral_volume_is_held_for_its_own_pod_alone() {
        let template = json!({"spec": {}});
        let volumes = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}]);
        let user = |uid: &str| pod("p").on("n").set("/metadata/uid", json!(uid)).set("/spec/volumes", volumes.clone());
        let ending =
            |grace: i64| user("own").deleting().set("/metadata/deletionGracePeriodSeconds", json!(grace)).value();
        for (what, user, kept) in [
            ("its own", user("own").value(), 1),
            ("another", user("other").value(), 0),
            ("ending", ending(30), 1),
            ("shut down", ending(0), 0),
        ] {
            let mut model = Model::default();
            let mut claim = claim(true);
            claim["metadata"]["name"] = json!("p-v");
            claim["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "own", "controller": true}]);
            model.put(claim);
            model.put(user.clone());
            let plan = decide(&ClaimProtectionController, &model, "default", "p-v");
            assert_eq!(matches!(plan.actions.first(), Some(Action::Unused { .. })), kept == 0, "{what}");
            converges(&ClaimProtectionController, &mut model, "default", "p-v");
            let left = model.value("PersistentVolumeClaim", "default", "p-v")["metadata"]["finalizers"].take();
            assert_eq!(left.as_array().map_or(0, Vec::len), kept, "{what}");
            let woken = mapped::<Pod>(&ClaimProtectionController, &model, Some(&user), Some(&user));
            assert_eq!(woken.len(), usize::from(what == "shut down"), "{what}");
        }
    }

    #[test]
    fn a_class_is_held_while_a_claim_or_volume_names_it() {
        let claim = |class: &str| {
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": "default", "name": "data"},
                "spec": {}, "status": {"currentVolumeAttributesClassName": class}})
        };
        for (used, kept) in [("gold", 1), ("silver", 0)] {
            let mut model = Model::default();
            model.put(json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": "gold", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [CLASS_FINALIZER]}, "driverName": "d"}));
            model.put(claim(used));
            converges(&AttributesClassProtectionController, &mut model, "", "gold");
            let class = model.value("VolumeAttributesClass", "", "gold");
            assert_eq!(class["metadata"]["finalizers"].as_array().unwrap().len(), kept, "{used}");
            let keys = mapped::<PersistentVolumeClaim>(
                &AttributesClassProtectionController,
                &model,
                Some(&claim("gold")),
                Some(&claim(used)),
            );
            assert_eq!(keys.len(), 1 - kept, "{used}");
        }
    }

    #[test]
    fn a_volume_is_held_while_it_is_bound() {
        for (phase, kept) in [("Bound", 1), ("Released", 0)] {
            let mut model = Model::default();
            model.put(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [VOLUME_FINALIZER]}, "spec": {}, "status": {"phase": phase}}));
            converges(&VolumeProtectionController, &mut model, "", "v");
            assert_eq!(
                model.value("PersistentVolume", "", "v")["metadata"]["finalizers"].as_array().unwrap().len(),
                kept,
                "{phase}"
            );
        }
    }
}
