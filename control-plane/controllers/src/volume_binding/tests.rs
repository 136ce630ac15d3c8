//! Claims and volumes, by table.

use super::*;
use crate::tests::model::{Model, converges, decide, mapped};
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
        converges(&VolumePhases::default(), model, "", &name);
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
    converges(&VolumePhases::default(), &mut model, "", "v");
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
        converges(&VolumePhases::default(), &mut model, "", "v");
        let told: Vec<&str> = model.events.iter().filter_map(|event| event.split(' ').nth(1)).collect();
        assert_eq!(phase(&model, "PersistentVolume", "", "v"), expected.0);
        assert_eq!(told, expected.1.into_iter().collect::<Vec<_>>());
    }
}

fn class(name: &str, mode: &str, provisioner: &str, annotations: Value) -> Value {
    let metadata = json!({"name": name, "annotations": annotations, "creationTimestamp": "2026-01-01T00:00:00Z"});
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata, "provisioner": provisioner, "volumeBindingMode": mode})
}

#[test]
fn without_a_volume_a_claim_says_what_it_waits_for() {
    let slow = |mode: &str, provisioner: &str| Some(class("slow", mode, provisioner, Value::Null));
    for (class, wanted, told) in [
        (None, "slow", "Warning ProvisioningFailed storageclass.storage.k8s.io \"slow\" not found"),
        (None, "", "Normal FailedBinding no persistent volumes available for this claim and no storage class is set"),
        (
            slow("Immediate", "kubernetes.io/no-provisioner"),
            "slow",
            "Warning ProvisioningFailed no volume plugin matched name: kubernetes.io/no-provisioner",
        ),
        (slow("Immediate", "kubernetes.io/aws-ebs"), "slow", "Normal ExternalProvisioning Waiting"),
        (slow("Immediate", "example.com/disk"), "slow", "Normal ExternalProvisioning Waiting"),
        (slow("WaitForFirstConsumer", "example.com/disk"), "slow", "Normal WaitForFirstConsumer waiting"),
    ] {
        let mut model = Model::default();
        class.into_iter().for_each(|class| model.put(class));
        let mut claim = claim("1Gi");
        claim["spec"]["storageClassName"] = json!(wanted);
        model.put(claim);
        settle(&mut model);
        assert!(model.events[0].starts_with(told), "{told} is not {:?}", model.events);
    }
}

#[test]
fn a_claim_that_asks_for_no_class_gets_the_default_one_also_later() {
    let default = json!({"storageclass.kubernetes.io/is-default-class": "true"});
    let mut newest = class("newest", "Immediate", "example.com/disk", default.clone());
    newest["metadata"]["creationTimestamp"] = json!("2026-01-02T00:00:00Z");
    let plain = class("plain", "Immediate", "example.com/disk", Value::Null);
    let old = |name: &str| class(name, "Immediate", "example.com/disk", default.clone());
    for (classes, wanted, given) in [
        (vec![plain.clone()], Value::Null, Value::Null),
        (vec![plain, old("b"), old("a")], Value::Null, json!("a")),
        (vec![old("a"), newest], Value::Null, json!("newest")),
        (vec![old("a")], json!(""), json!("")),
    ] {
        let mut model = Model::default();
        let mut waiting = claim("1Gi");
        waiting["spec"]["storageClassName"] = wanted;
        model.put(waiting);
        settle(&mut model);
        for class in classes {
            assert_eq!(mapped::<StorageClass>(&ClaimBinder, &model, None, Some(&class)), ["default/data"]);
            model.put(class);
        }
        settle(&mut model);
        assert_eq!(model.value("PersistentVolumeClaim", "default", "data")["spec"]["storageClassName"], given);
    }
}

#[test]
fn a_volume_that_suits_a_claim_without_a_class_is_taken_before_the_default_class() {
    let mut model = Model::default();
    model.put(class(
        "a",
        "Immediate",
        "example.com/disk",
        json!({"storageclass.kubernetes.io/is-default-class": "true"}),
    ));
    model.put(volume("v", "5Gi", json!({"spec": {"storageClassName": null}})));
    let mut waiting = claim("1Gi");
    waiting["spec"]["storageClassName"] = Value::Null;
    model.put(waiting);
    settle(&mut model);
    assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Bound");
}

