//! Jobs on a model.

use super::*;
use crate::tests::model::{Model, NOW, converges, decide};
use corten_meta::Value;
use serde_json::json;

fn job(spec: Value) -> Value {
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": "default", "name": "work", "uid": "work-uid", "generation": 1},
        "spec": {
            "parallelism": 1, "completions": 1, "backoffLimit": 6, "completionMode": "NonIndexed",
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "work-uid"}},
            "template": {"metadata": {"labels": {"batch.kubernetes.io/controller-uid": "work-uid"}}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}},
        },
    });
    corten_meta::patch::merge_patch(&mut job["spec"], &spec);
    job
}

fn index_of(pod: &Pod) -> Option<i32> {
    pod.metadata.annotations.as_ref()?.get(indexes::INDEX)?.parse().ok()
}

fn is_held(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING)
}

fn cluster(spec: Value) -> Model {
    let mut model = Model::default();
    model.put(job(spec));
    model
}

fn settle(model: &mut Model) {
    converges(&JobController, model, "default", "work");
}

/// Ends every active pod with `phase`, long enough ago that no backoff is left.
fn end_pods(model: &mut Model, phase: &str, code: i32) {
    for pod in model.typed::<Pod>().into_iter().filter(pods::is_active) {
        let mut value = pod.to_value();
        let terminated = json!({"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z"});
        value["status"] = json!({"phase": phase, "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": terminated}}]});
        model.put(value);
    }
}

fn status(model: &Model) -> Value {
    model.value("Job", "default", "work")["status"].take()
}

fn conditions(model: &Model) -> Vec<String> {
    let text = |condition: &Value| {
        format!(
            "{}={} {}",
            condition["type"].as_str().unwrap(),
            condition["status"].as_str().unwrap(),
            condition["reason"].as_str().unwrap()
        )
    };
    status(model)["conditions"].as_array().into_iter().flatten().map(text).collect()
}

#[test]
fn a_job_runs_to_completion_and_counts_each_pod_once() {
    let mut model = cluster(json!({"completions": 3, "parallelism": 2}));
    settle(&mut model);
    assert_eq!(model.names("Pod").len(), 2);
    assert!(model.typed::<Pod>().iter().all(is_held));
    assert_eq!(status(&model)["active"], 2);
    end_pods(&mut model, "Succeeded", 0);
    settle(&mut model);
    assert_eq!((&status(&model)["succeeded"], &status(&model)["active"]), (&json!(2), &json!(1)));
    end_pods(&mut model, "Succeeded", 0);
    settle(&mut model);
    assert_eq!(status(&model)["succeeded"], 3);
    assert_eq!(conditions(&model), ["SuccessCriteriaMet=True CompletionsReached", "Complete=True CompletionsReached"]);
    assert!(!model.typed::<Pod>().iter().any(is_held), "the finalizers are gone");
    assert!(model.events.contains(&"Normal Completed Job completed".to_owned()));
    assert!(!status(&model)["completionTime"].is_null());
}

#[test]
fn failures_are_retried_up_to_the_limit() {
    let mut model = cluster(json!({"backoffLimit": 1}));
    for _ in 0..2 {
        settle(&mut model);
        end_pods(&mut model, "Failed", 1);
    }
    settle(&mut model);
    assert_eq!(status(&model)["failed"], 2);
    assert_eq!(conditions(&model), ["FailureTarget=True BackoffLimitExceeded", "Failed=True BackoffLimitExceeded"]);
    assert!(
        model.events.contains(&"Warning BackoffLimitExceeded Job has reached the specified backoff limit".to_owned())
    );
    assert_eq!(model.names("Pod").len(), 2);
}

