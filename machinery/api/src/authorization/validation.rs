//! The rules of access reviews beyond their fields: no metadata, and a selector that is not empty.

use corten_meta::FieldError;

use crate::check::{At, Errors};
use crate::rules::Site;
use crate::validation::label_requirement;

pub(crate) fn any_label_requirement(requirement: &At<'_>, errors: &mut Errors) {
    errors.extend(label_requirement(requirement, true));
}

pub(crate) fn some_selector(selector: &At<'_>, errors: &mut Errors) {
    let requirements = selector.get("requirements");
    if selector.get("rawSelector").is_empty() && requirements.is_empty() {
        let detail = format!("when {} is specified, requirements or rawSelector is required", selector.path);
        errors.push(requirements.required(&detail));
    }
}

/// Validates that a review, which is not stored, has no metadata.
pub(crate) fn no_metadata(metadata: &At<'_>, errors: &mut Errors) {
    validate_metadata(metadata, &["managedFields"], "must be empty", errors);
}

/// Validates that a review inside one namespace has no other metadata.
pub(crate) fn only_namespace(metadata: &At<'_>, errors: &mut Errors) {
    validate_metadata(metadata, &["managedFields", "namespace"], "must be empty except for namespace", errors);
}

fn validate_metadata(metadata: &At<'_>, kept: &[&str], detail: &str, errors: &mut Errors) {
    if metadata.entries().any(|(field, value)| !kept.contains(&field) && value.is_set()) {
        errors.push(metadata.invalid(detail));
    }
}

pub(crate) fn own_namespace(site: &Site<'_, '_>, errors: &mut Errors) {
    if site.at.text() != corten_meta::namespace(site.root) {
        errors.push(FieldError::invalid(&site.at.path, site.at.text(), "must match metadata.namespace"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::check::messages;

    fn errors(kind: &str, review: Value) -> Vec<String> {
        messages(&crate::rules::validate(&format!(".authorization.v1.{kind}"), &review, None))
    }

    #[test]
    fn a_review_has_one_set_of_attributes_and_a_subject() {
        assert_eq!(
            errors("SubjectAccessReview", json!({"metadata": {"name": "x"}, "spec": {}})),
            [
                "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or \
                 resourceAttributes must be specified",
                "spec.user: Invalid value: \"\": at least one of user or group must be specified",
                "metadata: Invalid value: {\"name\":\"x\"}: must be empty",
            ]
        );
        assert_eq!(
            errors("SelfSubjectAccessReview", json!({"spec": {"resourceAttributes": {"labelSelector": {}}}})),
            ["spec.resourceAttributes.labelSelector.requirements: Required value: when \
              spec.resourceAttributes.labelSelector is specified, requirements or rawSelector is required"]
        );
        let local = json!({"metadata": {"namespace": "a"}, "spec": {"user": "u", "resourceAttributes": {}}});
        assert_eq!(
            errors("LocalSubjectAccessReview", local),
            ["spec.resourceAttributes.namespace: Invalid value: \"\": must match metadata.namespace"]
        );
    }
}
