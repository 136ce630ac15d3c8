//! What claims and volumes come to, by table.

use super::*;
use crate::model::{Model, converges, decide, mapped};
use corten_api::k8s_openapi::api::core::v1::Pod;
use phases::PROVISIONED_BY;
use serde_json::{Value, json};

fn volume(name: &str, size: &str, extra: Value) -> Value {
    let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "slow"}});
    corten_meta::patch::merge_patch(&mut volume, &extra);
    volume
}

fn claim(size: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": "default", "name": "data", "uid": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "slow", "resources": {"requests": {"storage": size}}}})
}

fn settle(model: &mut Model) {
    converges(&ClaimBinder, model, "default", "data");
    for name in model.names("PersistentVolume") {
        converges(&VolumePhases, model, "", &name);
    }
}

fn phase(model: &Model, kind: &str, namespace: &str, name: &str) -> Value {
    model.value(kind, namespace, name)["status"]["phase"].take()
}

#[test]
fn a_claim_takes_the_smallest_volume_that_fits() {
    let mut model = Model::default();
    model.put(volume("big", "10Gi", json!({})));
    model.put(volume("fits", "5Gi", json!({})));
    model.put(volume("small", "1Gi", json!({})));
    model.put(volume("other-class", "5Gi", json!({"spec": {"storageClassName": "fast"}})));
    model.put(volume("other-mode", "5Gi", json!({"spec": {"accessModes": ["ReadOnlyMany"]}})));
    model.put(claim("4Gi"));
    settle(&mut model);
    let bound = model.value("PersistentVolumeClaim", "default", "data");
    assert_eq!(
        (&bound["spec"]["volumeName"], &bound["status"]["phase"], &bound["status"]["capacity"]["storage"]),
        (&json!("fits"), &json!("Bound"), &json!("5Gi"))
    );
    assert_eq!(phase(&model, "PersistentVolume", "", "fits"), "Bound");
    assert_eq!(phase(&model, "PersistentVolume", "", "big"), "Available");
}

#[test]
fn a_bound_claim_keeps_its_size_when_its_volume_grows() {
    let mut model = Model::default();
    model.put(volume("v", "5Gi", json!({})));
    model.put(claim("4Gi"));
    settle(&mut model);
    let mut grown = model.value("PersistentVolume", "", "v");
    grown["spec"]["capacity"]["storage"] = json!("9Gi");
    model.put(grown);
    settle(&mut model);
    let bound = model.value("PersistentVolumeClaim", "default", "data");
    assert_eq!(bound["status"]["capacity"]["storage"], "5Gi", "the node says when what lies on it has grown");
}

#[test]
fn a_volume_reserved_for_a_claim_is_its_own() {
    let mut model = Model::default();
    model.put(volume("a", "5Gi", json!({})));
    model.put(volume("mine", "50Gi", json!({"spec": {"claimRef": {"namespace": "default", "name": "data"}}})));
    model.put(claim("4Gi"));
    settle(&mut model);
    assert_eq!(model.value("PersistentVolumeClaim", "default", "data")["spec"]["volumeName"], "mine");
}

#[test]
fn the_volume_of_a_deleted_claim_is_released_and_a_lost_volume_told() {
    let mut model = Model::default();
    model.put(volume("v", "5Gi", json!({})));
    model.put(claim("4Gi"));
    settle(&mut model);
    let bound = model.value("PersistentVolumeClaim", "default", "data");
    model.remove("PersistentVolumeClaim", "default", "data");
    converges(&VolumePhases, &mut model, "", "v");
    assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Released");
    model.put(bound);
    model.remove("PersistentVolume", "", "v");
    settle(&mut model);
    assert_eq!(phase(&model, "PersistentVolumeClaim", "default", "data"), "Lost");
}

