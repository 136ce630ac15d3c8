//! ReplicaSets and their properties on a model.

use super::*;
use crate::tests::model::{Model, NOW, converges, decide, mapped, pod};
use corten_api::Typed;
use corten_meta::Value;
use proptest::prelude::*;
use serde_json::json;

fn replica_set(replicas: i32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"namespace": "default", "name": "web", "uid": "web-uid", "generation": 1},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    })
}

fn cluster(replicas: i32) -> Model {
    let mut model = Model::default();
    model.put(replica_set(replicas));
    model
}

fn own(name: &str) -> crate::tests::model::PodBuilder {
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web-uid", "controller": true}]);
    pod(name).label("app", "web").set("/metadata/ownerReferences", owner)
}

#[test]
fn missing_pods_are_created_and_counted() {
    let mut model = cluster(3);
    converges(&REPLICA_SETS, &mut model, "default", "web");
    assert_eq!(model.names("Pod").len(), 3);
    let created = &model.typed::<Pod>()[0];
    assert_eq!(created.metadata.generate_name.as_deref(), Some("web-"));
    assert!(owner::is_controlled_by(&created.metadata, "web-uid"));
    let status = &model.value("ReplicaSet", "default", "web")["status"];
    assert_eq!(
        *status,
        json!({"replicas": 3, "fullyLabeledReplicas": 3, "observedGeneration": 1, "terminatingReplicas": 0})
    );
}

#[test]
fn a_scale_down_gives_up_the_worst_pods() {
    let mut model = cluster(1);
    model.put(own("good").phase("Running").on("n").ready(100).value());
    model.put(own("pending").phase("Pending").on("n").value());
    model.put(own("nowhere").phase("Pending").value());
    converges(&REPLICA_SETS, &mut model, "default", "web");
    assert_eq!(model.names("Pod"), ["good"]);
}

#[test]
fn ended_and_leaving_pods_do_not_count() {
    let mut model = cluster(2);
    model.put(own("failed").phase("Failed").value());
    model.put(own("leaving").phase("Running").deleting().set("/metadata/finalizers", json!(["keep"])).value());
    converges(&REPLICA_SETS, &mut model, "default", "web");
    assert_eq!(model.names("Pod").len(), 4);
    assert_eq!(model.value("ReplicaSet", "default", "web")["status"]["terminatingReplicas"], 1);
}

#[test]
fn orphans_are_adopted_and_strangers_released() {
    let mut model = cluster(1);
    model.put(pod("orphan").label("app", "web").value());
    model.put(own("stranger").set("/metadata/labels", json!({"app": "other"})).value());
    converges(&REPLICA_SETS, &mut model, "default", "web");
    assert_eq!(model.names("Pod"), ["orphan", "stranger"]);
    assert_eq!(model.value("Pod", "default", "orphan")["metadata"]["ownerReferences"][0]["uid"], "web-uid");
    assert_eq!(model.value("Pod", "default", "stranger")["metadata"]["ownerReferences"], json!([]));
}

#[test]
fn pods_of_others_are_left_alone() {
    let mut model = cluster(0);
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x", "controller": true}]);
    model.put(pod("theirs").label("app", "web").set("/metadata/ownerReferences", owner).value());
    converges(&REPLICA_SETS, &mut model, "default", "web");
    assert_eq!(model.names("Pod"), ["theirs"]);
}

#[test]
fn a_refusal_is_told_in_a_condition_and_forgotten_after() {
    let mut model = cluster(1);
    model.failure = Some(Failure { reason: "FailedCreate".into(), message: "exceeded quota".into() });
    let plan = decide(&REPLICA_SETS, &model, "default", "web");
    let Some(Action::UpdateStatus { object, .. }) = plan.actions.first() else {
        panic!("the status comes first: {plan:?}")
    };
    assert_eq!(object["status"]["conditions"][0]["reason"], "FailedCreate");
    assert_eq!(object["status"]["conditions"][0]["message"], "exceeded quota");
    model.apply(&plan);
    model.failure = None;
    converges(&REPLICA_SETS, &mut model, "default", "web");
    assert!(model.value("ReplicaSet", "default", "web")["status"]["conditions"].is_null());
}

