//! StatefulSets on a model: names, order and volumes.

use super::*;
use crate::tests::model::{Model, NOW, converges, decide};
use corten_meta::Value;
use serde_json::json;

fn set(extra: Value) -> Value {
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"namespace": "default", "name": "db", "uid": "db-uid", "generation": 1},
        "spec": {
            "replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "podManagementPolicy": "OrderedReady",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "one"}]}},
            "volumeClaimTemplates": [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
        },
    });
    corten_meta::patch::merge_patch(&mut set, &extra);
    set
}

fn cluster(extra: Value) -> Model {
    let mut model = Model::default();
    model.put(set(extra));
    model
}

fn start(model: &mut Model) -> bool {
    let waiting: Vec<Pod> = model.typed::<Pod>().into_iter().filter(|pod| !pods::is_ready(pod)).collect();
    for pod in &waiting {
        let mut value = pod.to_value();
        value["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": corten_meta::time::rfc3339(*NOW)}]});
        model.put(value);
    }
    !waiting.is_empty()
}

fn settle(model: &mut Model, mut check: impl FnMut(&Model)) {
    for _ in 0..60 {
        let plan = decide(&StatefulSetController, model, "default", "db");
        model.apply(&plan);
        check(model);
        if plan.is_empty() && !start(model) {
            return;
        }
    }
    panic!("never settles");
}

fn change(model: &mut Model, path: &str, value: Value) {
    let mut current = model.value("StatefulSet", "default", "db");
    corten_meta::set(&mut current, path, value);
    model.put(current);
}

fn images(model: &Model) -> Vec<String> {
    model.typed::<Pod>().iter().filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone()).collect()
}

