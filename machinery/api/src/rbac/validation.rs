//! The rules of roles and bindings.

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};

use super::GROUP;
use crate::cells::{list, text};
use crate::validation::{immutable, invalid_each, label_selector};

pub(super) fn validate_rules(object: &Value, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (at, rule) in list(object, "/rules").iter().enumerate() {
        errors.extend(validate_rule(rule, namespaced, &Path::root("rules").index(at)));
    }
    if object["aggregationRule"].is_object() {
        let path = Path::root("aggregationRule").child("clusterRoleSelectors");
        let selectors = list(object, "/aggregationRule/clusterRoleSelectors");
        if selectors.is_empty() {
            let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.push(FieldError::required(&path, detail));
        }
        for (at, selector) in selectors.iter().enumerate() {
            errors.extend(label_selector(selector, &path.index(at)));
            if corten_meta::labels::Selector::from_label_selector(selector).is_err() {
                errors.push(FieldError::invalid(&path.index(at), Value::Null, "invalid label selector."));
            }
        }
    }
    errors
}

fn validate_rule(rule: &Value, namespaced: bool, path: &Path) -> Vec<FieldError> {
    let has = |field: &str| !list(rule, &format!("/{field}")).is_empty();
    let mut errors = Vec::new();
    if !has("verbs") {
        errors.push(FieldError::required(&path.child("verbs"), "verbs must contain at least one value"));
    }
    if has("nonResourceURLs") {
        let path = path.child("nonResourceURLs");
        let urls = rule["nonResourceURLs"].clone();
        if namespaced {
            let detail = "namespaced rules cannot apply to non-resource URLs";
            errors.push(FieldError::invalid(&path, urls.clone(), detail));
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|f| has(f)) {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(FieldError::invalid(&path, urls, detail));
        }
        return errors;
    }
    if !has("apiGroups") {
        let detail = "resource rules must supply at least one api group";
        errors.push(FieldError::required(&path.child("apiGroups"), detail));
    }
    if !has("resources") {
        let detail = "resource rules must supply at least one resource";
        errors.push(FieldError::required(&path.child("resources"), detail));
    }
    errors
}

/// Validates a binding to a role of one of these kinds.
pub(super) fn validate_binding(object: &Value, kinds: &[&str]) -> Vec<FieldError> {
    let role = Path::root("roleRef");
    let mut errors = Vec::new();
    let (group, kind, name) =
        (text(object, "/roleRef/apiGroup"), text(object, "/roleRef/kind"), text(object, "/roleRef/name"));
    if group != GROUP {
        errors.push(FieldError::not_supported(&role.child("apiGroup"), group, &[GROUP]).as_text());
    }
    if !kinds.contains(&kind) {
        errors.push(FieldError::not_supported(&role.child("kind"), kind, kinds).as_text());
    }
    if name.is_empty() {
        errors.push(FieldError::required(&role.child("name"), ""));
    } else {
        errors.extend(invalid_each(&role.child("name"), name, names::path_segment_name(name)));
    }
    let namespaced = kinds.contains(&"Role");
    for (at, subject) in list(object, "/subjects").iter().enumerate() {
        errors.extend(validate_subject(subject, namespaced, &Path::root("subjects").index(at)));
    }
    errors
}

fn validate_subject(subject: &Value, namespaced: bool, path: &Path) -> Vec<FieldError> {
    let kind = text(subject, "/kind");
    let group = text(subject, "/apiGroup");
    let name = text(subject, "/name");
    let mut errors = Vec::new();
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    match kind {
        "ServiceAccount" => {
            if !name.is_empty() {
                errors.extend(invalid_each(&path.child("name"), name, names::dns1123_subdomain(name)));
            }
            if !group.is_empty() {
                errors.push(FieldError::not_supported(&path.child("apiGroup"), group, &[""]).as_text());
            }
            if !namespaced && text(subject, "/namespace").is_empty() {
                errors.push(FieldError::required(&path.child("namespace"), ""));
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.push(FieldError::not_supported(&path.child("apiGroup"), group, &[GROUP]).as_text());
            }
        }
        other => {
            let kinds = ["ServiceAccount", "User", "Group"];
            errors.push(FieldError::not_supported(&path.child("kind"), other, &kinds).as_text());
        }
    }
    errors
}

/// Validates that a binding does not change its role; it is deleted and created again.
pub(super) fn validate_role_ref_immutable(new: &Value, old: &Value) -> Vec<FieldError> {
    let path = Path::root("roleRef");
    immutable(new, old, "/roleRef", &path)
        .map(|e| FieldError { detail: "cannot change roleRef".to_string(), ..e })
        .into_iter()
        .collect()
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