#[test]
fn a_pod_becoming_available_is_looked_at_in_time() {
    let mut model = Model::default();
    let mut set = replica_set(1);
    set["spec"]["minReadySeconds"] = json!(10);
    model.put(set);
    model.put(own("p").phase("Running").on("n").ready(4).value());
    converges(&REPLICA_SETS, &mut model, "default", "web");
    let plan = decide(&REPLICA_SETS, &model, "default", "web");
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(6)));
    assert!(model.value("ReplicaSet", "default", "web")["status"]["availableReplicas"].is_null());
}

#[test]
fn one_that_is_being_deleted_creates_nothing() {
    let mut model = Model::default();
    let mut set = replica_set(3);
    set["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    model.put(set);
    converges(&REPLICA_SETS, &mut model, "default", "web");
    assert!(model.names("Pod").is_empty());
}

#[test]
fn a_pod_wakes_its_owner_and_whoever_would_take_it() {
    let model = cluster(1);
    assert_eq!(mapped::<Pod>(&REPLICA_SETS, &model, None, Some(&own("p").value())), ["default/web"]);
    assert_eq!(
        mapped::<Pod>(&REPLICA_SETS, &model, None, Some(&pod("p").label("app", "web").value())),
        ["default/web"]
    );
    assert!(mapped::<Pod>(&REPLICA_SETS, &model, None, Some(&pod("p").label("app", "db").value())).is_empty());
    assert_eq!(mapped::<Pod>(&REPLICA_SETS, &model, Some(&own("p").value()), None), ["default/web"]);
}

#[test]
fn a_replication_controller_does_the_same_under_its_own_name() {
    let mut model = Model::default();
    model.put(json!({
        "apiVersion": "v1", "kind": "ReplicationController",
        "metadata": {"namespace": "default", "name": "web", "uid": "rc-uid", "generation": 1},
        "spec": {
            "replicas": 2, "selector": {"app": "web"},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    }));
    model.put(pod("orphan").label("app", "web").value());
    converges(&REPLICATION_CONTROLLERS, &mut model, "default", "web");
    let owners: Vec<Value> =
        model.typed::<Pod>().iter().map(|pod| pod.to_value()["metadata"]["ownerReferences"][0].take()).collect();
    assert_eq!(owners.len(), 2);
    assert!(owners.iter().all(|owner| owner["kind"] == "ReplicationController" && owner["apiVersion"] == "v1"));
    let status = &model.value("ReplicationController", "default", "web")["status"];
    assert_eq!(*status, json!({"replicas": 2, "fullyLabeledReplicas": 2, "observedGeneration": 1}));
    model.failure = Some(Failure { reason: "FailedCreate".into(), message: "exceeded quota".into() });
    converges(&REPLICATION_CONTROLLERS, &mut model, "default", "web");
    let condition = &model.value("ReplicationController", "default", "web")["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("ReplicaFailure"), &json!("FailedCreate")));
}

proptest! {
    /// From any mix of pods, the set converges to the desired replicas, whatever the order of lists.
    #[test]
    fn any_state_converges(replicas in 0i32..6, pods in proptest::collection::vec((0u8..4, 0u8..3, any::<bool>()), 0..10)) {
        let mut model = cluster(replicas);
        for (number, (phase, node, ready)) in pods.iter().enumerate() {
            let phase = ["Pending", "Running", "Failed", "Succeeded"][usize::from(*phase)];
            let mut builder = own(&format!("p{number}")).phase(phase);
            if *node > 0 { builder = builder.on(&format!("n{node}")); }
            if *ready { builder = builder.ready(i64::try_from(number).unwrap() * 7); }
            model.put(builder.value());
        }
        converges(&REPLICA_SETS, &mut model, "default", "web");
        let active = model.typed::<Pod>().iter().filter(pods::is_active).count();
        prop_assert_eq!(active, usize::try_from(replicas).unwrap());
        let _ = *NOW;
    }
}
