//! DaemonSets on a model of nodes.

use super::*;
use crate::runtime::ResourceType;
use crate::tests::model::{Model, NOW, converges, decide, pod};
use corten_meta::Value;
use serde_json::json;

fn set(extra: Value) -> Value {
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"namespace": "default", "name": "agent", "uid": "agent-uid", "generation": 1},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}}, "revisionHistoryLimit": 10,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "c", "image": "one"}]}},
        },
    });
    corten_meta::patch::merge_patch(&mut set, &extra);
    set
}

fn node(name: &str, extra: Value) -> Value {
    let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}});
    corten_meta::patch::merge_patch(&mut node, &extra);
    node
}

fn cluster(extra: Value, nodes: usize) -> Model {
    let mut model = Model::default();
    model.put(set(extra));
    (0..nodes).for_each(|number| model.put(node(&format!("n{number}"), json!({}))));
    model
}

fn settle(model: &mut Model) {
    converges(&DaemonSetController, model, "default", "agent");
}

fn rows(model: &Model) -> Vec<PodRow> {
    View::rows(model, View::list(model, ResourceType::of::<Pod>(), ""))
}

/// Binds and starts every pod.
fn start(model: &mut Model) -> bool {
    let mut started = false;
    for pod in rows(model).into_iter().filter(|pod| !pods::is_ready(pod)) {
        let mut value = pod.object.value();
        value["spec"]["nodeName"] = json!(target_node(&pod));
        value["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": corten_meta::time::rfc3339(*NOW)}]});
        model.put(value);
        started = true;
    }
    started
}

fn roll_out(model: &mut Model, mut check: impl FnMut(&Model)) {
    for _ in 0..50 {
        let plan = decide(&DaemonSetController, model, "default", "agent");
        model.apply(&plan);
        check(model);
        if plan.is_empty() && !start(model) {
            return;
        }
    }
    panic!("the rollout never ends");
}

fn targets(model: &Model) -> Vec<String> {
    let mut targets: Vec<String> = rows(model).iter().map(|pod| target_node(pod).into_owned()).collect();
    targets.sort_unstable();
    targets
}

#[test]
fn every_node_gets_a_pod_that_tolerates_being_there() {
    let mut model = cluster(json!({}), 3);
    settle(&mut model);
    assert_eq!(targets(&model), ["n0", "n1", "n2"]);
    let spec = model.typed::<Pod>().remove(0).spec.unwrap();
    assert_eq!(spec.tolerations.unwrap().len(), 6);
    assert!(spec.node_name.is_none(), "the scheduler binds it");
    let status = model.value("DaemonSet", "default", "agent")["status"].take();
    assert_eq!((&status["desiredNumberScheduled"], &status["numberUnavailable"]), (&json!(3), &json!(3)));
    start(&mut model);
    settle(&mut model);
    let status = model.value("DaemonSet", "default", "agent")["status"].take();
    assert_eq!(
        (&status["numberReady"], &status["numberAvailable"], &status["updatedNumberScheduled"]),
        (&json!(3), &json!(3), &json!(3))
    );
}

