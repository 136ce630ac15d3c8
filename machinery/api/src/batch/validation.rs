//! The rules of Job: completions, success and failure policies, and immutable fields.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::labels::Selector;
use corten_meta::{Value, names};

use super::indexes::count_indexes;
use crate::check::{At, Errors};
use crate::core::pod_validation::validate_template;
use crate::defaulting::{items, put, remove};
use crate::rules::{self, Site};
use crate::schema::equal;

/// Validates that the selector is the one that the server made from the job's uid, unless the user manages it. A job older
/// than the prefixed labels need not have them.
pub(crate) fn generated_selector(site: &Site<'_, '_>, errors: &mut Errors) {
    let labelled = site.old.is_none_or(|old| {
        let labels = corten_meta::labels(&old["spec"]["template"]);
        ["controller-uid", "job-name"].iter().all(|key| labels.contains_key(&format!("batch.kubernetes.io/{key}")))
    });
    let metadata = site.at.get("metadata");
    let spec = site.at.get("spec");
    if spec.get("manualSelector").is_true() || !spec.get("selector").is_object() {
        return;
    }
    let uid = metadata.get("uid");
    let name = metadata.get("name");
    uid.must(errors);
    let labels = spec.get("template").get("metadata").get("labels");
    let wanted = [
        ("controller-uid", uid.text()),
        ("job-name", name.text()),
        ("batch.kubernetes.io/controller-uid", uid.text()),
        ("batch.kubernetes.io/job-name", name.text()),
    ];
    let wanted = if labelled { &wanted[..] } else { &wanted[..2] };
    for (key, value) in wanted {
        let path = labels.path.key(key);
        match labels.value.get(key).and_then(Value::as_str) {
            None => errors.push(FieldError::required(&path, format!("must be '{value}'"))),
            Some(actual) if actual != *value => {
                errors.push(FieldError::invalid(&path, labels.value.clone(), format!("must be '{value}'")));
            }
            Some(_) => {}
        }
    }
    let expected = wanted.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let selector = spec.get("selector");
    if Selector::from_label_selector(selector.value).is_ok_and(|s| !s.matches(&expected)) {
        errors.push(selector.invalid("`selector` not auto-generated"));
    }
}

/// Validates that the selector selects the template's pods; an absent one selects nothing.
pub(crate) fn selected_template(spec: &At<'_>, errors: &mut Errors) {
    let labels = corten_meta::labels(spec.get("template").value);
    if Selector::from_label_selector(spec.get("selector").value).is_ok_and(|s| !s.matches(&labels)) {
        let labels = spec.get("template").get("metadata").get("labels");
        errors.push(labels.invalid("`selector` does not match template `labels`"));
    }
}

/// Validates that the names of an indexed job's pods are valid.
pub(crate) fn indexed_pod_name(site: &Site<'_, '_>, errors: &mut Errors) {
    let spec = site.of.get("spec");
    let completions = spec.get("completions").number().unwrap_or_default();
    let host = format!("{}-{}", site.at.text(), completions - 1);
    let is_named = spec.get("completionMode").text() == "Indexed" && completions > 0;
    if is_named && !names::dns1123_label(&host).is_empty() {
        let detail = format!("will not able to create pod with invalid DNS label: {host}");
        errors.push(FieldError::invalid(&site.at.path, site.at.text(), detail));
    }
}

pub(crate) fn pod_template(template: &At<'_>, errors: &mut Errors) {
    errors.extend(validate_template(template.value, &template.path));
}

/// Validates the limits of indexed jobs.
pub(crate) fn indexed_job(spec: &At<'_>, errors: &mut Errors) {
    const MANY: i64 = 100_000;
    const FEW: i64 = 10_000;
    let (completions, parallelism, failed) =
        (spec.get("completions"), spec.get("parallelism"), spec.get("maxFailedIndexes"));
    let over = |at: &At<'_>, limit: i64| at.number().is_some_and(|n| n > limit);
    if !completions.is_set() {
        errors.push(completions.required("when completion mode is Indexed"));
    }
    if over(&parallelism, MANY) {
        let detail = format!("must be less than or equal to {MANY} when completion mode is Indexed");
        errors.push(parallelism.invalid(detail));
    }
    if completions.number().is_some_and(|total| over(&failed, total)) {
        errors.push(failed.invalid("must be less than or equal to completions"));
    }
    if over(&failed, MANY) {
        errors.push(failed.invalid(format!("must be less than or equal to {MANY}")));
    }
    if over(&completions, MANY) && spec.get("backoffLimitPerIndex").is_set() {
        if !failed.is_set() {
            errors.push(failed.required(&format!("must be specified when completions is above {MANY}")));
        }
        for at in [&parallelism, &failed].into_iter().filter(|at| over(at, FEW)) {
            let detail = format!(
                "must be less than or equal to {FEW} when completions are above {MANY} and used with backoff limit per index"
            );
            errors.push(at.invalid(detail));
        }
    }
}

pub(crate) fn failure_policy(site: &Site<'_, '_>, errors: &mut Errors) {
    let policy = site.at;
    let spec = site.of;
    let pod = spec.get("template").get("spec");
    let containers: Vec<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| pod.get(list).items())
        .map(|container| container.get("name").text())
        .collect();
    policy.get("rules").at_most(errors, 20);
    for rule in policy.get("rules").items() {
        validate_failure_action(&rule.get("action"), spec, errors);
        let codes = rule.get("onExitCodes");
        let conditions = rule.get("onPodConditions");
        codes.when_object(errors, |at, e| validate_exit_codes(at, &containers, e));
        conditions.at_most(errors, 20);
        for pattern in conditions.items() {
            rules::check(".batch.v1.PodFailurePolicyOnPodConditionsPattern", &pattern, errors);
        }
        let detail = match (codes.is_object(), !conditions.is_empty()) {
            (true, true) => "specifying both OnExitCodes and OnPodConditions is not supported",
            (false, false) => "specifying one of OnExitCodes and OnPodConditions is required",
            _ => continue,
        };
        errors.push(FieldError::invalid_omitted(&rule.path, detail));
    }
}

