//! Rollouts on a model with ReplicaSets and a stand-in for the nodes, within their bounds at every step.

use super::*;
use crate::replicaset::REPLICA_SETS;
use crate::tests::model::{Model, NOW, converges, decide};
use crate::workload::pods;
use corten_api::k8s_openapi::api::core::v1::PodCondition;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_meta::Value;
use serde_json::json;

fn deployment(replicas: i32, strategy: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"namespace": "default", "name": "web", "uid": "web-uid", "generation": 1},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "strategy": strategy,
            "revisionHistoryLimit": 2, "progressDeadlineSeconds": 600,
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "one"}]}},
        },
    })
}

fn rolling(surge: Value, unavailable: Value) -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
}

fn cluster(replicas: i32, strategy: Value) -> Model {
    let mut model = Model::default();
    model.put(deployment(replicas, strategy));
    model
}

fn change(model: &mut Model, path: &str, value: Value) {
    let mut current = model.value("Deployment", "default", "web");
    corten_meta::set(&mut current, path, value);
    let generation = corten_meta::generation(&current) + 1;
    corten_meta::set(&mut current, "/metadata/generation", json!(generation));
    model.put(current);
}

fn make_ready(pod: &mut Pod) {
    let status = pod.status.get_or_insert_default();
    status.phase = Some("Running".to_owned());
    status.conditions = Some(vec![PodCondition {
        type_: "Ready".to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(Time(*NOW)),
        ..PodCondition::default()
    }]);
}

/// Reconciles in turn until no controller plans a write; `ready` tells whether pods become ready.
fn settle(model: &mut Model, ready: bool, mut check: impl FnMut(&Model)) {
    for _ in 0..200 {
        let mut quiet = true;
        let plan = decide(&DeploymentController, model, "default", "web");
        quiet &= plan.is_empty();
        model.apply(&plan);
        for name in model.names("ReplicaSet") {
            let plan = decide(&REPLICA_SETS, model, "default", &name);
            quiet &= plan.is_empty();
            model.apply(&plan);
        }
        check(model);
        // One pod becomes ready per turn, so that the bounds are reached.
        let pending = model.typed::<Pod>().into_iter().find(|pod| !pods::is_ready(pod));
        if let Some(mut pod) = pending.filter(|_| ready) {
            make_ready(&mut pod);
            model.put_typed(&pod);
            quiet = false;
        }
        if quiet {
            return;
        }
    }
    panic!("the rollout never ends");
}

fn images(model: &Model) -> Vec<String> {
    model.typed::<Pod>().iter().filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone()).collect()
}