#[test]
fn a_released_volume_that_nobody_can_delete_says_so_once() {
    for (extra, expected) in [
        (json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}), ("Released", None)),
        (json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}), ("Failed", Some("VolumeFailedDelete"))),
        (json!({"spec": {"persistentVolumeReclaimPolicy": "Recycle"}}), ("Failed", Some("VolumeFailedRecycle"))),
        (
            json!({"metadata": {"annotations": {PROVISIONED_BY: "example.com/disk"}},
                "spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
            ("Released", None),
        ),
    ] {
        let mut model = Model::default();
        model.put(volume("v", "5Gi", extra));
        model.put(claim("4Gi"));
        settle(&mut model);
        model.remove("PersistentVolumeClaim", "default", "data");
        model.events.clear();
        converges(&VolumePhases, &mut model, "", "v");
        let told: Vec<&str> = model.events.iter().filter_map(|event| event.split(' ').nth(1)).collect();
        assert_eq!(phase(&model, "PersistentVolume", "", "v"), expected.0);
        assert_eq!(told, expected.1.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn without_a_volume_a_claim_says_what_it_waits_for() {
    let class = |mode: &str, provisioner: &str| json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "slow"}, "provisioner": provisioner, "volumeBindingMode": mode});
    for (class, reason) in [
        (None, "FailedBinding"),
        (Some(class("Immediate", "example.com/disk")), "ExternalProvisioning"),
        (Some(class("WaitForFirstConsumer", "example.com/disk")), "WaitForFirstConsumer"),
    ] {
        let mut model = Model::default();
        class.into_iter().for_each(|class| model.put(class));
        model.put(claim("1Gi"));
        settle(&mut model);
        assert!(model.events[0].starts_with(&format!("Normal {reason} ")), "{:?}", model.events);
    }
}

/// A volume on a node's disk whose claim is gone, as its policy finds it.
fn left_behind(extra: Value) -> Model {
    let mut model = Model::default();
    let mut recycled = volume(
        "v",
        "100Gi",
        json!({"spec": {"persistentVolumeReclaimPolicy": "Recycle", "hostPath": {"path": "/data"}}}),
    );
    corten_meta::patch::merge_patch(&mut recycled, &extra);
    model.put(recycled);
    model.put(claim("4Gi"));
    settle(&mut model);
    model.remove("PersistentVolumeClaim", "default", "data");
    model.events.clear();
    model
}

/// Plays the kubelet of the recycler.
fn end_recycler(model: &mut Model, phase: &str) {
    let mut pod = model.value("Pod", "default", "recycler-for-v");
    pod["status"] = json!({"phase": phase, "message": "the disk is on fire", "containerStatuses": [{
        "name": "pv-recycler", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-02T03:04:00Z"}}}]});
    model.put(pod);
}

#[test]
fn a_recycled_volume_is_scrubbed_before_the_next_claim_may_have_it() {
    let mut model = left_behind(json!({}));
    converges(&VolumePhases, &mut model, "", "v");
    assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Released");
    let pod = model.value("Pod", "default", "recycler-for-v");
    assert_eq!(pod["spec"]["activeDeadlineSeconds"], 3000, "half a minute for each GiB");
    assert_eq!(pod["spec"]["volumes"][0]["hostPath"]["path"], "/data");
    assert_eq!(mapped::<Pod>(&VolumePhases, &model, None, Some(&pod)), ["v"]);
    end_recycler(&mut model, "Succeeded");
    converges(&VolumePhases, &mut model, "", "v");
    assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Available");
    assert!(model.value("PersistentVolume", "", "v")["spec"]["claimRef"].is_null());
    assert!(model.names("Pod").is_empty());
    assert_eq!(model.events, ["Normal VolumeRecycled Volume recycled"]);
}

#[test]
fn a_recycler_that_fails_is_told_and_tried_again_after_a_while() {
    let mut model = left_behind(json!({}));
    converges(&VolumePhases, &mut model, "", "v");
    end_recycler(&mut model, "Failed");
    converges(&VolumePhases, &mut model, "", "v");
    let message = "Recycle failed: failed to recycle volume: the disk is on fire";
    assert_eq!(model.value("PersistentVolume", "", "v")["status"]["message"], message);
    assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Failed");
    assert_eq!(model.events, [format!("Warning VolumeFailedRecycle {message}")]);
    let waits = decide(&VolumePhases, &model, "", "v");
    assert_eq!((waits.actions.len(), waits.requeue_after), (0, Some(std::time::Duration::from_secs(10))));
    model.remove("Pod", "default", "recycler-for-v");
    converges(&VolumePhases, &mut model, "", "v");
    end_recycler(&mut model, "Succeeded");
    converges(&VolumePhases, &mut model, "", "v");
    assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Available");
}

#[test]
fn a_pod_that_did_not_scrub_frees_nothing() {
    for (forged, what) in [
        (json!({"spec": {"containers": [{"name": "pv-recycler", "image": "true"}]}}), "another program"),
        (json!({"spec": {"volumes": [{"name": "vol", "hostPath": {"path": "/elsewhere"}}]}}), "another place"),
        (json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}), "before the claim was gone"),
    ] {
        let mut model = left_behind(json!({}));
        converges(&VolumePhases, &mut model, "", "v");
        let mut pod = model.value("Pod", "default", "recycler-for-v");
        corten_meta::patch::merge_patch(&mut pod, &forged);
        model.put(pod);
        end_recycler(&mut model, "Succeeded");
        converges(&VolumePhases, &mut model, "", "v");
        assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Released", "{what}");
        let pod = model.value("Pod", "default", "recycler-for-v");
        assert!(pod["status"]["phase"].is_null(), "{what}: a recycler of our own is begun");
    }
}

#[test]
fn a_volume_in_use_is_not_scrubbed() {
    let mut model = left_behind(json!({}));
    let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]);
    let user = crate::model::pod("user").phase("Running").set("/spec/volumes", volumes).value();
    model.put(user.clone());
    converges(&VolumePhases, &mut model, "", "v");
    assert_eq!(model.names("Pod"), ["user"]);
    assert_eq!(model.events, ["Normal VolumeFailedRecycle Volume is used by pods: default/user"]);
    assert_eq!(mapped::<Pod>(&VolumePhases, &model, Some(&user), None), ["v"]);
}

