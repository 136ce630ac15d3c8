//! The rules of a Job's status: its counts and its end. A finished job stays finished.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::indexes::{count_indexes, overlap};
use crate::check::{At, Errors};

/// A status before or after a write.
struct Status<'a>(At<'a>);

impl Status<'_> {
    fn is(&self, condition: &str) -> bool {
        let conditions = self.0.get("conditions");
        conditions.items().any(|c| c.get("type").text() == condition && c.get("status").text() == "True")
    }

    fn is_finished(&self) -> bool {
        self.is("Complete") || self.is("Failed")
    }

    fn count(&self, field: &str) -> i64 {
        self.0.get(field).number().unwrap_or_default()
    }
}

/// The parts of a status that a write changes. A rule applies only to its own parts: a status that broke it before, or
/// that breaks it because the spec has changed, may still change in other ways.
struct Changes<'a>(&'a Status<'a>, &'a Status<'a>);

impl Changes<'_> {
    fn field(&self, field: &str) -> bool {
        self.0.0.get(field).value != self.1.0.get(field).value
    }

    fn condition(&self, condition: &str) -> bool {
        self.0.is(condition) != self.1.is(condition)
    }

    fn finished(&self) -> bool {
        self.0.is_finished() != self.1.is_finished()
    }
}

/// Validates a write to the status subresource.
pub(super) fn validate_status_update(new: &Value, old: &Value) -> Errors {
    let job = At::object(new);
    let before = At::object(old);
    let status = Status(job.get("status"));
    let then = Status(before.get("status"));
    let changes = Changes(&status, &then);
    let mut errors = Errors::new();
    validate_counts(&status, &mut errors);
    validate_end(&status, &changes, &mut errors);
    validate_finished(&job.get("spec"), &status, &changes, &mut errors);
    validate_indexes(&job.get("spec"), &status, &changes, &mut errors);
    if changes.finished() || changes.field("terminating") {
        no_pods(&status, "terminating", &mut errors);
    }
    let ready = status.0.get("ready");
    let is_checked = changes.field("ready") || changes.field("active");
    if is_checked && ready.is_set() && status.count("ready") > status.count("active") {
        errors.push(ready.invalid("cannot set more ready pods than active"));
    }
    validate_success(&job.get("spec"), &status, &mut errors);
    validate_against_past(&job, &status, &then, &mut errors);
    errors
}

fn validate_counts(status: &Status<'_>, errors: &mut Errors) {
    for field in ["active", "succeeded", "failed", "ready", "terminating"] {
        status.0.get(field).nonnegative(errors);
    }
    let uncounted = status.0.get("uncountedTerminatedPods");
    let mut seen = std::collections::BTreeSet::new();
    for pod in ["succeeded", "failed"].into_iter().flat_map(|list| uncounted.get(list).items()) {
        if pod.is_empty() {
            errors.push(pod.invalid("must not be empty"));
        } else if !seen.insert(pod.text()) {
            errors.push(pod.duplicate());
        }
    }
}

/// Validates the end: success and failure exclude each other, each is announced before it is final, and success has its
/// time.
fn validate_end(status: &Status<'_>, changes: &Changes<'_>, errors: &mut Errors) {
    let [complete, failed, target, met] =
        ["Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"].map(|c| status.is(c));
    let [completes, fails, targets, meets] =
        ["Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"].map(|c| changes.condition(c));
    let path = status.0.path.child("conditions");
    let refuse = |is_broken: bool, errors: &mut Errors, detail: &str| {
        errors.extend(is_broken.then(|| FieldError::invalid_omitted(&path, detail)));
    };
    let both = (completes || fails) && complete && failed;
    refuse(both, errors, "cannot set Complete=True and Failed=true conditions");
    let both = (completes || targets) && complete && target;
    refuse(both, errors, "cannot set Complete=True and FailureTarget=true conditions");
    validate_times(status, changes, errors);
    let alone = (fails || changes.field("failedIndexes")) && failed && !target;
    refuse(alone, errors, "cannot set Failed=True condition without the FailureTarget=true condition");
    let alone = (completes || meets) && complete && !met;
    refuse(alone, errors, "cannot set Complete=True condition without the SuccessCriteriaMet=true condition");
}