fn condition(model: &Model, kind: &str) -> (String, String) {
    let status = model.value("Deployment", "default", "web")["status"].take();
    let found = status["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|condition| condition["type"] == kind)
        .expect(kind)
        .clone();
    (found["status"].as_str().unwrap().to_owned(), found["reason"].as_str().unwrap().to_owned())
}

#[test]
fn a_new_deployment_comes_up_and_says_so() {
    let mut model = cluster(3, rolling(json!("25%"), json!("25%")));
    settle(&mut model, true, |_| {});
    assert_eq!(images(&model), ["one", "one", "one"]);
    assert_eq!(condition(&model, "Available"), ("True".into(), "MinimumReplicasAvailable".into()));
    assert_eq!(condition(&model, "Progressing"), ("True".into(), "NewReplicaSetAvailable".into()));
    let value = model.value("Deployment", "default", "web");
    assert_eq!(value["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    assert_eq!((&value["status"]["replicas"], &value["status"]["availableReplicas"]), (&json!(3), &json!(3)));
    let set = &model.names("ReplicaSet")[0];
    assert!(
        model.events.contains(&format!("Normal ScalingReplicaSet Scaled up replica set {set} from 0 to 3")),
        "{:?}",
        model.events
    );
    assert_eq!(converges(&DeploymentController, &mut model, "default", "web"), 0);
}

#[test]
fn a_rolling_update_stays_within_its_bounds() {
    for (surge, unavailable, replicas) in [
        (json!(1), json!(0), 4),
        (json!(0), json!(1), 4),
        (json!("25%"), json!("25%"), 10),
        (json!("100%"), json!(0), 3),
        (json!(0), json!(0), 2),
    ] {
        let mut model = cluster(replicas, rolling(surge.clone(), unavailable.clone()));
        settle(&mut model, true, |_| {});
        change(&mut model, "/spec/template/spec/containers", json!([{"name": "c", "image": "two"}]));
        let (most, least) = {
            let typed = model.typed::<Deployment>().remove(0);
            let (surge, unavailable) = bounds(&typed);
            (replicas + surge, replicas - unavailable)
        };
        settle(&mut model, true, |model| {
            let active: Vec<Pod> = model.typed::<Pod>().into_iter().filter(pods::is_active).collect();
            let available = active.iter().filter(pods::is_ready).count() as i32;
            assert!(active.len() as i32 <= most, "surge {surge}: {} pods of {most}", active.len());
            assert!(available >= least, "unavailable {unavailable}: {available} of {least}");
        });
        assert_eq!(images(&model), vec!["two"; replicas as usize]);
    }
}

#[test]
fn a_recreation_stops_the_old_before_it_starts_the_new() {
    let mut model = cluster(2, json!({"type": "Recreate"}));
    settle(&mut model, true, |_| {});
    change(&mut model, "/spec/template/spec/containers", json!([{"name": "c", "image": "two"}]));
    settle(&mut model, true, |model| {
        let images = images(model);
        assert!(!(images.contains(&"one".to_owned()) && images.contains(&"two".to_owned())), "{images:?}");
    });
    assert_eq!(images(&model), ["two", "two"]);
}

#[test]
fn a_rollback_reuses_the_old_replica_set_with_a_new_revision() {
    let mut model = cluster(1, rolling(json!(1), json!(0)));
    settle(&mut model, true, |_| {});
    change(&mut model, "/spec/template/spec/containers", json!([{"name": "c", "image": "two"}]));
    settle(&mut model, true, |_| {});
    change(&mut model, "/spec/template/spec/containers", json!([{"name": "c", "image": "one"}]));
    settle(&mut model, true, |_| {});
    assert_eq!(images(&model), ["one"]);
    assert_eq!(model.names("ReplicaSet").len(), 2);
    let active = model.typed::<ReplicaSet>().into_iter().find(|set| size_of(set) == 1).unwrap();
    assert_eq!(revisions::revision(&active), 3);
    assert_eq!(revisions::annotation(&active.metadata, "deployment.kubernetes.io/revision-history"), Some("1"));
    assert_eq!(
        model.value("Deployment", "default", "web")["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "3"
    );
}

#[test]
fn only_so_much_history_is_kept() {
    let mut model = cluster(1, rolling(json!(1), json!(0)));
    for image in ["one", "two", "three", "four", "five"] {
        change(&mut model, "/spec/template/spec/containers", json!([{"name": "c", "image": image}]));
        settle(&mut model, true, |_| {});
    }
    assert_eq!(model.names("ReplicaSet").len(), 3, "the new one and two of history");
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll() {
    let mut model = cluster(2, rolling(json!(1), json!(0)));
    settle(&mut model, true, |_| {});
    change(&mut model, "/spec/paused", json!(true));
    change(&mut model, "/spec/template/spec/containers", json!([{"name": "c", "image": "two"}]));
    change(&mut model, "/spec/replicas", json!(4));
    settle(&mut model, true, |_| {});
    assert_eq!(images(&model), ["one"; 4]);
    assert_eq!(condition(&model, "Progressing"), ("Unknown".into(), "DeploymentPaused".into()));
    change(&mut model, "/spec/paused", json!(false));
    settle(&mut model, true, |_| {});
    assert_eq!(images(&model), ["two"; 4]);
}

#[test]
fn scaling_in_mid_rollout_keeps_proportions() {
    let mut model = cluster(10, rolling(json!(3), json!(2)));
    settle(&mut model, true, |_| {});
    change(&mut model, "/spec/template/spec/containers", json!([{"name": "c", "image": "two"}]));
    settle(&mut model, false, |_| {});
    let sizes = |model: &Model| {
        let mut sizes: Vec<i32> = model.typed::<ReplicaSet>().iter().map(size_of).collect();
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(sizes(&model), [5, 8]);
    change(&mut model, "/spec/replicas", json!(15));
    let plan = decide(&DeploymentController, &model, "default", "web");
    model.apply(&plan);
    assert_eq!(sizes(&model), [7, 11], "eighteen in all, shared as before");
    settle(&mut model, true, |_| {});
    assert_eq!(images(&model), vec!["two"; 15]);
}

#[test]
fn a_stuck_rollout_is_given_up_at_its_deadline() {
    let mut model = cluster(1, rolling(json!(1), json!(0)));
    settle(&mut model, false, |_| {});
    let plan = decide(&DeploymentController, &model, "default", "web");
    assert_eq!(plan.requeue_after, Some(std::time::Duration::from_secs(601)));
    let late = NOW.checked_add(jiff::SignedDuration::from_secs(602)).unwrap();
    let key = corten_meta::Key::new("default", "web");
    let plan = crate::runtime::Decide::decide(&DeploymentController, &model, &key, late);
    model.apply(&plan);
    assert_eq!(condition(&model, "Progressing"), ("False".into(), "ProgressDeadlineExceeded".into()));
}

#[test]
fn a_name_that_is_taken_moves_the_hash_on() {
    let mut model = cluster(1, rolling(json!(1), json!(0)));
    let plan = decide(&DeploymentController, &model, "default", "web");
    let Some(Action::Create { object, .. }) = plan.actions.first() else {
        panic!("a ReplicaSet comes first: {plan:?}")
    };
    let mut foreign = object.clone();
    foreign["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true}]);
    foreign["spec"]["replicas"] = json!(0);
    model.put(foreign);
    settle(&mut model, true, |_| {});
    assert_eq!(model.value("Deployment", "default", "web")["status"]["collisionCount"], 1);
    assert_eq!(model.names("ReplicaSet").len(), 2);
    assert_eq!(images(&model), ["one"]);
}

#[test]
fn shares_are_rounded_as_upstream_does() {
    use corten_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    let percent = |text: &str| IntOrString::String(text.to_owned());
    for (value, total, up, expected) in [
        (percent("25%"), 10, true, 3),
        (percent("25%"), 10, false, 2),
        (percent("100%"), 3, true, 3),
        (percent("0%"), 3, true, 0),
        (IntOrString::Int(2), 9, true, 2),
    ] {
        assert_eq!(scaled(Some(&value), total, up), expected, "{value:?} of {total}");
    }
    assert_eq!(scaled(None, 4, true), 1, "the default is a quarter");
}

/// Users may write any number; the sums of sizes do not overflow.
#[test]
fn sizes_beyond_all_numbers_do_not_overflow() {
    for surge in [json!("25%"), json!("9223372036854775807%"), json!(i32::MAX)] {
        let mut model = cluster(i32::MAX, rolling(surge.clone(), json!(1)));
        let look = |model: &mut Model| {
            let plan = decide(&DeploymentController, model, "default", "web");
            model.apply(&plan);
        };
        look(&mut model);
        assert_eq!(model.typed::<ReplicaSet>().iter().map(size_of).max(), Some(i32::MAX), "{surge}");
        for (path, value) in
            [("/spec/template/spec/containers/0/image", json!("two")), ("/spec/replicas", json!(2_000_000_000))]
        {
            change(&mut model, path, value);
            look(&mut model);
            look(&mut model);
        }
    }
}
