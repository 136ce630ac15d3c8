//! The rules of Job and CronJob.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};

use super::schedule::schedule_error;
use crate::cells::{text, truth};
use crate::core::pod_validation::validate_template;
use crate::defaulting::absent;
use crate::validation::{immutable, label_selector, nonnegative, required_word};

pub(super) fn validate_job(object: &Value) -> Vec<FieldError> {
    let path = Path::root("spec");
    let mut errors = validate_job_spec(&object["spec"], &path);
    if object["spec"]["selector"].is_object() {
        errors.extend(label_selector(&object["spec"]["selector"], &path.child("selector")));
    } else {
        errors.push(FieldError::required(&path.child("selector"), ""));
    }
    errors
}

fn validate_job_spec(spec: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        errors.extend(nonnegative(&spec[field], &path.child(field)));
    }
    match text(spec, "/completionMode") {
        "" | "NonIndexed" => {
            for field in ["backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"] {
                if spec.get(field).is_some_and(|v| !v.is_null()) {
                    let value = spec[field].clone();
                    errors.push(FieldError::invalid(&path.child(field), value, "requires indexed completion mode"));
                }
            }
        }
        "Indexed" if absent(spec, "/completions") => {
            let detail = "when completion mode is Indexed";
            errors.push(FieldError::required(&path.child("completions"), detail));
        }
        "Indexed" => {}
        other => {
            errors.push(FieldError::not_supported(&path.child("completionMode"), other, &["NonIndexed", "Indexed"]));
        }
    }
    errors.extend(validate_template(&spec["template"], &path.child("template")));
    let policy = text(spec, "/template/spec/restartPolicy");
    let policy_path = path.child("template").child("spec").child("restartPolicy");
    match policy {
        "" | "Always" => {
            errors.push(FieldError::required(&policy_path, "valid values: \"OnFailure\", \"Never\""));
        }
        "OnFailure" if spec["podFailurePolicy"].is_object() => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.push(FieldError::invalid(&policy_path, policy, detail));
        }
        "OnFailure" | "Never" => {}
        other => errors.push(FieldError::not_supported(&policy_path, other, &["OnFailure", "Never"])),
    }
    errors
}

/// A job is fixed once it is made; a suspended one may still be placed elsewhere.
pub(super) fn validate_job_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let path = Path::root("spec");
    let mut fields =
        vec!["selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"];
    if text(new, "/spec/completionMode") != "Indexed" {
        fields.push("completions");
    }
    let mut errors: Vec<FieldError> =
        fields.iter().filter_map(|f| immutable(new, old, &format!("/spec/{f}"), &path.child(f))).collect();
    let mut before = old.clone();
    let suspended = truth(old, "/spec/suspend") && absent(old, "/status/startTime");
    if suspended {
        for field in [
            "spec/affinity",
            "spec/nodeSelector",
            "spec/tolerations",
            "spec/schedulingGates",
            "metadata/labels",
            "metadata/annotations",
        ] {
            let pointer = format!("/spec/template/{field}");
            match new.pointer(&pointer) {
                Some(value) => crate::defaulting::put(&mut before, &pointer, value.clone()),
                None => {
                    crate::defaulting::remove(&mut before, &pointer);
                }
            }
        }
    }
    errors.extend(immutable(new, &before, "/spec/template", &path.child("template")));
    errors
}

pub(super) fn validate_cron_job(object: &Value) -> Vec<FieldError> {
    let path = Path::root("spec");
    let spec = &object["spec"];
    let mut errors = Vec::new();
    errors.extend(validate_schedule(spec, &path));
    errors.extend(validate_time_zone(&spec["timeZone"], &path.child("timeZone")));
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        errors.extend(nonnegative(&spec[field], &path.child(field)));
    }
    errors.extend(required_word(
        &spec["concurrencyPolicy"],
        &path.child("concurrencyPolicy"),
        &["Allow", "Forbid", "Replace"],
    ));
    errors.extend(validate_job_spec(&spec["jobTemplate"]["spec"], &path.child("jobTemplate").child("spec")));
    let name = text(object, "/metadata/name");
    if name.len() > 52 {
        let path = Path::root("metadata").child("name");
        errors.push(FieldError::invalid(&path, name, "must be no more than 52 characters"));
    }
    errors
}

fn validate_schedule(spec: &Value, path: &Path) -> Vec<FieldError> {
    let (schedule, path) = (text(spec, "/schedule"), path.child("schedule"));
    if schedule.is_empty() {
        return vec![FieldError::required(&path, "")];
    }
    if schedule.contains("TZ") {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        return vec![FieldError::invalid(&path, schedule, detail)];
    }
    schedule_error(schedule).map(|detail| FieldError::invalid(&path, schedule, detail)).into_iter().collect()
}

fn validate_time_zone(value: &Value, path: &Path) -> Option<FieldError> {
    let zone = value.as_str()?;
    if zone.is_empty() {
        return Some(FieldError::invalid(path, zone, "timeZone must be nil or non-empty string"));
    }
    if zone.eq_ignore_ascii_case("local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        return Some(FieldError::invalid(path, zone, detail));
    }
    let unknown = jiff::tz::TimeZone::get(zone).is_err();
    unknown.then(|| FieldError::invalid(path, zone, format!("unknown time zone {zone}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    fn check(plural: &str, spec: serde_json::Value) -> Vec<String> {
        let kind = crate::lookup("batch", "v1", plural).expect("kind");
        let mut object = json!({"metadata": {"name": "x", "namespace": "d", "uid": "u"}, "spec": spec});
        kind.default(&mut object);
        kind.behaviour.prepare_create(&mut object);
        kind.validate(&object).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn jobs() {
        let template =
            |policy: &str| json!({"spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]}});
        assert_eq!(check("jobs", json!({"template": template("Never")})), Vec::<String>::new());
        assert_eq!(
            check("jobs", json!({"template": template("")})),
            ["spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""]
        );
        let cron = json!({"schedule": "61 * * * *", "jobTemplate": {"spec": {"template": template("Never")}}});
        assert_eq!(
            check("cronjobs", cron),
            ["spec.schedule: Invalid value: \"61 * * * *\": end of range (61) above maximum (59): 61"]
        );
    }

    #[test]
    fn a_job_gets_its_selector_from_its_uid() {
        let kind = crate::lookup("batch", "v1", "jobs").expect("jobs");
        let mut job = json!({"metadata": {"name": "x", "uid": "u"}, "spec": {"template": {"spec": {}}}});
        kind.default(&mut job);
        kind.behaviour.prepare_create(&mut job);
        assert_eq!(job["spec"]["selector"]["matchLabels"], json!({"batch.kubernetes.io/controller-uid": "u"}));
        assert_eq!(job["spec"]["template"]["metadata"]["labels"]["job-name"], "x");
    }
}
