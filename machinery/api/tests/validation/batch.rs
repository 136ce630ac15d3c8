//! Tests of Jobs and CronJobs.

use serde_json::{Value, json};

use super::Subject;

fn template() -> Value {
    json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}})
}

fn job() -> Subject {
    Subject::new("batch", "jobs", json!({"spec": {"template": template()}}))
}

#[test]
fn jobs() {
    job().creates(&[
        ("/spec/parallelism", json!(-1), &[
            "spec.parallelism: Invalid value: -1: must be greater than or equal to 0",
        ]),
        ("/spec/template/spec/restartPolicy", json!("Always"), &[
            "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
        ]),
        ("/spec/completionMode", json!("Indexed"), &[]),
        ("/spec/successPolicy", json!({"rules": []}), &[
            "spec.successPolicy: Invalid value: {\"rules\":[]}: requires indexed completion mode",
        ]),
        ("/spec/managedBy", json!("me"), &[
            "spec.managedBy: Invalid value: \"me\": must be a domain-prefixed path (such as \"acme.io/foo\")",
        ]),
        ("/spec/maxFailedIndexes", json!(1), &[
            "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
            "spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode",
        ]),
        ("/spec/podFailurePolicy", json!({"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 1, 0]}}]}), &[
            "spec.podFailurePolicy.rules[0].onExitCodes.values[2]: Invalid value: 0: must not be 0 for the In operator",
            "spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [2,1,0]: must be ordered",
        ]),
        ("/spec/podFailurePolicy", json!({"rules": [{"action": "Ignore"}]}), &[
            "spec.podFailurePolicy.rules[0]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
        ]),
        ("/spec/selector", json!({"matchLabels": {"a": "b"}}), &[
            "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"batch.kubernetes.io/controller-uid\":\"u\"}}: `selector` not auto-generated",
            "spec.template.metadata.labels: Invalid value: {\"batch.kubernetes.io/controller-uid\":\"u\",\"batch.kubernetes.io/job-name\":\"x\",\"controller-uid\":\"u\",\"job-name\":\"x\"}: `selector` does not match template `labels`",
        ]),
    ]);
}

/// Returns a job as the server stores it.
fn stored() -> Subject {
    let mut subject = job();
    subject.good["spec"]["completions"] = 3.into();
    subject.kind.behaviour.prepare_create(&mut subject.good);
    subject
}

#[test]
fn a_job_is_fixed() {
    stored().updates(&[
        ("/spec/parallelism", json!(2), &[]),
        ("/spec/suspend", json!(true), &[]),
        ("/spec/completions", json!(4), &["spec.completions: Invalid value: 4: field is immutable"]),
    ]);
    let mut suspended = stored();
    suspended.good["spec"]["suspend"] = true.into();
    suspended.updates(&[
        ("/spec/template/spec/nodeSelector", json!({"a": "b"}), &[]),
        ("/spec/template/spec/containers/0/resources", json!({"requests": {"cpu": "1"}}), &[]),
        ("/spec/template/metadata/namespace", json!("b"), &[]),
    ]);
}

#[test]
fn a_finished_job_stays_so() {
    let mut subject = stored();
    let ended = json!([{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}]);
    subject.good["status"] = json!({"startTime": "2024-01-01T00:00:00Z", "completionTime": "2024-01-01T00:01:00Z",
        "conditions": ended, "succeeded": 3});
    subject.status_updates(&[
        ("/status/ready", json!(0), &[]),
        ("/status/succeeded", json!(2), &[
            "status.succeeded: Invalid value: 2: cannot decrease the succeeded counter",
        ]),
        ("/status/active", json!(1), &["status.active: Invalid value: 1: active>0 is invalid for finished job"]),
        ("/status/completionTime", json!("2023-01-01T00:00:00Z"), &[
            "status.completionTime: Invalid value: \"2023-01-01T00:00:00Z\": must be equal to or after `startTime`",
            "status.completionTime: Invalid value: \"2023-01-01T00:00:00Z\": field is immutable",
        ]),
        // A fraction of a second that was sent counts, though it is not stored.
        ("/status/completionTime", json!("2024-01-01T00:01:00.5Z"), &[
            "status.completionTime: Invalid value: \"2024-01-01T00:01:00.5Z\": field is immutable",
        ]),
        ("/status/conditions", json!([{"type": "SuccessCriteriaMet", "status": "True"}]), &[
            "status.completionTime: Invalid value: \"2024-01-01T00:01:00Z\": cannot set completionTime when there is no Complete=True condition",
            "status.conditions: Invalid value: cannot disable the terminal Complete=True condition",
        ]),
    ]);
}

#[test]
fn cron_jobs() {
    let spec = json!({"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": template()}}});
    let subject = Subject::new("batch", "cronjobs", json!({ "spec": spec }));
    subject.creates(&[
        ("/spec/timeZone", json!("Europe/Rome"), &[]),
        ("/spec/timeZone", json!("Mars/Base"), &[
            "spec.timeZone: Invalid value: \"Mars/Base\": unknown time zone Mars/Base",
        ]),
        ("/spec/schedule", json!(""), &["spec.schedule: Required value"]),
        ("/spec/schedule", json!("TZ=UTC * * * * *"), &[
            "spec.schedule: Invalid value: \"TZ=UTC * * * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        ]),
        ("/spec/schedule", json!("61 * * * *"), &[
            "spec.schedule: Invalid value: \"61 * * * *\": end of range (61) above maximum (59): 61",
        ]),
        ("/spec/concurrencyPolicy", json!("Maybe"), &[
            "spec.concurrencyPolicy: Unsupported value: \"Maybe\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
        ]),
        ("/spec/jobTemplate/spec/selector", json!({"matchLabels": {"a": "b"}}), &[
            "spec.jobTemplate.spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: `selector` will be auto-generated",
        ]),
        ("/metadata/name", json!("a".repeat(53)), &[
            "metadata.name: Invalid value: \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\": must be no more than 52 characters",
        ]),
    ]);
    subject.updates(&[("/spec/suspend", json!(true), &[]), ("/spec/schedule", json!("@hourly"), &[])]);
}