#[test]
fn a_directory_below_tmp_goes_with_its_volume() {
    let deleted = |path: &str| json!({"spec": {"persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": path}}});
    let mut model = left_behind(deleted("/tmp/v"));
    converges(&VolumePhases::default(), &mut model, "", "v");
    assert!(model.names("PersistentVolume").is_empty() && model.removed.contains("/tmp/v"));
    let mut model = left_behind(deleted("/data"));
    converges(&VolumePhases::default(), &mut model, "", "v");
    assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Failed");
    assert!(model.removed.is_empty());
}

#[test]
fn a_recycler_may_be_another_pod_with_other_times() {
    let template = |volumes: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": "Never", "volumes": volumes,
            "containers": [{"name": "one", "image": "i"}, {"name": "two", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/x"}]}]}})
    };
    let Recyclers { host_path, nfs } = Recyclers::default();
    let mut quick: Recycler = host_path;
    (quick.minimum_seconds, quick.seconds_per_gib) = (5, 2);
    let host_path = quick.with_template(template(json!([{"name": "data"}]))).unwrap();
    let phases = VolumePhases { recyclers: Recyclers { host_path: host_path.clone(), nfs } };
    let mut model = left_behind(json!({}));
    converges(&phases, &mut model, "", "v");
    let pod = model.value("Pod", "default", "recycler-for-v");
    assert_eq!(pod["spec"]["activeDeadlineSeconds"], 200);
    assert_eq!(pod["spec"]["volumes"], json!([{"name": "data", "hostPath": {"path": "/data"}}]));
    end_recycler(&mut model, "Succeeded");
    converges(&phases, &mut model, "", "v");
    assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Available");
    let elsewhere = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n"}, "spec": {"containers": [], "volumes": [{"name": "v"}]}});
    for refused in [template(json!([])), template(Value::Null), json!({"spec": 1}), elsewhere] {
        assert!(host_path.clone().with_template(refused).is_err());
    }
}

/// Returns a hostPath volume whose claim is deleted.
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

/// Ends the recycler pod as its kubelet would.
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
    converges(&VolumePhases::default(), &mut model, "", "v");
    assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Released");
    let pod = model.value("Pod", "default", "recycler-for-v");
    assert_eq!(pod["spec"]["activeDeadlineSeconds"], 3000, "half a minute for each GiB");
    assert_eq!(pod["spec"]["volumes"][0]["hostPath"]["path"], "/data");
    assert_eq!(mapped::<Pod>(&VolumePhases::default(), &model, None, Some(&pod)), ["v"]);
    end_recycler(&mut model, "Succeeded");
    converges(&VolumePhases::default(), &mut model, "", "v");
    assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Available");
    assert!(model.value("PersistentVolume", "", "v")["spec"]["claimRef"].is_null());
    assert!(model.names("Pod").is_empty());
    assert_eq!(model.events, ["Normal VolumeRecycled Volume recycled"]);
}

