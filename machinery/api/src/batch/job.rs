//! Job.

use corten_meta::Value;
use corten_meta::field::FieldError;
use corten_meta::quote::quote;
use corten_meta::time::human_duration;
use jiff::Timestamp;
use serde_json::json;

use super::job_status;
use crate::cells::{age, boolean, containers, format_selector, list, name, number, text, time};
use crate::core::pod_spec::default_template;
use crate::defaulting::{absent, default_at, items, put};
use crate::kind::{Behaviour, Kind};

struct Job;

pub fn kind() -> Kind {
    Kind::new("batch", "v1", "Job", "jobs")
        .category("all")
        .status()
        .labels_from_template()
        .generation()
        .orphan_by_default()
        .warn_on_delete("child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning")
        .selectable(&["status.successful"])
        .table("Name, Status, Completions, Duration, Age; Containers, Images, Selector")
        .behaviour(Job)
}

impl Behaviour for Job {
    fn rules(&self) -> &'static str {
        ".batch.v1.Job"
    }

    /// Reports whether the Job takes its labels from a template that has only the generated ones.
    fn is_completed_when_read(&self, job: &Value) -> bool {
        let labelled = job.pointer("/metadata/labels/batch.kubernetes.io~1controller-uid").and_then(Value::as_str);
        labelled.is_some_and(|uid| uid == corten_meta::uid(job))
    }

    fn default(&self, object: &mut Value) {
        if absent(object, "/spec/completions") && absent(object, "/spec/parallelism") {
            put(object, "/spec/completions", 1);
        }
        default_at(object, "/spec/parallelism", 1);
        let per_index = !absent(object, "/spec/backoffLimitPerIndex");
        default_at(object, "/spec/backoffLimit", if per_index { i32::MAX } else { 6 });
        let labels = object.pointer("/spec/template/metadata/labels").filter(|l| l.is_object()).cloned();
        let own_labels = object.pointer("/metadata/labels").and_then(Value::as_object);
        if let Some(labels) = labels.filter(|_| own_labels.is_none_or(|l| l.is_empty())) {
            put(object, "/metadata/labels", labels);
        }
        default_at(object, "/spec/completionMode", "NonIndexed");
        default_at(object, "/spec/suspend", false);
        let policy = if absent(object, "/spec/podFailurePolicy") { "TerminatingOrFailed" } else { "Failed" };
        default_at(object, "/spec/podReplacementPolicy", policy);
        default_at(object, "/spec/manualSelector", false);
        default_job_spec(object, "/spec");
    }

    /// Makes the selector from the uid, so that two jobs never share pods.
    fn prepare_create(&self, object: &mut Value) {
        if boolean(object, "/spec/manualSelector") {
            return;
        }
        let uid = text(object, "/metadata/uid").to_string();
        let name = text(object, "/metadata/name").to_string();
        default_at(object, "/spec/template/metadata", json!({}));
        default_at(object, "/spec/template/metadata/labels", json!({}));
        for (label, value) in [
            ("batch.kubernetes.io~1controller-uid", &uid),
            ("batch.kubernetes.io~1job-name", &name),
            ("controller-uid", &uid),
            ("job-name", &name),
        ] {
            default_at(object, &format!("/spec/template/metadata/labels/{label}"), value.as_str());
        }
        default_at(object, "/spec/selector", json!({}));
        default_at(object, "/spec/selector/matchLabels", json!({}));
        default_at(object, "/spec/selector/matchLabels/batch.kubernetes.io~1controller-uid", uid);
    }

    fn unsupported_field(&self, field: &str) -> String {
        format!("field label {} not supported for Job", quote(field))
    }

    fn validate_present(&self, object: &Value, old: &Value) -> Vec<FieldError> {
        crate::rules::validate(self.rules(), object, Some(old))
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        job_status::validate_status_update(new, old)
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let path = corten_meta::field::Path::root("spec").child("template");
        let mut out = crate::core::pod_warnings::of_names(new, old);
        out.extend(of_many_indexes(new, old, "/spec"));
        out.extend(crate::core::pod_warnings::of_template(new, old, "/spec/template", &path));
        out
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let [names, images] = containers(object, "/spec/template/spec");
        vec![
            name(object),
            status(object).into(),
            completions(object).into(),
            duration(object, now).into(),
            age(object, now),
            names,
            images,
            format_selector(object.pointer("/spec/selector")).into(),
        ]
    }

    fn fields(&self, object: &Value, field: &str) -> Option<String> {
        (field == "status.successful").then(|| number(object, "/status/succeeded").to_string())
    }
}

/// Sets the defaults of a job's spec, also inside a CronJob.
pub(super) fn default_job_spec(object: &mut Value, spec: &str) {
    for rule in items(object, &format!("{spec}/podFailurePolicy/rules")) {
        items(rule, "/onPodConditions").for_each(|c| default_at(c, "/status", "True"));
    }
    default_template(object, &format!("{spec}/template"));
}

fn status(job: &Value) -> &'static str {
    let has = |kind: &str| {
        let condition = list(job, "/status/conditions").iter().find(|c| text(c, "/type") == kind);
        condition.is_some_and(|c| text(c, "/status") == "True")
    };
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if !absent(job, "/metadata/deletionTimestamp") {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(job: &Value) -> String {
    let succeeded = number(job, "/status/succeeded");
    let parallelism = number(job, "/spec/parallelism");
    match job.pointer("/spec/completions").and_then(Value::as_i64) {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    }
}

fn duration(job: &Value, now: Timestamp) -> String {
    match (time(job, "/status/startTime"), time(job, "/status/completionTime")) {
        (None, _) => String::new(),
        (Some(start), end) => human_duration(end.unwrap_or(now).duration_since(start)),
    }
}

/// Warns of a job with so many indexes that its status may not hold all failed ones.
pub(super) fn of_many_indexes(new: &Value, old: Option<&Value>, pointer: &str) -> Option<String> {
    let spec = new.pointer(pointer)?;
    let is_same = old.is_some_and(|old| corten_meta::generation(old) == corten_meta::generation(new));
    let is_many = number(spec, "/completions") > 100_000 && number(spec, "/parallelism") > 10_000;
    let path = pointer.trim_start_matches('/').replace('/', ".");
    (!is_same && is_many && text(spec, "/completionMode") == "Indexed").then(|| {
        format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
             Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        )
    })
}
