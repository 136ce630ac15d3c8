//! CronJobs on a model whose clock stands at five past.

use super::*;
use crate::tests::model::{Model, converges, decide};
use corten_meta::Value;
use serde_json::json;

fn cluster(spec: Value, created: &str) -> Model {
    let mut model = Model::default();
    let mut cron = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"namespace": "default", "name": "tick", "uid": "tick-uid", "creationTimestamp": created},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {"spec": {"containers": []}}}}},
    });
    corten_meta::patch::merge_patch(&mut cron["spec"], &spec);
    model.put(cron);
    model
}

fn job(name: &str, scheduled: &str, condition: Option<&str>) -> Value {
    let conditions: Vec<Value> = condition.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": "default", "name": name, "annotations": {SCHEDULED_AT: scheduled}, "ownerReferences": [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "uid": "tick-uid", "controller": true}]},
        "spec": {}, "status": {"startTime": scheduled, "conditions": conditions},
    })
}

fn settle(model: &mut Model) {
    converges(&CronJobController, model, "default", "tick");
}

#[test]
fn the_latest_time_that_came_gets_one_job() {
    let mut model = cluster(json!({}), "2026-01-02T03:00:30Z");
    settle(&mut model);
    let minute = "2026-01-02T03:04:00Z".parse::<Timestamp>().unwrap().as_second() / 60;
    assert_eq!(model.names("Job"), [format!("tick-{minute}")]);
    let created = model.value("Job", "default", &format!("tick-{minute}"));
    assert_eq!(
        (&created["metadata"]["labels"]["a"], &created["metadata"]["annotations"][SCHEDULED_AT]),
        (&json!("b"), &json!("2026-01-02T03:04:00Z"))
    );
    let status = model.value("CronJob", "default", "tick")["status"].take();
    assert_eq!(
        (&status["lastScheduleTime"], status["active"].as_array().unwrap().len()),
        (&json!("2026-01-02T03:04:00Z"), 1)
    );
    let wait = decide(&CronJobController, &model, "default", "tick").requeue_after.unwrap();
    assert_eq!(wait, Duration::from_secs(55) + NUDGE);
}

#[test]
fn nothing_is_started_before_its_time_or_while_suspended() {
    for (spec, created) in [(json!({}), "2026-01-02T03:04:02Z"), (json!({"suspend": true}), "2026-01-01T00:00:00Z")] {
        let mut model = cluster(spec, created);
        settle(&mut model);
        assert!(model.names("Job").is_empty());
    }
}

#[test]
fn concurrency_is_as_the_policy_says() {
    for (policy, expected) in [("Allow", 2), ("Forbid", 1), ("Replace", 1)] {
        let mut model = cluster(json!({"concurrencyPolicy": policy}), "2026-01-02T03:00:30Z");
        let old = named("2026-01-02T03:03:00Z");
        model.put(job(&old, "2026-01-02T03:03:00Z", None));
        let plan = decide(&CronJobController, &model, "default", "tick");
        model.apply(&plan);
        assert_eq!(model.names("Job").len(), expected, "{policy}");
        assert_eq!(model.names("Job").contains(&old), policy != "Replace", "{policy}");
    }
}

#[test]
fn a_time_that_is_too_long_ago_is_missed() {
    let mut model = cluster(json!({"schedule": "0 3 * * *", "startingDeadlineSeconds": 60}), "2026-01-01T00:00:00Z");
    settle(&mut model);
    assert!(model.names("Job").is_empty());
}

#[test]
fn only_so_many_ended_jobs_are_kept() {
    let mut model = cluster(json!({"suspend": true}), "2026-01-02T00:00:00Z");
    for number in 0..5 {
        model.put(job(&format!("good-{number}"), &format!("2026-01-02T01:0{number}:00Z"), Some("Complete")));
        model.put(job(&format!("bad-{number}"), &format!("2026-01-02T01:0{number}:00Z"), Some("Failed")));
    }
    settle(&mut model);
    assert_eq!(model.names("Job"), ["bad-4", "good-2", "good-3", "good-4"]);
}

#[test]
fn the_end_of_a_job_is_told_once() {
    let mut model = cluster(json!({"suspend": true}), "2026-01-02T00:00:00Z");
    let name = named("2026-01-02T01:00:00Z");
    model.put(job(&name, "2026-01-02T01:00:00Z", None));
    settle(&mut model);
    model.put({
        let mut ended = model.value("Job", "default", &name);
        ended["status"]["conditions"] = json!([{"type": "Complete", "status": "True"}]);
        ended["status"]["completionTime"] = json!("2026-01-02T01:01:00Z");
        ended
    });
    settle(&mut model);
    assert_eq!(model.events, [format!("Normal SawCompletedJob Saw completed job: {name}, condition: Complete")]);
    let status = model.value("CronJob", "default", "tick")["status"].take();
    assert_eq!(status["lastSuccessfulTime"], "2026-01-02T01:01:00Z");
    assert!(status["active"].is_null());
}

#[test]
fn a_schedule_that_is_none_is_told() {
    for (schedule, reason) in [("whenever", "UnparseableSchedule"), ("59 23 31 2 *", "InvalidSchedule")] {
        let model = cluster(json!({ "schedule": schedule }), "2026-01-02T00:00:00Z");
        let plan = decide(&CronJobController, &model, "default", "tick");
        assert!(matches!(&plan.actions[..], [Action::Event(event)] if event.reason == reason), "{schedule}");
    }
}

#[test]
fn a_year_of_missed_minutes_is_gone_through_quickly() {
    let model = cluster(json!({}), "2025-01-01T00:00:00Z");
    let plan = decide(&CronJobController, &model, "default", "tick");
    let Some(Action::Create { object, .. }) = plan.actions.last() else { panic!("a Job: {plan:?}") };
    assert_eq!(object["metadata"]["annotations"][SCHEDULED_AT], "2026-01-02T03:04:00Z");
}

/// Returns the name of the Job for a scheduled time.
fn named(time: &str) -> String {
    format!("tick-{}", time.parse::<Timestamp>().unwrap().as_second() / 60)
}

#[test]
fn a_job_that_a_person_made_is_told_of_and_does_not_count() {
    let mut model = cluster(json!({"concurrencyPolicy": "Forbid"}), "2026-01-02T03:00:30Z");
    let mut manual = job("by-hand", "2026-01-02T03:03:00Z", None);
    manual["metadata"]["annotations"] = json!({"cronjob.kubernetes.io/instantiate": "manual"});
    model.put(manual);
    let plan = decide(&CronJobController, &model, "default", "tick");
    model.apply(&plan);
    assert_eq!(model.names("Job").len(), 2);
    assert!(
        model.events.contains(
            &"Warning UnexpectedJob Saw a job that the controller did not create or forgot: by-hand".to_owned()
        )
    );
}