#[test]
fn a_recycler_that_fails_is_told_and_tried_again_after_a_while() {
    let mut model = left_behind(json!({}));
    converges(&VolumePhases::default(), &mut model, "", "v");
    end_recycler(&mut model, "Failed");
    converges(&VolumePhases::default(), &mut model, "", "v");
    let message = "Recycle failed: failed to recycle volume: the disk is on fire";
    assert_eq!(model.value("PersistentVolume", "", "v")["status"]["message"], message);
    assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Failed");
    assert_eq!(model.events, [format!("Warning VolumeFailedRecycle {message}")]);
    let waits = decide(&VolumePhases::default(), &model, "", "v");
    assert_eq!((waits.actions.len(), waits.requeue_after), (0, Some(std::time::Duration::from_secs(10))));
    model.remove("Pod", "default", "recycler-for-v");
    converges(&VolumePhases::default(), &mut model, "", "v");
    end_recycler(&mut model, "Succeeded");
    converges(&VolumePhases::default(), &mut model, "", "v");
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
        converges(&VolumePhases::default(), &mut model, "", "v");
        let mut pod = model.value("Pod", "default", "recycler-for-v");
        corten_meta::patch::merge_patch(&mut pod, &forged);
        model.put(pod);
        end_recycler(&mut model, "Succeeded");
        converges(&VolumePhases::default(), &mut model, "", "v");
        assert_eq!(phase(&model, "PersistentVolume", "", "v"), "Released", "{what}");
        let pod = model.value("Pod", "default", "recycler-for-v");
        assert!(pod["status"]["phase"].is_null(), "{what}: a recycler of our own is begun");
    }
}

#[test]
fn a_volume_in_use_is_not_scrubbed() {
    let mut model = left_behind(json!({}));
    let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]);
    let user = crate::tests::model::pod("user").phase("Running").set("/spec/volumes", volumes).value();
    model.put(user.clone());
    converges(&VolumePhases::default(), &mut model, "", "v");
    assert_eq!(model.names("Pod"), ["user"]);
    assert_eq!(model.events, ["Normal VolumeFailedRecycle Volume is used by pods: default/user"]);
    assert_eq!(mapped::<Pod>(&VolumePhases::default(), &model, Some(&user), None), ["v"]);
}

#[test]
fn a_volume_whose_claim_was_given_another_is_free_again() {
    let mut model = Model::default();
    let reserved = |uid: &str| json!({"spec": {"claimRef": {"namespace": "default", "name": "data", "uid": uid}}});
    model.put(volume("taken", "5Gi", reserved("c")));
    let mut bound = claim("4Gi");
    bound["spec"]["volumeName"] = json!("other");
    model.put(bound);
    converges(&VolumePhases::default(), &mut model, "", "taken");
    assert_eq!(phase(&model, "PersistentVolume", "", "taken"), "Available");
    let reference = &model.value("PersistentVolume", "", "taken")["spec"]["claimRef"];
    assert_eq!((&reference["name"], &reference["uid"]), (&json!("data"), &Value::Null), "it stays reserved");
}

/// A claim may be deleted before it names the volume provisioned for it: only the volume names the claim then.
#[test]
fn a_volume_made_for_a_claim_hears_of_its_end_though_the_claim_never_had_it() {
    let mut model = Model::default();
    let made_for = json!({"spec": {"claimRef": {"namespace": "default", "name": "data", "uid": "c"}}});
    model.put(volume("made", "5Gi", made_for));
    model.put(volume("free", "5Gi", json!({})));
    let (gone, mut next) = (claim("4Gi"), claim("4Gi"));
    next["metadata"]["uid"] = json!("next");
    let heard = |old: Option<&Value>, new: Option<&Value>| {
        mapped::<PersistentVolumeClaim>(&VolumePhases::default(), &model, old, new)
    };
    assert_eq!(heard(Some(&gone), None), ["made"]);
    assert_eq!(heard(Some(&gone), Some(&next)), ["made"], "another one has its name now");
    assert!(heard(Some(&gone), Some(&gone)).is_empty());
}

proptest::proptest! {
    /// For any end of the recycler, policy and claims, reconciling converges, and no volume is available that was not
    /// scrubbed.
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
        converges(&VolumePhases::default(), &mut model, "", "v");
        let recycles = policy == "Recycle" && local;
        proptest::prop_assert_eq!(model.names("Pod").len(), usize::from(recycles));
        if let Some(end) = end.filter(|_| recycles) {
            end_recycler(&mut model, end);
            converges(&VolumePhases::default(), &mut model, "", "v");
        }
        let free = phase(&model, "PersistentVolume", "", "v") == "Available";
        proptest::prop_assert_eq!(free, recycles && end == Some("Succeeded"));
    }
}
