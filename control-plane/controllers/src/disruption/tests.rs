//! PodDisruptionBudgets and their invariants on a model.

use super::*;
use crate::tests::model::{Model, converges, decide, mapped, pod};
use serde_json::{Value, json};

fn budget(rule: Value) -> Value {
    let mut budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "default", "name": "web", "uid": "b", "generation": 3},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
    });
    corten_meta::patch::merge_patch(&mut budget["spec"], &rule);
    budget
}

/// Returns this many ready pods of a ReplicaSet of a Deployment with ten replicas.
fn cluster(rule: Value, ready: usize) -> Model {
    let mut model = Model::default();
    model.put(budget(rule));
    model.put(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "default", "name": "web", "uid": "d"}, "spec": {"replicas": 10, "selector": {}, "template": {}}}));
    let above = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}]);
    model.put(json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"namespace": "default", "name": "web-1", "uid": "r", "ownerReferences": above}, "spec": {"replicas": 4, "selector": {}}}));
    for number in 0..ready {
        model.put(member(&format!("p{number}")).value());
    }
    model
}

fn member(name: &str) -> crate::tests::model::PodBuilder {
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "r", "controller": true}]);
    pod(name).label("app", "web").phase("Running").ready(60).set("/metadata/ownerReferences", owner)
}

fn settled(model: &mut Model) -> Value {
    converges(&DisruptionController, model, "default", "web");
    model.value("PodDisruptionBudget", "default", "web")["status"].take()
}

#[test]
fn numbers_and_percentages_decide_how_many_may_go() {
    for (rule, ready, expected) in [
        (json!({"minAvailable": 2}), 3, (3, 2, 3, 1)),
        (json!({"minAvailable": 5}), 3, (3, 5, 3, 0)),
        (json!({"minAvailable": "25%"}), 4, (10, 3, 4, 1)),
        (json!({"maxUnavailable": 1}), 10, (10, 9, 10, 1)),
        (json!({"maxUnavailable": "35%"}), 8, (10, 6, 8, 2)),
        (json!({"maxUnavailable": 1}), 0, (0, 0, 0, 0)),
    ] {
        let status = settled(&mut cluster(rule.clone(), ready));
        let number = |field: &str| status[field].as_i64().unwrap();
        let counted =
            (number("expectedPods"), number("desiredHealthy"), number("currentHealthy"), number("disruptionsAllowed"));
        assert_eq!(counted, expected, "{rule} with {ready} ready");
        assert_eq!(status["observedGeneration"], 3);
        let (state, reason) = if expected.3 > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
        let condition = &status["conditions"][0];
        assert_eq!((&condition["status"], &condition["reason"]), (&json!(state), &json!(reason)), "{rule}");
    }
}

#[test]
fn evicted_pods_are_not_healthy_until_they_have_overstayed() {
    let mut model = cluster(json!({"minAvailable": 1}), 3);
    let mut spent = budget(json!({"minAvailable": 1}));
    spent["status"] = json!({
        "currentHealthy": 3, "desiredHealthy": 1, "expectedPods": 3, "disruptionsAllowed": 1,
        "disruptedPods": {"p0": "2026-01-02T03:04:00Z", "p1": "2026-01-02T03:00:00Z", "gone": "2026-01-02T03:04:00Z"},
    });
    model.put(spent);
    assert_eq!(
        decide(&DisruptionController, &model, "default", "web").requeue_after,
        Some(Duration::from_millis(115_001))
    );
    let status = settled(&mut model);
    assert_eq!(status["disruptedPods"], json!({"p0": "2026-01-02T03:04:00Z"}));
    assert_eq!((&status["currentHealthy"], &status["disruptionsAllowed"]), (&json!(2), &json!(1)));
    assert_eq!(model.events[0], "Warning NotDeleted Pod was expected by PDB default/web to be deleted but it wasn't");
}

/// Returns a budget over one pod of a custom resource that is in no cache.
fn foreign(rule: Value) -> (Model, ScaleQuestion) {
    let mut model = cluster(rule, 0);
    let owner = json!([{"apiVersion": "example.com/v1", "kind": "Web", "name": "w", "uid": "w", "controller": true}]);
    model.put(member("p").set("/metadata/ownerReferences", owner).value());
    let key = Key::new("default", "w");
    (model, ScaleQuestion { api_version: "example.com/v1".to_owned(), kind: "Web".to_owned(), key })
}

#[test]
fn the_scale_of_a_foreign_kind_is_asked_of_the_server() {
    let (mut model, question) = foreign(json!({"maxUnavailable": "50%"}));
    let plan = decide(&DisruptionController, &model, "default", "web");
    assert_eq!(plan.actions, [Action::AskScale(question.clone())], "nothing is told before it is known");
    model.scales.insert(question, Ok(Some(("w".to_owned(), 4))));
    let status = settled(&mut model);
    assert_eq!((&status["expectedPods"], &status["desiredHealthy"]), (&json!(4), &json!(2)));
    let (mut model, _) = foreign(json!({"minAvailable": 1}));
    assert_eq!(settled(&mut model)["expectedPods"], 1, "a number needs no scale");
}

#[test]
fn what_cannot_be_counted_allows_nothing() {
    for (answer, message) in [
        (Err("webs.example.com does not implement the scale subresource".to_owned()), None),
        (Ok(None), Some("found no controllers for pod \"p\"")),
        (Ok(Some(("another".to_owned(), 4))), Some("found no controllers for pod \"p\"")),
    ] {
        let (mut model, question) = foreign(json!({"maxUnavailable": 1}));
        let message = message.map_or_else(|| answer.clone().unwrap_err(), str::to_owned);
        model.scales.insert(question, answer);
        let status = settled(&mut model);
        assert_eq!(status["disruptionsAllowed"], 0);
        assert_eq!(status["conditions"][0]["reason"], "SyncFailed");
        assert_eq!(status["conditions"][0]["message"], message);
    }
}

#[test]
fn unmanaged_pods_are_told_and_not_counted() {
    let mut model = cluster(json!({"maxUnavailable": 1}), 0);
    model.put(member("p").set("/metadata/ownerReferences", json!([])).value());
    assert_eq!(settled(&mut model)["expectedPods"], 0);
    assert!(model.events[0].starts_with("Warning UnmanagedPods "), "{:?}", model.events);
}

#[test]
fn a_pod_wakes_the_budgets_that_select_it() {
    let model = cluster(json!({"minAvailable": 1}), 0);
    let lost = pod("p").label("app", "other").value();
    assert_eq!(mapped::<Pod>(&DisruptionController, &model, Some(&member("p").value()), Some(&lost)), ["default/web"]);
    assert!(mapped::<Pod>(&DisruptionController, &model, None, Some(&lost)).is_empty());
}
