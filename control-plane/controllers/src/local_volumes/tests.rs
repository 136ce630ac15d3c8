//! A claim from its provisioning to the removal of its directory, together with the controller that binds it.

use super::*;
use crate::tests::model::{Model, converges, decide};
use crate::volume_binding::{ClaimBinder, VolumePhases};

fn class(policy: &str) -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "standard"},
        "provisioner": PROVISIONER, "reclaimPolicy": policy, "volumeBindingMode": "WaitForFirstConsumer"})
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
        "labels": {HOSTNAME: name}, "annotations": {PLACE: "/data/local-volumes"}}})
}

fn claim(extra: Value) -> Value {
    let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "default", "name": "data", "uid": "1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "standard",
            "resources": {"requests": {"storage": "1Gi"}}}});
    corten_meta::patch::merge_patch(&mut claim, &extra);
    claim
}

fn placed() -> Value {
    json!({"metadata": {"annotations": {SELECTED_NODE: "a"}}})
}

/// Reconciles with all controllers until none plans a write.
fn settle(model: &mut Model) {
    for _ in 0..5 {
        converges(&ClaimBinder, model, "default", "data");
        converges(&Provisioner, model, "default", "data");
        for name in model.names("PersistentVolume") {
            converges(&VolumePhases::default(), model, "", &name);
            if model.find("PersistentVolume", "", &name).is_some() {
                converges(&Reclaimer, model, "", &name);
            }
        }
    }
}

fn cluster(policy: &str, claim: Value) -> Model {
    let mut model = Model::logged();
    [class(policy), node("a"), claim].into_iter().for_each(|object| model.put(object));
    settle(&mut model);
    model
}

#[test]
fn a_claim_waits_for_its_first_pod_and_then_gets_a_directory_there() {
    let mut model = cluster("Delete", claim(json!({})));
    assert!(model.names("PersistentVolume").is_empty());
    model.put(claim(placed()));
    settle(&mut model);
    let volume = model.value("PersistentVolume", "", "pvc-1");
    assert_eq!(volume["spec"]["local"]["path"], "/data/local-volumes/pvc-1_default_data");
    assert_eq!(volume["spec"]["capacity"]["storage"], "1Gi");
    assert_eq!(volume["status"]["phase"], "Bound");
    let bound = model.value("PersistentVolumeClaim", "default", "data");
    assert_eq!((&bound["spec"]["volumeName"], &bound["status"]["phase"]), (&json!("pvc-1"), &json!("Bound")));
    assert!(model.removed.is_empty());
    assert!(model.events.iter().any(|event| event.contains(" Provisioning ")), "{:?}", model.events);
}

#[test]
fn a_deleted_claim_takes_its_directory_along_unless_it_is_retained() {
    for (policy, volumes, removed) in [("Delete", 0, 1), ("Retain", 1, 0)] {
        let mut model = cluster(policy, claim(placed()));
        model.remove("PersistentVolumeClaim", "default", "data");
        settle(&mut model);
        assert_eq!(model.names("PersistentVolume").len(), volumes, "{policy}");
        assert_eq!(model.removed.len(), removed, "{policy}");
    }
    let mut model = cluster("Retain", claim(placed()));
    model.remove("PersistentVolumeClaim", "default", "data");
    settle(&mut model);
    let mut volume = model.value("PersistentVolume", "", "pvc-1");
    volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    model.put(volume);
    settle(&mut model);
    assert!(model.names("PersistentVolume").is_empty());
    assert!(model.removed.is_empty(), "what is retained is kept");
}

#[test]
fn a_lost_node_is_forgotten_and_a_lost_disk_not_waited_for() {
    let mut model = Model::logged();
    [class("Delete"), claim(placed())].into_iter().for_each(|object| model.put(object));
    settle(&mut model);
    let waiting = model.value("PersistentVolumeClaim", "default", "data");
    assert!(waiting.pointer("/metadata/annotations").is_none_or(|all| all.get(SELECTED_NODE).is_none()), "{waiting}");

    let mut model = cluster("Delete", claim(placed()));
    model.remove("Node", "", "a");
    model.remove("PersistentVolumeClaim", "default", "data");
    settle(&mut model);
    assert!(model.names("PersistentVolume").is_empty());
}

#[test]
fn what_a_directory_cannot_be_is_refused_with_a_word() {
    for (extra, why) in [
        (json!({"spec": {"accessModes": ["ReadWriteMany"]}}), "ReadWriteOncePod access modes"),
        (json!({"spec": {"volumeMode": "Block"}}), "block devices"),
        (json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}}}), "data source"),
    ] {
        let mut wanted = claim(placed());
        corten_meta::patch::merge_patch(&mut wanted, &extra);
        let model = cluster("Delete", wanted);
        assert!(model.names("PersistentVolume").is_empty());
        let told = model.events.iter().find(|event| event.starts_with("Warning ProvisioningFailed"));
        assert!(told.is_some_and(|event| event.contains(why)), "{why}: {:?}", model.events);
    }
}

#[test]
fn other_provisioners_claims_are_left_alone() {
    let mut other = class("Delete");
    other["provisioner"] = json!("example.com/disk");
    let mut model = Model::default();
    [other, node("a"), claim(placed())].into_iter().for_each(|object| model.put(object));
    settle(&mut model);
    assert!(decide(&Provisioner, &model, "default", "data").is_empty());
    assert!(model.names("PersistentVolume").is_empty());
}