fn validate_times(status: &Status<'_>, changes: &Changes<'_>, errors: &mut Errors) {
    let start = status.0.get("startTime");
    let end = status.0.get("completionTime");
    let ends = changes.field("completionTime");
    match (end.is_set(), status.is("Complete")) {
        _ if !ends && !changes.condition("Complete") => {}
        (true, false) => {
            errors.push(end.invalid("cannot set completionTime when there is no Complete=True condition"));
        }
        (false, true) => errors.push(end.required("completionTime is required for Complete jobs")),
        _ => {}
    }
    let parse = |at: &At<'_>| corten_meta::time::parse(at.text()).ok();
    if let (Some(start), Some(ended)) = (parse(&start), parse(&end))
        && ended < start
        && (ends || changes.field("startTime"))
    {
        errors.push(end.invalid("must be equal to or after `startTime`"));
    }
}

/// Validates that a finished job was started and has no pods left.
fn validate_finished(spec: &At<'_>, status: &Status<'_>, changes: &Changes<'_>, errors: &mut Errors) {
    let finishes = changes.finished();
    if finishes || changes.field("active") {
        no_pods(status, "active", errors);
    }
    let start = status.0.get("startTime");
    let is_for_nothing = spec.get("suspend").is_true() && spec.get("completions").number() == Some(0);
    let is_checked = (finishes || changes.field("startTime")) && !is_for_nothing;
    if is_checked && status.is_finished() && !start.is_set() {
        errors.push(start.required("startTime is required for finished job"));
    }
    let uncounted = status.0.get("uncountedTerminatedPods");
    let has_some = !uncounted.get("succeeded").is_empty() || !uncounted.get("failed").is_empty();
    if (finishes || changes.field("uncountedTerminatedPods")) && status.is_finished() && has_some {
        errors.push(uncounted.invalid("must be empty for finished job"));
    }
}

/// Validates that a finished job has no such pods.
fn no_pods(status: &Status<'_>, field: &str, errors: &mut Errors) {
    if status.is_finished() && status.count(field) > 0 {
        errors.push(status.0.get(field).invalid(format!("{field}>0 is invalid for finished job")));
    }
}

fn validate_indexes(spec: &At<'_>, status: &Status<'_>, changes: &Changes<'_>, errors: &mut Errors) {
    let completed = status.0.get("completedIndexes");
    let failed = status.0.get("failedIndexes");
    let [completes, fails] = ["completedIndexes", "failedIndexes"].map(|field| changes.field(field));
    let completions = spec.get("completions").number();
    let counts_failed = spec.get("backoffLimitPerIndex").is_set();
    for (at, field, is_checked) in
        [(&completed, "completedIndexes", completes), (&failed, "failedIndexes", fails && counts_failed)]
    {
        if is_checked && let Some(Err(error)) = completions.map(|completions| count_indexes(at.text(), completions)) {
            errors.push(at.invalid(format!("error parsing {field}: {error}")));
        }
    }
    if completes && !completed.is_empty() && spec.get("completionMode").text() != "Indexed" {
        let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errors.push(completed.invalid(detail));
    }
    if fails && failed.is_set() && !counts_failed {
        errors.push(failed.invalid("cannot set non-null failedIndexes when backoffLimitPerIndex is null"));
    }
    let overlap = completions.and_then(|completions| overlap(completed.text(), failed.text(), completions));
    if let Some(index) = overlap.filter(|_| completes || fails) {
        errors.push(failed.invalid(format!("failedIndexes and completedIndexes overlap at index: {index}")));
    }
}

