//! The rules of ReplicationController, and those that it shares with the workloads of the group `apps`.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::pod_validation::validate_template;
use crate::check::{At, Errors};
use crate::rules::Site;

/// Validates a ReplicationController, whose selector is a plain map.
pub(super) fn validate_replication_controller(object: &Value) -> Errors {
    let spec = At::object(object).get("spec");
    let selector = spec.get("selector");
    let template = spec.get("template");
    let mut errors = Errors::new();
    spec.get("minReadySeconds").nonnegative(&mut errors);
    selector.must(&mut errors);
    spec.get("replicas").nonnegative(&mut errors);
    if !template.is_object() {
        errors.push(template.required(""));
        return errors;
    }
    let labels = template.get("metadata").get("labels");
    if selector.entries().any(|(key, wanted)| labels.value.get(key) != Some(wanted.value)) {
        errors.push(labels.invalid("`selector` does not match template `labels`"));
    }
    errors.extend(validate_template(template.value, &template.path));
    validate_endless(&template, "ReplicationController", &mut errors);
    errors
}

/// Validates that the pods of a template restart always and have no deadline.
pub(crate) fn validate_endless(template: &At<'_>, kind: &str, errors: &mut Errors) {
    let pod = template.get("spec");
    if pod.get("restartPolicy").text() != "Always" {
        errors.push(pod.get("restartPolicy").not_supported(&["Always"]));
    }
    if pod.get("activeDeadlineSeconds").is_set() {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.push(pod.get("activeDeadlineSeconds").forbidden(detail));
    }
}

/// Validates that a count does not decrease.
pub(crate) fn not_decremented(site: &Site<'_, '_>, errors: &mut Errors) {
    let now = site.at.number().unwrap_or_default();
    if site.old.and_then(Value::as_i64).is_some_and(|then| now < then) {
        errors.push(FieldError::invalid(&site.at.path, now, "cannot be decremented"));
    }
}
