//! The rules of roles beyond their fields.

use corten_meta::Value;
use corten_meta::field::FieldError;

use crate::check::{At, Errors};
use crate::rules::Site;

/// Validates that a rule of URLs has no resources.
pub(crate) fn only_urls(site: &Site<'_, '_>, errors: &mut Errors) {
    if ["apiGroups", "resources", "resourceNames"].iter().any(|field| !site.of.get(field).is_empty()) {
        errors.push(site.at.invalid("rules cannot apply to both regular resources and non-resource URLs"));
    }
}

pub(crate) fn readable_selector(selector: &At<'_>, errors: &mut Errors) {
    if corten_meta::labels::Selector::from_label_selector(selector.value).is_err() {
        errors.push(FieldError::invalid(&selector.path, Value::Null, "invalid label selector."));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn bindings_and_rules() {
        let kind = crate::lookup("rbac.authorization.k8s.io", "v1", "clusterrolebindings").expect("kind");
        let mut binding = json!({"metadata": {"name": "system:x"}, "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "a"}, {"kind": "User", "name": "u"}]});
        kind.default(&mut binding);
        assert_eq!(binding["subjects"][1]["apiGroup"], "rbac.authorization.k8s.io");
        let errors: Vec<String> = kind.validate(&binding).iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
                "subjects[0].namespace: Required value",
            ]
        );
        let role = crate::lookup("rbac.authorization.k8s.io", "v1", "roles").expect("kind");
        let rules = json!({"metadata": {"name": "r", "namespace": "n"}, "rules": [{"verbs": ["get"]}]});
        assert_eq!(role.validate(&rules).len(), 2);
    }
}
