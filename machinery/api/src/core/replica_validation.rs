//! The rules of ReplicationController, and those that it shares with the workloads of the group `apps`.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::pod_validation::validate_template;
use crate::check::{At, Errors};

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

/// Validates the counts of a status: none is negative, none exceeds the total, and the collision count does not
/// decrease.
pub(crate) fn validate_replica_status(new: &Value, old: &Value, fields: &[&str]) -> Errors {
    let status = At::object(new).get("status");
    let before = At::object(old).get("status");
    let mut errors = Errors::new();
    for field in fields {
        status.get(field).nonnegative(&mut errors);
    }
    let count = |field: &str| status.get(field).number().unwrap_or_default();
    let has_replicas = fields.contains(&"replicas");
    let is_part =
        |field: &&&str| field.ends_with("Replicas") && !["unavailableReplicas", "terminatingReplicas"].contains(*field);
    for field in fields.iter().filter(is_part) {
        if count(field) > count("replicas") {
            let detail = "cannot be greater than status.replicas";
            errors.push(FieldError::invalid(&status.path.child(field), count(field), detail));
        }
    }
    if has_replicas && count("availableReplicas") > count("readyReplicas") {
        let word = if fields.contains(&"currentReplicas") { "status.readyReplicas" } else { "readyReplicas" };
        let path = status.path.child("availableReplicas");
        errors.push(FieldError::invalid(&path, count("availableReplicas"), format!("cannot be greater than {word}")));
    }
    let collisions = before.get("collisionCount").number();
    if collisions.is_some_and(|then| count("collisionCount") < then) {
        let path = status.path.child("collisionCount");
        errors.push(FieldError::invalid(&path, count("collisionCount"), "cannot be decremented"));
    }
    errors
}