#[test]
fn pods_come_in_order_with_names_and_volumes() {
    let mut model = cluster(json!({}));
    let mut seen = 0;
    settle(&mut model, |model| {
        let (all, ready) = (model.names("Pod").len(), model.typed::<Pod>().iter().filter(pods::is_ready).count());
        assert!(all <= ready + 1, "one at a time: {all} pods, {ready} ready");
        seen = seen.max(all);
    });
    assert_eq!(model.names("Pod"), ["db-0", "db-1", "db-2"]);
    assert_eq!(model.names("PersistentVolumeClaim"), ["data-db-0", "data-db-1", "data-db-2"]);
    let spec = model.value("Pod", "default", "db-1");
    assert_eq!((&spec["spec"]["hostname"], &spec["spec"]["subdomain"]), (&json!("db-1"), &json!("db")));
    assert_eq!(spec["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "data-db-1");
    assert_eq!(spec["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"], "db-1");
    assert_eq!(spec["metadata"]["generateName"], "db-");
    let revision = model.names("ControllerRevision").remove(0);
    let labels = model.value("ControllerRevision", "default", &revision)["metadata"]["labels"].take();
    assert_eq!(labels["controller.kubernetes.io/hash"], revision.trim_start_matches("db-"));
    let status = model.value("StatefulSet", "default", "db")["status"].take();
    assert_eq!(
        (&status["readyReplicas"], &status["currentReplicas"], &status["updatedReplicas"]),
        (&json!(3), &json!(3), &json!(3))
    );
    assert_eq!(status["currentRevision"], status["updateRevision"]);
    assert!(model.events.contains(&"Normal SuccessfulCreate Create Pod db-0 in StatefulSet db successful".to_owned()));
    assert_eq!(converges(&StatefulSetController, &mut model, "default", "db"), 0);
}

#[test]
fn a_scale_down_takes_the_last_first_and_keeps_the_volumes() {
    let mut model = cluster(json!({}));
    settle(&mut model, |_| {});
    change(&mut model, "/spec/replicas", json!(1));
    let mut order = Vec::new();
    settle(&mut model, |model| {
        let names = model.names("Pod");
        if order.last() != Some(&names) {
            order.push(names);
        }
    });
    assert_eq!(order, [vec!["db-0", "db-1"], vec!["db-0"]]);
    assert_eq!(model.names("PersistentVolumeClaim").len(), 3);
}

#[test]
fn parallel_management_does_not_wait() {
    let mut model = cluster(json!({"spec": {"podManagementPolicy": "Parallel"}}));
    converges(&StatefulSetController, &mut model, "default", "db");
    assert_eq!(model.names("Pod").len(), 3);
}

#[test]
fn a_set_of_any_size_is_created_in_bursts() {
    let mut model =
        cluster(json!({"spec": {"podManagementPolicy": "Parallel", "replicas": i32::MAX, "ordinals": {"start": 5},
        "updateStrategy": {"rollingUpdate": {"partition": i32::MAX}}}}));
    // The first reconcile creates the revision of the pods.
    for expected in [0, 500, 1_000] {
        let plan = decide(&StatefulSetController, &model, "default", "db");
        model.apply(&plan);
        assert_eq!(model.names("Pod").len(), expected);
    }
}

#[test]
fn an_update_goes_from_the_last_to_the_first_one_at_a_time() {
    let mut model = cluster(json!({}));
    settle(&mut model, |_| {});
    change(&mut model, "/spec/template/spec/containers", json!([{"name": "c", "image": "two"}]));
    let mut order = Vec::new();
    settle(&mut model, |model| {
        let ready = model.typed::<Pod>().iter().filter(pods::is_ready).count();
        assert!(ready >= 2, "only {ready} of 3 are ready");
        let images = images(model);
        if images.len() == 3 && order.last() != Some(&images) {
            order.push(images);
        }
    });
    assert_eq!(order, [["one", "one", "one"], ["one", "one", "two"], ["one", "two", "two"], ["two", "two", "two"]]);
    let status = model.value("StatefulSet", "default", "db")["status"].take();
    assert_eq!(status["currentRevision"], status["updateRevision"]);
    assert_eq!(model.names("ControllerRevision").len(), 2);
}

#[test]
fn a_partition_keeps_the_first_as_they_were() {
    let mut model = cluster(json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 2}}}}));
    settle(&mut model, |_| {});
    change(&mut model, "/spec/template/spec/containers", json!([{"name": "c", "image": "two"}]));
    settle(&mut model, |_| {});
    assert_eq!(images(&model), ["one", "one", "two"]);
    model.remove("Pod", "default", "db-0");
    settle(&mut model, |_| {});
    assert_eq!(images(&model), ["one", "one", "two"], "a lost pod comes back as it was");
}

#[test]
fn a_failed_pod_is_replaced_under_its_name() {
    let mut model = cluster(json!({}));
    settle(&mut model, |_| {});
    let mut failed = model.value("Pod", "default", "db-1");
    failed["status"] = json!({"phase": "Failed"});
    let before = failed["metadata"]["uid"].clone();
    model.put(failed);
    settle(&mut model, |_| {});
    let after = model.value("Pod", "default", "db-1");
    assert_ne!(after["metadata"]["uid"], before);
    assert_eq!(after["status"]["phase"], "Running");
}