#[test]
fn a_fresh_failure_is_followed_by_a_pause() {
    let mut model = cluster(json!({}));
    settle(&mut model);
    let mut failed = model.typed::<Pod>().remove(0).to_value();
    let terminated = json!({"exitCode": 1, "finishedAt": corten_meta::time::rfc3339(*NOW)});
    failed["status"] = json!({"phase": "Failed", "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": terminated}}]});
    model.put(failed);
    settle(&mut model);
    assert_eq!(model.names("Pod").len(), 1);
    assert_eq!(decide(&JobController, &model, "default", "work").requeue_after, Some(Duration::from_secs(10)));
}

#[test]
fn an_indexed_job_works_on_every_index_once() {
    let mut model = cluster(json!({"completionMode": "Indexed", "completions": 4, "parallelism": 4}));
    settle(&mut model);
    let mut indexes: Vec<i32> = model.typed::<Pod>().iter().filter_map(index_of).collect();
    indexes.sort_unstable();
    assert_eq!(indexes, [0, 1, 2, 3]);
    let first = model.typed::<Pod>().into_iter().find(|pod| index_of(pod) == Some(0)).unwrap();
    let spec = first.spec.unwrap();
    assert_eq!(spec.hostname.as_deref(), Some("work-0"));
    assert_eq!(spec.containers[0].env.as_ref().unwrap()[0].name, "JOB_COMPLETION_INDEX");
    end_pods(&mut model, "Succeeded", 0);
    settle(&mut model);
    assert_eq!((&status(&model)["completedIndexes"], &status(&model)["succeeded"]), (&json!("0-3"), &json!(4)));
    assert_eq!(conditions(&model).last().unwrap(), "Complete=True CompletionsReached");
}

#[test]
fn with_a_limit_for_each_index_one_bad_index_does_not_stop_the_others() {
    let mut model = cluster(
        json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimitPerIndex": 0, "backoffLimit": 100}),
    );
    settle(&mut model);
    for pod in model.typed::<Pod>() {
        let mut value = pod.to_value();
        value["status"] = json!({"phase": if index_of(&pod) == Some(0) { "Failed" } else { "Succeeded" }});
        model.put(value);
    }
    settle(&mut model);
    assert_eq!((&status(&model)["failedIndexes"], &status(&model)["completedIndexes"]), (&json!("0"), &json!("1")));
    assert_eq!(conditions(&model), ["FailureTarget=True FailedIndexes", "Failed=True FailedIndexes"]);
}

#[test]
fn a_policy_fails_the_job_or_forgives_the_pod() {
    let policy = |action: &str| json!({"podFailurePolicy": {"rules": [{"action": action, "onExitCodes": {"operator": "In", "values": [42]}}]}, "backoffLimit": 0});
    let mut strict = cluster(policy("FailJob"));
    settle(&mut strict);
    end_pods(&mut strict, "Failed", 42);
    settle(&mut strict);
    assert_eq!(conditions(&strict).last().unwrap(), "Failed=True PodFailurePolicy");
    let message = status(&strict)["conditions"][0]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("failed with exit code 42 matching FailJob rule at index 0"), "{message}");

    let mut lenient = cluster(policy("Ignore"));
    settle(&mut lenient);
    end_pods(&mut lenient, "Failed", 42);
    settle(&mut lenient);
    assert!(status(&lenient)["failed"].is_null());
    assert_eq!(lenient.typed::<Pod>().iter().filter(pods::is_active).count(), 1);
}

/// Indexes that a user writes cost the controller no more than their characters.
#[test]
fn a_policy_over_billions_of_indexes_costs_no_memory() {
    let policy = json!({"completionMode": "Indexed", "completions": i32::MAX, "parallelism": 2,
        "successPolicy": {"rules": [{"succeededIndexes": "0-2147483646"}]}});
    let mut model = cluster(policy);
    settle(&mut model);
    assert_eq!(model.names("Pod").len(), 2);
    let mut job = model.value("Job", "default", "work");
    job["status"]["completedIndexes"] = json!("0-2147483640");
    model.put(job);
    settle(&mut model);
    let indexes: Vec<i32> = model.typed::<Pod>().iter().filter_map(index_of).filter(|index| *index > 9).collect();
    assert!(indexes.iter().all(|index| *index > 2_147_483_640), "{indexes:?}");
}

