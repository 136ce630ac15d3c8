//! The rules of a Job's status: what it counts, and how it ends. A job that ended stays ended.

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

/// Errors of a write to the status subresource.
pub(super) fn validate_status_update(new: &Value, old: &Value) -> Errors {
    let (job, before) = (At::object(new), At::object(old));
    let (status, then) = (Status(job.get("status")), Status(before.get("status")));
    let mut errors = Errors::new();
    validate_counts(&status, &mut errors);
    validate_conditions(&status, &mut errors);
    validate_times(&job, &status, &then, &mut errors);
    validate_finished(&status, &mut errors);
    validate_indexes(&job.get("spec"), &status, &then, &mut errors);
    if status.0.get("ready").is_set() && status.count("ready") > status.count("active") {
        errors.push(status.0.get("ready").invalid("cannot set more ready pods than active"));
    }
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

/// Success and failure exclude each other, and each is announced before it is final.
fn validate_conditions(status: &Status<'_>, errors: &mut Errors) {
    let [complete, failed, target, met] =
        ["Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"].map(|c| status.is(c));
    let rules = [
        (complete && failed, "cannot set Complete=True and Failed=true conditions"),
        (complete && target, "cannot set Complete=True and FailureTarget=true conditions"),
        (failed && !target, "cannot set Failed=True condition without the FailureTarget=true condition"),
        (complete && !met, "cannot set Complete=True condition without the SuccessCriteriaMet=true condition"),
        (met && failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
        (met && target, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"),
    ];
    let path = status.0.path.child("conditions");
    errors.extend(rules.iter().filter(|(broken, _)| *broken).map(|(_, d)| FieldError::invalid_omitted(&path, *d)));
}

fn validate_times(job: &At<'_>, status: &Status<'_>, then: &Status<'_>, errors: &mut Errors) {
    let (start, end) = (status.0.get("startTime"), status.0.get("completionTime"));
    match (end.is_set(), status.is("Complete")) {
        (true, false) => {
            errors.push(end.invalid("cannot set completionTime when there is no Complete=True condition"));
        }
        (false, true) => errors.push(end.required("completionTime is required for Complete jobs")),
        _ => {}
    }
    let parse = |at: &At<'_>| corten_meta::time::parse(at.text()).ok();
    if let (Some(start), Some(ended)) = (parse(&start), parse(&end))
        && ended < start
    {
        errors.push(end.invalid("must be equal to or after `startTime`"));
    }
    let suspended_for_nothing =
        job.get("spec").get("suspend").is_true() && job.get("spec").get("completions").number() == Some(0);
    if !start.is_set() && status.is_finished() && !suspended_for_nothing {
        errors.push(start.required("startTime is required for finished job"));
    }
    let (old_start, old_end) = (then.0.get("startTime"), then.0.get("completionTime"));
    if end.is_set() && old_end.is_set() && end.value != old_end.value {
        errors.push(end.invalid("field is immutable"));
    }
    let resuming = then.is("Suspended") && !status.is("Suspended");
    let suspended = job.get("spec").get("suspend").is_true();
    if old_start.is_set() && start.value != old_start.value && !suspended && !resuming {
        errors.push(start.invalid("field is immutable for unsuspended job once set"));
    }
}

/// A finished job has no pods left.
fn validate_finished(status: &Status<'_>, errors: &mut Errors) {
    if !status.is_finished() {
        return;
    }
    for (field, detail) in [
        ("active", "active>0 is invalid for finished job"),
        ("terminating", "terminating>0 is invalid for finished job"),
    ] {
        if status.count(field) > 0 {
            errors.push(status.0.get(field).invalid(detail));
        }
    }
    let uncounted = status.0.get("uncountedTerminatedPods");
    if !uncounted.get("succeeded").is_empty() || !uncounted.get("failed").is_empty() {
        errors.push(uncounted.invalid("must be empty for finished job"));
    }
}

fn validate_indexes(spec: &At<'_>, status: &Status<'_>, then: &Status<'_>, errors: &mut Errors) {
    let (completed, failed) = (status.0.get("completedIndexes"), status.0.get("failedIndexes"));
    let changed =
        completed.value != then.0.get("completedIndexes").value || failed.value != then.0.get("failedIndexes").value;
    if !changed {
        return;
    }
    let completions = spec.get("completions").number();
    let counts_failed = spec.get("backoffLimitPerIndex").is_set();
    for (at, field) in [(&completed, "completedIndexes"), (&failed, "failedIndexes")] {
        if (field == "completedIndexes" || counts_failed)
            && let Some(Err(error)) = completions.map(|completions| count_indexes(at.text(), completions))
        {
            errors.push(at.invalid(format!("error parsing {field}: {error}")));
        }
    }
    if !completed.is_empty() && spec.get("completionMode").text() != "Indexed" {
        let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errors.push(completed.invalid(detail));
    }
    if failed.is_set() && !counts_failed {
        errors.push(failed.invalid("cannot set non-null failedIndexes when backoffLimitPerIndex is null"));
    }
    if let Some(index) = completions.and_then(|completions| overlap(completed.text(), failed.text(), completions)) {
        errors.push(failed.invalid(format!("failedIndexes and completedIndexes overlap at index: {index}")));
    }
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
    // An indexed job that is made smaller forgets the successes beyond its end.
    let elastic = spec.get("completionMode").text() == "Indexed"
        && spec.get("completions").value == spec.get("parallelism").value;
    for field in ["failed", "succeeded"] {
        if status.count(field) < then.count(field) && !(field == "succeeded" && elastic) {
            let counter = status.0.get(field);
            let detail = format!("cannot decrease the {field} counter");
            errors.push(FieldError::invalid(&counter.path, status.count(field), detail));
        }
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