#[test]
fn on_delete_leaves_the_update_to_whoever_deletes() {
    let mut model = cluster(json!({"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}}));
    settle(&mut model, |_| {});
    change(&mut model, "/spec/template/spec/containers", json!([{"name": "c", "image": "two"}]));
    settle(&mut model, |_| {});
    assert_eq!(images(&model), ["one"; 3]);
    let before = model.value("StatefulSet", "default", "db")["status"].take();
    assert_ne!(before["currentRevision"], before["updateRevision"]);
    for (deleted, expected) in
        [("db-1", ["one", "two", "one"]), ("db-0", ["two", "two", "one"]), ("db-2", ["two", "two", "two"])]
    {
        model.remove("Pod", "default", deleted);
        settle(&mut model, |_| {});
        assert_eq!(images(&model), expected, "after the deletion of {deleted}");
        let revision = model.value("Pod", "default", deleted)["metadata"]["labels"]["controller-revision-hash"].take();
        assert_eq!(revision, before["updateRevision"]);
    }
    let after = model.value("StatefulSet", "default", "db")["status"].take();
    assert_eq!(after["currentRevision"], before["currentRevision"], "only a rolling update completes");
    assert_eq!(after["updatedReplicas"], 3);
}

#[test]
fn a_set_that_never_had_a_revision_begins_with_the_newest() {
    let mut model = cluster(json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 3}}}}));
    settle(&mut model, |_| {});
    assert_eq!(images(&model), ["one"; 3]);
    change(&mut model, "/spec/template/spec/containers", json!([{"name": "c", "image": "two"}]));
    settle(&mut model, |_| {});
    model.remove("Pod", "default", "db-1");
    settle(&mut model, |_| {});
    assert_eq!(images(&model), ["one"; 3], "the partition keeps every ordinal");
}

#[test]
fn ordinals_may_begin_elsewhere() {
    let mut model = cluster(json!({"spec": {"replicas": 2, "ordinals": {"start": 5}}}));
    settle(&mut model, |_| {});
    assert_eq!(model.names("Pod"), ["db-5", "db-6"]);
}

#[test]
fn a_pod_that_merely_has_the_labels_is_left_alone() {
    let mut model = cluster(json!({}));
    model.put(crate::tests::model::pod("stranger").label("app", "db").value());
    settle(&mut model, |_| {});
    assert!(model.value("Pod", "default", "stranger")["metadata"]["ownerReferences"].is_null());
}

fn claim_owners(model: &Model, name: &str) -> Vec<String> {
    let claim = model.value("PersistentVolumeClaim", "default", name);
    let owners = claim["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    owners.iter().map(|owner| owner["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn claims_have_the_owners_that_the_retention_policy_asks_for() {
    for (deleted, scaled, kept, gone) in [
        ("Retain", "Retain", &[][..], &[][..]),
        ("Delete", "Retain", &["StatefulSet"], &["StatefulSet"]),
        ("Retain", "Delete", &[], &["Pod"]),
        ("Delete", "Delete", &["StatefulSet"], &["Pod"]),
    ] {
        let policy = json!({"whenDeleted": deleted, "whenScaled": scaled});
        let mut model = cluster(json!({"spec": {"persistentVolumeClaimRetentionPolicy": policy}}));
        settle(&mut model, |_| {});
        assert_eq!(claim_owners(&model, "data-db-2"), kept, "whenDeleted {deleted}");
        change(&mut model, "/spec/replicas", json!(2));
        settle(&mut model, |_| {});
        assert_eq!(claim_owners(&model, "data-db-2"), gone, "whenScaled {scaled}");
        assert_eq!(claim_owners(&model, "data-db-1"), kept, "one that stays");
    }
}

#[test]
fn a_pod_does_not_come_back_to_a_claim_that_is_about_to_go() {
    let policy = json!({"whenScaled": "Delete"});
    let mut model = cluster(json!({"spec": {"persistentVolumeClaimRetentionPolicy": policy}}));
    settle(&mut model, |_| {});
    change(&mut model, "/spec/replicas", json!(2));
    settle(&mut model, |_| {});
    change(&mut model, "/spec/replicas", json!(3));
    settle(&mut model, |_| {});
    assert_eq!(model.names("Pod"), ["db-0", "db-1"]);
    let claim = model.value("PersistentVolumeClaim", "default", "data-db-2");
    model.remove("PersistentVolumeClaim", "default", "data-db-2");
    let woken =
        crate::tests::model::mapped::<PersistentVolumeClaim>(&StatefulSetController, &model, Some(&claim), None);
    assert_eq!(woken, ["default/db"]);
    settle(&mut model, |_| {});
    assert_eq!(model.names("Pod"), ["db-0", "db-1", "db-2"]);
}