#[test]
fn a_success_policy_ends_the_job_early() {
    let policy = json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3, "successPolicy": {"rules": [{"succeededIndexes": "0"}]}});
    let mut model = cluster(policy);
    settle(&mut model);
    let leader = model.typed::<Pod>().into_iter().find(|pod| index_of(pod) == Some(0)).unwrap();
    let mut value = leader.to_value();
    value["status"] = json!({"phase": "Succeeded"});
    model.put(value);
    // The kubelet stops the others once they are deleted: only the tracking finalizer holds them.
    for _ in 0..6 {
        let plan = decide(&JobController, &model, "default", "work");
        model.apply(&plan);
        for pod in model.typed::<Pod>().into_iter().filter(|pod| pods::is_terminating(pod) && !pods::is_terminal(pod)) {
            let mut value = pod.to_value();
            value["status"] = json!({"phase": "Failed"});
            model.put(value);
        }
        for pod in model.typed::<Pod>().into_iter().filter(|pod| pods::is_terminating(pod) && !is_held(pod)) {
            model.remove("Pod", "default", pod.name());
        }
    }
    assert_eq!(conditions(&model), ["SuccessCriteriaMet=True SuccessPolicy", "Complete=True SuccessPolicy"]);
}

#[test]
fn suspension_stops_the_pods_and_the_clock() {
    let mut model = cluster(json!({"suspend": true, "activeDeadlineSeconds": 10}));
    settle(&mut model);
    assert!(model.names("Pod").is_empty() && status(&model)["startTime"].is_null());
    assert_eq!(conditions(&model), ["Suspended=True JobSuspended"]);
    let mut resumed = model.value("Job", "default", "work");
    resumed["spec"]["suspend"] = json!(false);
    model.put(resumed);
    settle(&mut model);
    assert_eq!(model.names("Pod").len(), 1);
    assert_eq!(conditions(&model), ["Suspended=False JobResumed"]);
}

#[test]
fn a_deadline_fails_the_job() {
    let mut model = cluster(json!({"activeDeadlineSeconds": 10}));
    settle(&mut model);
    assert_eq!(decide(&JobController, &model, "default", "work").requeue_after, Some(Duration::from_secs(10)));
    let late = NOW.checked_add(jiff::SignedDuration::from_secs(11)).unwrap();
    let plan = crate::runtime::Decide::decide(&JobController, &model, &Key::new("default", "work"), late);
    model.apply(&plan);
    assert_eq!(conditions(&model), ["FailureTarget=True DeadlineExceeded"]);
    assert!(model.typed::<Pod>().iter().all(pods::is_terminating));
}

#[test]
fn a_smaller_parallelism_stops_the_surplus() {
    let mut model = cluster(json!({"completions": 5, "parallelism": 3}));
    settle(&mut model);
    let mut smaller = model.value("Job", "default", "work");
    smaller["spec"]["parallelism"] = json!(1);
    model.put(smaller);
    let plan = decide(&JobController, &model, "default", "work");
    assert_eq!(plan.actions.iter().filter(|action| matches!(action, Action::Delete { .. })).count(), 2);
}

#[test]
fn a_finished_or_deleted_job_holds_no_pod() {
    for extra in [
        json!({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}),
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    ] {
        let mut model = cluster(json!({}));
        settle(&mut model);
        let mut changed = model.value("Job", "default", "work");
        corten_meta::patch::merge_patch(&mut changed, &extra);
        model.put(changed);
        settle(&mut model);
        assert!(!model.typed::<Pod>().iter().any(is_held));
    }
}

/// Removes deleted pods that have no finalizer, as a kubelet does.
fn clear_away(model: &mut Model) {
    for pod in model.typed::<Pod>().into_iter().filter(|pod| pods::is_terminal(pod) && !is_held(pod)) {
        model.remove("Pod", "default", pod.name());
    }
}