#[test]
fn nodes_are_chosen_by_selector_and_taints() {
    let taint = |effect: &str| json!({"spec": {"taints": [{"key": "k", "effect": effect}]}});
    let mut model = cluster(json!({"spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}), 1);
    let ssd = json!({"metadata": {"labels": {"disk": "ssd"}}});
    let mut tainted = ssd.clone();
    corten_meta::patch::merge_patch(&mut tainted, &taint("NoSchedule"));
    model.put(node("good", ssd));
    model.put(node("tainted", tainted.clone()));
    settle(&mut model);
    assert_eq!(targets(&model), ["good"]);
    // A NoSchedule taint lets a running pod stay; a NoExecute taint does not.
    start(&mut model);
    model.put(node("good", tainted.clone()));
    settle(&mut model);
    assert_eq!(targets(&model), ["good"]);
    tainted["spec"]["taints"][0]["effect"] = json!("NoExecute");
    model.put(node("good", tainted));
    settle(&mut model);
    assert!(targets(&model).is_empty());
}

#[test]
fn an_ended_pod_is_replaced_and_told() {
    let mut model = cluster(json!({}), 1);
    settle(&mut model);
    let mut failed = model.typed::<Pod>().remove(0).to_value();
    failed["status"] = json!({"phase": "Failed"});
    let name = failed["metadata"]["name"].as_str().unwrap().to_owned();
    model.put(failed);
    settle(&mut model);
    assert_eq!(targets(&model), ["n0"]);
    assert!(!model.names("Pod").contains(&name));
    assert_eq!(
        model.events,
        [format!("Warning FailedDaemonPod Found failed daemon pod default/{name} on node n0, will try to kill it")]
    );
}

#[test]
fn a_rolling_update_keeps_enough_available() {
    let mut model = cluster(json!({}), 4);
    roll_out(&mut model, |_| {});
    model.put({
        let mut changed = model.value("DaemonSet", "default", "agent");
        changed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("two");
        changed["metadata"]["generation"] = json!(2);
        changed
    });
    roll_out(&mut model, |model| {
        let available = model.typed::<Pod>().iter().filter(pods::is_ready).count();
        assert!(available >= 3, "only {available} of 4 are available");
    });
    assert!(
        model.typed::<Pod>().iter().all(|pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("two"))
    );
    assert_eq!(model.names("ControllerRevision").len(), 2);
}

#[test]
fn a_surging_update_never_leaves_a_node_without() {
    let strategy = json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}}});
    let mut model = cluster(strategy, 3);
    roll_out(&mut model, |_| {});
    let mut changed = model.value("DaemonSet", "default", "agent");
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("two");
    model.put(changed);
    roll_out(&mut model, |model| {
        let ready: std::collections::BTreeSet<String> =
            rows(model).iter().filter(pods::is_ready).map(|pod| target_node(pod).into_owned()).collect();
        assert_eq!(ready.len(), 3);
        assert!(model.names("Pod").len() <= 4);
    });
    assert_eq!(targets(&model), ["n0", "n1", "n2"]);
}

#[test]
fn a_rollback_renumbers_the_old_revision() {
    let mut model = cluster(json!({}), 1);
    for image in ["one", "two", "one"] {
        let mut changed = model.value("DaemonSet", "default", "agent");
        changed["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
        model.put(changed);
        roll_out(&mut model, |_| {});
    }
    let mut numbers: Vec<i64> = model.typed::<ControllerRevision>().iter().map(|revision| revision.revision).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 3]);
    let data = model.typed::<ControllerRevision>()[0].data.clone().unwrap().0;
    assert_eq!(data["spec"]["template"]["$patch"], "replace");
}

#[test]
fn nothing_is_created_for_one_that_is_being_deleted() {
    let mut model = cluster(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), 2);
    model.put(pod("orphan").label("app", "agent").value());
    settle(&mut model);
    assert_eq!(model.names("Pod"), ["orphan"]);
}

#[test]
fn a_set_that_comes_back_goes_on_with_its_revisions_and_pods() {
    let mut model = cluster(json!({}), 2);
    roll_out(&mut model, |_| {});
    let (pods, revisions) = (model.names("Pod"), model.names("ControllerRevision"));
    // The state that `kubectl delete --cascade=orphan` leaves.
    for (kind, names) in [("Pod", &pods), ("ControllerRevision", &revisions)] {
        for name in names {
            let mut value = model.value(kind, "default", name);
            value["metadata"]["ownerReferences"] = json!([]);
            model.put(value);
        }
    }
    let mut anew = set(json!({}));
    anew["metadata"]["uid"] = json!("another");
    model.put(anew);
    roll_out(&mut model, |_| {});
    assert_eq!((model.names("Pod"), model.names("ControllerRevision")), (pods, revisions), "nothing is made anew");
    assert!(rows(&model).iter().all(|pod| pod.object.controller().is_some_and(|owner| owner.uid == "another")));
}

#[test]
fn a_pod_that_waits_for_a_node_that_went_is_given_up() {
    let mut model = cluster(json!({}), 2);
    settle(&mut model);
    assert_eq!(targets(&model), ["n0", "n1"]);
    model.remove("Node", "", "n1");
    settle(&mut model);
    assert_eq!(targets(&model), ["n0"]);
}
