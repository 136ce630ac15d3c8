//! Jobs that users and CronJobs create, that finish, and that are deleted after their TTL.
//!
//! No Job is deleted before its TTL, and none stays beyond it; a CronJob with the policy Forbid never has two Jobs at
//! once; at the end no CronJob keeps more than its history limits, and no pod of a deleted Job is left.

use corten_meta::Value;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::cluster::{World, collection, path_of, play};
use super::server::{Faults, Invariant, Server, Write};
use super::{Random, all, any, kubelet, now, touch};
use crate::tests::model::Model;

pub const WORLD: World = World {
    controllers: &[
        "job-controller",
        "cronjob-controller",
        "ttl-after-finished-controller",
        "garbage-collector-controller",
    ],
    objects,
    happens,
    goes_on,
    invariant,
    at_rest,
    // Deletion by TTL must not rely on a cache.
    faults: Faults { late: 400, ..Faults::MANY },
    pace: std::time::Duration::from_secs(5),
    steps: 120,
    ..World::USUAL
};

const CLEANER: &str = "ttl-after-finished-controller";
const CRON: &str = "cronjob-controller";

fn job_spec(random: &mut Random) -> Value {
    let lives = [Value::Null, json!(0), json!(15), json!(90)][random.next(4)].clone();
    json!({"parallelism": 1, "completions": 1, "backoffLimit": 2, "ttlSecondsAfterFinished": lives,
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}})
}

fn objects(random: &mut Random) -> Vec<Value> {
    let mut all = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}),
    ];
    for policy in ["Allow", "Forbid", "Replace"] {
        let mut job = job_spec(random);
        // The history limit of the CronJob applies alone.
        job["ttlSecondsAfterFinished"] = Value::Null;
        let spec = json!({"schedule": "* * * * *", "concurrencyPolicy": policy, "jobTemplate": {"spec": job},
            "successfulJobsHistoryLimit": 2, "failedJobsHistoryLimit": 1});
        all.push(json!({"apiVersion": "batch/v1", "kind": "CronJob",
            "metadata": {"namespace": "default", "name": policy.to_lowercase()}, "spec": spec}));
    }
    all
}

fn happens(server: &Server, random: &mut Random) {
    match random.next(10) {
        0..3 => {
            let spec = job_spec(random);
            let new = json!({"apiVersion": "batch/v1", "kind": "Job",
                "metadata": {"namespace": "default", "name": format!("j{}", random.next(6))}, "spec": spec});
            let _ = server.ask("user", Method::POST, &collection(&new), &new);
        }
        // A user changes the TTL of a Job.
        3..6 => {
            let mut jobs = all(server, "Job");
            jobs.retain(|job| job["metadata"]["ownerReferences"].is_null());
            // Preferably at the last moment.
            let soon = |job: &&Value| {
                let left = expires(job).map(|at| at.duration_since(now()).as_secs());
                left.is_some_and(|left| (0..3).contains(&left))
            };
            let chosen = jobs.iter().find(soon).or_else(|| random.one_of(&jobs));
            let Some(job) = chosen else { return };
            let seconds = [5, 30, 200][random.next(3)];
            let patch = json!({"spec": {"ttlSecondsAfterFinished": seconds}});
            let _ = server.ask("user", Method::PATCH, &path_of(job), &patch);
        }
        6 => {
            let Some(job) = any(server, random, "Job") else { return };
            super::delete(server, &job, [Some("Foreground"), Some("Background")][random.next(2)]);
        }
        _ => {
            let kind = ["Job", "CronJob", "Pod"][random.next(3)];
            touch(server, random, kind);
        }
    }
}

/// Runs the kubelets; once the faults have ended, no CronJob creates a Job.
fn goes_on(server: &Server, random: &mut Random) {
    kubelet(server, random);
    if server.state().faults.refused > 0 {
        return;
    }
    for schedule in all(server, "CronJob").iter().filter(|one| one["spec"]["suspend"] != true) {
        let _ = server.ask("user", Method::PATCH, &path_of(schedule), &json!({"spec": {"suspend": true}}));
    }
}

/// Returns when and how a Job finished, from its condition.
fn ended(job: &Value) -> Option<(&str, Timestamp)> {
    let conditions = job["status"]["conditions"].as_array()?;
    let last = |one: &&Value| one["status"] == "True" && ["Complete", "Failed"].iter().any(|kind| one["type"] == *kind);
    let condition = conditions.iter().find(last)?;
    Some((condition["type"].as_str()?, condition["lastTransitionTime"].as_str()?.parse().ok()?))
}

/// Returns when the TTL of a Job expires.
fn expires(job: &Value) -> Option<Timestamp> {
    let lives = SignedDuration::from_secs(job["spec"]["ttlSecondsAfterFinished"].as_i64()?);
    ended(job)?.1.checked_add(lives).ok()
}

fn invariant() -> Invariant {
    Box::new(|write: &Write<'_>| {
        if write.kind != "Job" {
            return Ok(());
        }
        match (write.who, &write.old, &write.new) {
            (CLEANER, Some(old), _) => match expires(old) {
                Some(at) if at <= now() => Ok(()),
                at => Err(format!("it went before its time, which is {at:?}: {old}")),
            },
            (CRON, None, Some(new)) => check_schedule(write.after, new, write.late),
            _ => Ok(()),
        }
    })
}

/// Checks a Job that a CronJob creates.
fn check_schedule(model: &Model, new: &Value, late: usize) -> Result<(), String> {
    let owner = &new["metadata"]["ownerReferences"][0]["name"];
    let jobs = model.keys("Job").into_iter().map(|key| model.value("Job", &key.namespace, &key.name));
    let runs = |job: &Value| {
        job["metadata"]["ownerReferences"][0]["name"] == *owner
            && job["metadata"]["deletionTimestamp"].is_null()
            && ended(job).is_none()
    };
    let running = jobs.into_iter().filter(runs).count();
    match ["forbid", "replace"].iter().any(|one| owner == one) && running > 1 + late {
        true => Err(format!("{running} Jobs of {owner} run at once")),
        false => Ok(()),
    }
}

fn at_rest(server: &Server) -> Result<(), String> {
    let jobs = all(server, "Job");
    for job in &jobs {
        let name = corten_meta::name(job);
        if ended(job).is_none() || expires(job).is_some() || !job["metadata"]["deletionTimestamp"].is_null() {
            return Err(format!("{name} does not end, or stays beyond its time: {job}"));
        }
    }
    for schedule in all(server, "CronJob") {
        let name = corten_meta::name(&schedule);
        let own = |job: &&Value| job["metadata"]["ownerReferences"][0]["name"] == name;
        let of =
            |kind: &str| jobs.iter().filter(own).filter(|job| ended(job).is_some_and(|(one, _)| one == kind)).count();
        if of("Complete") > 2 || of("Failed") > 1 || !schedule["status"]["active"].is_null() {
            return Err(format!("{name} keeps {} and {}: {}", of("Complete"), of("Failed"), schedule["status"]));
        }
        // Users may have deleted all Jobs; the status shows that there was one.
        if schedule["status"]["lastScheduleTime"].is_null() {
            return Err(format!("{name} never began anything"));
        }
    }
    let of = |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"].clone();
    match all(server, "Pod").iter().find(|pod| !jobs.iter().any(|job| job["metadata"]["uid"] == of(pod))) {
        Some(pod) => Err(format!("{} is of a Job that is gone", corten_meta::name(pod))),
        None => Ok(()),
    }
}

#[test]
fn jobs_go_when_their_time_is_over_and_schedules_keep_to_their_rules() {
    play(&WORLD);
}
