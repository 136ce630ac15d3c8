//! The rules of access reviews: exactly one set of attributes, a subject, and no metadata.

use corten_meta::Value;

use crate::check::{At, Errors};
use crate::validation::label_requirement;

const EXCLUSIVE: &str = "cannot be specified in combination with resourceAttributes";
const ONE: &str = "exactly one of nonResourceAttributes or resourceAttributes must be specified";

/// Validates a review about the requesting user.
pub(super) fn validate_own(review: &Value) -> Errors {
    let review = At::object(review);
    let mut errors = Errors::new();
    validate_question(&review.get("spec"), &mut errors);
    validate_attributes(&review.get("spec"), &mut errors);
    validate_metadata(&review, &["managedFields"], "must be empty", &mut errors);
    errors
}

/// Validates a review about any user.
pub(super) fn validate_of_subject(review: &Value) -> Errors {
    let review = At::object(review);
    let mut errors = validate_spec(&review.get("spec"));
    validate_metadata(&review, &["managedFields"], "must be empty", &mut errors);
    errors
}

/// Validates a review about any user inside one namespace.
pub(super) fn validate_local(review: &Value) -> Errors {
    let review = At::object(review);
    let spec = review.get("spec");
    let mut errors = validate_spec(&spec);
    let kept = ["managedFields", "namespace"];
    validate_metadata(&review, &kept, "must be empty except for namespace", &mut errors);
    let resource = spec.get("resourceAttributes");
    let namespace = resource.get("namespace");
    if resource.is_object() && namespace.text() != review.get("metadata").get("namespace").text() {
        let shown =
            corten_meta::FieldError::invalid(&namespace.path, namespace.text(), "must match metadata.namespace");
        errors.push(shown);
    }
    let path = spec.get("nonResourceAttributes");
    if path.is_object() {
        errors.push(path.invalid("disallowed on this kind of request"));
    }
    errors
}

fn validate_spec(spec: &At<'_>) -> Errors {
    let mut errors = Errors::new();
    validate_question(spec, &mut errors);
    let user = spec.get("user");
    if user.text().is_empty() && spec.get("groups").is_empty() {
        let detail = "at least one of user or group must be specified";
        errors.push(corten_meta::FieldError::invalid(&user.path, "", detail));
    }
    validate_attributes(spec, &mut errors);
    errors
}

fn validate_question(spec: &At<'_>, errors: &mut Errors) {
    let resource = spec.get("resourceAttributes");
    let path = spec.get("nonResourceAttributes");
    match (resource.is_object(), path.is_object()) {
        (true, true) => errors.push(path.invalid(EXCLUSIVE)),
        (false, false) => errors.push(resource.invalid(ONE)),
        _ => {}
    }
}

fn validate_attributes(spec: &At<'_>, errors: &mut Errors) {
    let resource = spec.get("resourceAttributes");
    resource.get("fieldSelector").when_object(errors, |selector, errors| {
        validate_selector(selector, errors);
        selector.get("requirements").each(errors, validate_field_requirement);
    });
    resource.get("labelSelector").when_object(errors, |selector, errors| {
        validate_selector(selector, errors);
        selector.get("requirements").each(errors, |at, errors| errors.extend(label_requirement(at, true)));
    });
}

fn validate_selector(selector: &At<'_>, errors: &mut Errors) {
    let raw = selector.get("rawSelector");
    let requirements = selector.get("requirements");
    if !raw.is_empty() && !requirements.is_empty() {
        errors.push(raw.invalid("may not specified at the same time as requirements"));
    }
    if raw.is_empty() && requirements.is_empty() {
        let detail = format!("when {} is specified, requirements or rawSelector is required", selector.path);
        errors.push(requirements.required(&detail));
    }
}

fn validate_field_requirement(requirement: &At<'_>, errors: &mut Errors) {
    requirement.get("key").must_say(errors, "must be specified");
    let values = requirement.get("values");
    match requirement.get("operator").text() {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(values.required("must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.push(values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'"));
        }
        _ => {}
    }
}

/// Validates that a review, which is not stored, has no metadata beyond the listed fields.
fn validate_metadata(review: &At<'_>, kept: &[&str], detail: &str, errors: &mut Errors) {
    let metadata = review.get("metadata");
    if metadata.entries().any(|(field, value)| !kept.contains(&field) && value.is_set()) {
        errors.push(metadata.invalid(detail));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::messages;

    #[test]
    fn a_review_has_one_set_of_attributes_and_a_subject() {
        assert_eq!(
            messages(&validate_of_subject(&json!({"metadata": {"name": "x"}, "spec": {}}))),
            [
                "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or \
                 resourceAttributes must be specified",
                "spec.user: Invalid value: \"\": at least one of user or group must be specified",
                "metadata: Invalid value: {\"name\":\"x\"}: must be empty",
            ]
        );
        assert_eq!(
            messages(&validate_own(&json!({"spec": {"resourceAttributes": {"labelSelector": {}}}}))),
            ["spec.resourceAttributes.labelSelector.requirements: Required value: when \
              spec.resourceAttributes.labelSelector is specified, requirements or rawSelector is required"]
        );
        let local = json!({"metadata": {"namespace": "a"}, "spec": {"user": "u", "resourceAttributes": {}}});
        assert_eq!(
            messages(&validate_local(&local)),
            ["spec.resourceAttributes.namespace: Invalid value: \"\": must match metadata.namespace"]
        );
    }
}