#[test]
fn an_index_is_lost_by_its_own_failures_even_if_its_pods_are_cleared_away() {
    let spec = json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": i32::MAX, "backoffLimitPerIndex": 1});
    let mut model = cluster(spec);
    for round in 0..2 {
        settle(&mut model);
        let active: Vec<Pod> = model.typed::<Pod>().into_iter().filter(pods::is_active).collect();
        let counts = active.iter().map(|pod| {
            pod.metadata.annotations.clone().unwrap()["batch.kubernetes.io/job-index-failure-count"].clone()
        });
        assert!(counts.into_iter().all(|count| count == round.to_string()), "round {round}");
        assert_eq!(active.len(), 2 - round);
        for pod in active {
            let mut value = pod.to_value();
            let failed = index_of(&pod) == Some(1);
            value["status"] = json!({"phase": if failed { "Failed" } else { "Succeeded" }, "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": i32::from(failed), "finishedAt": "2026-01-01T00:00:00Z"}}}]});
            model.put(value);
        }
        settle(&mut model);
        clear_away(&mut model);
    }
    settle(&mut model);
    assert_eq!((&status(&model)["completedIndexes"], &status(&model)["failedIndexes"]), (&json!("0"), &json!("1")));
    assert_eq!((&status(&model)["succeeded"], &status(&model)["failed"]), (&json!(1), &json!(2)));
    assert_eq!(conditions(&model), ["FailureTarget=True FailedIndexes", "Failed=True FailedIndexes"]);
}

#[test]
fn an_index_that_just_failed_waits_while_the_others_go_on() {
    let spec = json!({"completionMode": "Indexed", "completions": 3, "parallelism": 1, "backoffLimit": i32::MAX, "backoffLimitPerIndex": 1});
    let mut model = cluster(spec);
    settle(&mut model);
    let mut failed = model.typed::<Pod>()[0].to_value();
    failed["status"] = json!({"phase": "Failed", "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 1, "finishedAt": corten_meta::time::rfc3339(*NOW)}}}]});
    model.put(failed);
    settle(&mut model);
    let active: Vec<Option<i32>> = model.typed::<Pod>().iter().filter(pods::is_active).map(index_of).collect();
    assert_eq!(active, [Some(1)]);
}

#[test]
fn a_job_made_smaller_forgets_the_indexes_it_no_longer_asks_for() {
    let mut model = cluster(json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3}));
    settle(&mut model);
    for pod in model.typed::<Pod>().into_iter().filter(|pod| index_of(pod) != Some(0)) {
        let mut value = pod.to_value();
        value["status"] = json!({"phase": "Succeeded"});
        model.put(value);
    }
    settle(&mut model);
    assert_eq!(status(&model)["completedIndexes"], "1,2");
    let mut smaller = model.value("Job", "default", "work");
    corten_meta::patch::merge_patch(&mut smaller["spec"], &json!({"completions": 2, "parallelism": 2}));
    model.put(smaller);
    settle(&mut model);
    assert_eq!((&status(&model)["completedIndexes"], &status(&model)["succeeded"]), (&json!("1"), &json!(1)));
}

#[test]
fn a_job_that_is_gone_holds_no_pod() {
    let mut model = cluster(json!({}));
    settle(&mut model);
    let pod = model.names("Pod").remove(0);
    assert_eq!(converges(&UncountedPods, &mut model, "default", &pod), 0, "its Job is there");
    let before = model.value("Job", "default", "work");
    model.remove("Job", "default", "work");
    let keys = crate::tests::model::mapped::<Job>(&UncountedPods, &model, Some(&before), None);
    assert_eq!(keys, [format!("default/{pod}")]);
    converges(&UncountedPods, &mut model, "default", &pod);
    assert!(!model.typed::<Pod>().iter().any(is_held));
}