/// Validates success: the success policy decides it, and it excludes failure.
fn validate_success(spec: &At<'_>, status: &Status<'_>, errors: &mut Errors) {
    let met = status.is("SuccessCriteriaMet");
    let rules = [
        (met && status.is("Failed"), "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
        (met && status.is("FailureTarget"), "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"),
        (
            spec.get("successPolicy").is_object() && !met && status.is("Complete"),
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
        ),
    ];
    let path = status.0.path.child("conditions");
    errors.extend(rules.iter().filter(|(broken, _)| *broken).map(|(_, d)| FieldError::invalid_omitted(&path, *d)));
}

fn validate_against_past(job: &At<'_>, status: &Status<'_>, then: &Status<'_>, errors: &mut Errors) {
    let path = status.0.path.child("conditions");
    for condition in ["Failed", "Complete", "FailureTarget"] {
        if then.is(condition) && !status.is(condition) {
            let detail = format!("cannot disable the terminal {condition}=True condition");
            errors.push(FieldError::invalid_omitted(&path, detail));
        }
    }
    let spec = job.get("spec");
    // An indexed job that is scaled down forgets the successes beyond its end.
    let elastic = spec.get("completionMode").text() == "Indexed"
        && spec.get("completions").value == spec.get("parallelism").value;
    for field in ["failed", "succeeded"] {
        if status.count(field) < then.count(field) && !(field == "succeeded" && elastic) {
            let counter = status.0.get(field);
            let detail = format!("cannot decrease the {field} counter");
            errors.push(FieldError::invalid(&counter.path, status.count(field), detail));
        }
    }
    let start = status.0.get("startTime");
    let end = status.0.get("completionTime");
    let old_start = then.0.get("startTime");
    let old_end = then.0.get("completionTime");
    if end.is_set() && old_end.is_set() && end.value != old_end.value {
        errors.push(end.invalid("field is immutable"));
    }
    let is_resumed = |c: At<'_>| c.get("type").text() == "Suspended" && c.get("status").text() == "False";
    let resuming = then.is("Suspended") && status.0.get("conditions").items().any(is_resumed);
    if old_start.is_set() && start.value != old_start.value && !spec.get("suspend").is_true() && !resuming {
        errors.push(start.invalid("field is immutable for unsuspended job once set"));
    }
    if then.is("SuccessCriteriaMet") && !status.is("SuccessCriteriaMet") {
        let detail = "cannot disable the SuccessCriteriaMet=True condition";
        errors.push(FieldError::invalid_omitted(&path, detail));
    }
    if then.is("Complete") && !then.is("SuccessCriteriaMet") && status.is("SuccessCriteriaMet") {
        let detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        errors.push(FieldError::invalid_omitted(&path, detail));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_apply_to_changed_parts() {
        let job = |spec: Value, status: Value| json!({"spec": spec, "status": status});
        let check = |old: Value, new: Value, wanted: &[&str]| {
            let spec = json!({"completions": 2, "successPolicy": {}});
            let errors = validate_status_update(&job(spec.clone(), new), &job(spec, old));
            let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(fields, wanted);
        };
        let ended = json!({"completionTime": "2020-01-01T00:00:00Z", "ready": 3});
        let mut failed = ended.clone();
        failed["failed"] = 1.into();
        check(ended.clone(), failed, &[]);
        check(json!({}), ended.clone(), &["status.completionTime", "status.ready"]);
        let mut active = ended.clone();
        active["active"] = 1.into();
        check(ended, active, &["status.ready"]);
        let complete = json!({"conditions": [{"type": "Complete", "status": "True"}]});
        check(complete.clone(), complete, &["status.conditions"]);
        let suspended = |status: &str| json!([{"type": "Suspended", "status": status}]);
        let old = json!({"startTime": "2020-01-01T00:00:00Z", "conditions": suspended("True")});
        check(old.clone(), json!({"conditions": suspended("False")}), &[]);
        check(old, json!({"conditions": []}), &["status.startTime"]);
    }
}