fn validate_failure_action(action: &At<'_>, spec: &At<'_>, errors: &mut Errors) {
    if !action.must_say(errors, "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]") {
        return;
    }
    if action.text() == "FailIndex" && !spec.get("backoffLimitPerIndex").is_set() {
        errors.push(action.invalid("requires the backoffLimitPerIndex to be set"));
    }
    action.one_of(errors, &["Count", "FailIndex", "FailJob", "Ignore"]);
}

fn validate_exit_codes(at: &At<'_>, containers: &[&str], errors: &mut Errors) {
    let operator = at.get("operator");
    let container = at.get("containerName");
    let values = at.get("values");
    if operator.must_say(errors, "valid values: [\"In\" \"NotIn\"]") {
        operator.one_of(errors, &["In", "NotIn"]);
    }
    if container.is_set() && !containers.contains(&container.text()) {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.push(container.invalid(detail));
    }
    if values.is_empty() {
        errors.push(values.invalid("at least one value is required"));
    }
    values.at_most(errors, 255);
    let codes: Vec<i64> = values.items().filter_map(|v| v.number()).collect();
    let mut seen = BTreeSet::new();
    for value in values.items() {
        if operator.text() == "In" && value.number() == Some(0) {
            errors.push(value.invalid("must not be 0 for the In operator"));
        }
        if !seen.insert(value.number()) {
            errors.push(value.duplicate());
        }
    }
    if !codes.is_sorted() {
        errors.push(values.invalid("must be ordered"));
    }
}

pub(crate) fn success_policy(site: &Site<'_, '_>, errors: &mut Errors) {
    let spec = site.of;
    let rules = site.at.get("rules");
    rules.must_say(errors, "at least one rules must be specified when the successPolicy is specified");
    rules.at_most(errors, 20);
    let completions = spec.get("completions").number().unwrap_or_default();
    for rule in rules.items() {
        let count = rule.get("succeededCount");
        let indexes = rule.get("succeededIndexes");
        if !count.is_set() && !indexes.is_set() {
            errors.push(rule.required("at least one of succeededCount or succeededIndexes must be specified"));
        }
        let mut total = 0;
        if indexes.is_set() {
            indexes.at_most_bytes(errors, 64 * 1024);
            match count_indexes(indexes.text(), completions) {
                Ok(found) => total = found,
                Err(error) => errors.push(indexes.invalid(format!("error parsing succeededIndexes: {error}"))),
            }
        }
        count.nonnegative(errors);
        let mut at_most = |limit: i64, what: &str| {
            if count.number().is_some_and(|n| n > limit) {
                errors.push(count.invalid(format!("must be less than or equal to {limit} ({what})")));
            }
        };
        at_most(completions, "the number of specified completions");
        if indexes.is_set() {
            at_most(total, "the number of indexes in the specified succeededIndexes field");
        }
    }
}

/// Validates that the completions of an indexed job change together with its parallelism.
pub(crate) fn elastic_completions(site: &Site<'_, '_>, errors: &mut Errors) {
    let is_changed = site.at.is_set() && site.old != Some(site.at.value);
    if is_changed && site.at.value != &site.root["spec"]["parallelism"] {
        errors.push(site.at.invalid("can only be modified in tandem with spec.parallelism"));
    }
}

/// Validates that the template is immutable; the scheduling and resources of a suspended job may still change.
pub(crate) fn job_template(site: &Site<'_, '_>, errors: &mut Errors) {
    let new = site.root;
    let Some(old) = site.root_old else { return };
    let condition = |kind: &str| {
        let conditions = crate::cells::list(old, "/status/conditions");
        conditions.iter().any(|c| c["type"] == kind && c["status"] == "True")
    };
    let suspended = old["spec"]["suspend"] == true;
    let idle = old["status"]["startTime"].is_null() || condition("Suspended");
    let free = suspended && idle && old["status"]["active"].as_i64().unwrap_or_default() == 0;
    let path = Path::root("spec").child("template");
    let now = &new["spec"]["template"];
    let mut then = old["spec"]["template"].clone();
    if free {
        for field in ["nodeSelector", "tolerations", "schedulingGates", "affinity/nodeAffinity"] {
            copy(&mut then, now, &format!("/spec/{field}"));
        }
        for list in ["/spec/containers", "/spec/initContainers"] {
            let wanted = crate::cells::list(now, list);
            for (container, wanted) in items(&mut then, list).zip(wanted).filter(|(c, w)| c["name"] == w["name"]) {
                copy(container, wanted, "/resources");
            }
        }
    }
    // Of a suspended job, upstream compares the spec alone.
    let (path, of, value, before) = match free {
        true => (Path::root("spec").child("template.spec"), "PodSpec", &now["spec"], &then["spec"]),
        false => (path, "PodTemplateSpec", now, &then),
    };
    if !equal(&format!("io.k8s.api.core.v1.{of}"), value, before) {
        errors.push(FieldError::invalid(&path, value.clone(), "field is immutable"));
    }
}

/// Copies a field from `from` to `to`.
fn copy(to: &mut Value, from: &Value, pointer: &str) {
    match from.pointer(pointer) {
        Some(value) => {
            let parent = pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
            if to.pointer(parent).is_none_or(Value::is_null) {
                put(to, parent, serde_json::json!({}));
            }
            put(to, pointer, value.clone());
        }
        None => {
            remove(to, pointer);
        }
    }
}