#[test]
fn a_volume_whose_claim_was_given_another_is_free_again() {
    let mut model = Model::default();
    let reserved = |uid: &str| json!({"spec": {"claimRef": {"namespace": "default", "name": "data", "uid": uid}}});
    model.put(volume("taken", "5Gi", reserved("c")));
    let mut bound = claim("4Gi");
    bound["spec"]["volumeName"] = json!("other");
    model.put(bound);
    converges(&VolumePhases, &mut model, "", "taken");
    assert_eq!(phase(&model, "PersistentVolume", "", "taken"), "Available");
    let reference = &model.value("PersistentVolume", "", "taken")["spec"]["claimRef"];
    assert_eq!((&reference["name"], &reference["uid"]), (&json!("data"), &Value::Null), "it stays reserved");
}

proptest::proptest! {
    /// Whatever the recycler's end, the policy and the claims around, volumes come to rest, and none is free that was
    /// not scrubbed.
    #[test]
    fn any_state_comes_to_rest(
        policy in proptest::sample::select(vec!["Retain", "Delete", "Recycle"]),
        end in proptest::option::of(proptest::sample::select(vec!["Pending", "Running", "Succeeded", "Failed"])),
        local: bool, again: bool,
    ) {
        let source = if local { json!({"path": "/data"}) } else { Value::Null };
        let mut model = left_behind(json!({"spec": {"persistentVolumeReclaimPolicy": policy, "hostPath": source}}));
        if again {
            let mut next = claim("4Gi");
            next["metadata"]["uid"] = json!("next");
            model.put(next);
        }
        converges(&VolumePhases, &mut model, "", "v");
        let recycles = policy == "Recycle" && local;
        proptest::prop_assert_eq!(model.names("Pod").len(), usize::from(recycles));
        if let Some(end) = end.filter(|_| recycles) {
            end_recycler(&mut model, end);
            converges(&VolumePhases, &mut model, "", "v");
        }
        let free = phase(&model, "PersistentVolume", "", "v") == "Available";
        proptest::prop_assert_eq!(free, recycles && end == Some("Succeeded"));
    }
}
