//! The rules of LimitRange and ResourceQuota.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::field::{FieldError, Path};
use corten_meta::{Quantity, Value, names};

use crate::cells::{list, text};
use crate::validation::{invalid_each, quantity, supported};

const SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

pub(super) fn validate_quota(object: &Value) -> Vec<FieldError> {
    let path = Path::root("spec");
    let mut errors = Vec::new();
    for (resource, amount) in object["spec"]["hard"].as_object().into_iter().flatten() {
        let path = path.child("hard").key(resource);
        errors.extend(invalid_each(&path, resource, names::qualified_name(resource)));
        if let Some(negative) = quantity(amount).filter(|q| q.as_milli() < 0) {
            errors.push(FieldError::invalid(&path, negative.to_string(), "must be greater than or equal to 0"));
        }
    }
    let scopes = list(object, "/spec/scopes");
    for scope in scopes.iter().filter(|s| !SCOPES.iter().any(|known| s == known)) {
        let value = Value::from(scopes.to_vec());
        let detail = format!("unsupported scope {scope}");
        errors.push(FieldError::invalid(&path.child("scopes"), value, detail));
    }
    let has = |scope: &str| scopes.iter().any(|s| s == scope);
    for (one, other) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if has(one) && has(other) {
            let value = Value::from(scopes.to_vec());
            errors.push(FieldError::invalid(&path.child("scopes"), value, "conflicting scopes"));
        }
    }
    errors
}

pub(super) fn validate_quota_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let scopes = |object: &Value| -> BTreeSet<String> {
        list(object, "/spec/scopes").iter().filter_map(|s| s.as_str().map(str::to_string)).collect()
    };
    if scopes(new) == scopes(old) {
        return Vec::new();
    }
    let value = Value::from(list(new, "/spec/scopes").to_vec());
    vec![FieldError::invalid(&Path::root("spec").child("scopes"), value, "field is immutable")]
}

pub(super) fn validate_limit_range(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (at, limit) in list(object, "/spec/limits").iter().enumerate() {
        let path = Path::root("spec").child("limits").index(at);
        let kind = text(limit, "/type");
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(&path.child("type"), kind));
        }
        if kind == "Pod" {
            for field in ["default", "defaultRequest"] {
                if limit[field].as_object().is_some_and(|m| !m.is_empty()) {
                    let detail = "may not be specified when `type` is 'Pod'";
                    errors.push(FieldError::forbidden(&path.child(field), detail));
                }
            }
        }
        if !kind.contains('/') {
            let kinds = ["Container", "PersistentVolumeClaim", "Pod"];
            errors.extend(supported(&limit["type"], &path.child("type"), &kinds));
        }
        errors.extend(validate_order(limit, &path));
    }
    errors
}

/// Minimum, default request, default limit and maximum of a resource must come in this order.
fn validate_order(limit: &Value, path: &Path) -> Vec<FieldError> {
    let amounts = |field: &str| -> BTreeMap<&str, Quantity> {
        let map = limit[field].as_object().into_iter().flatten();
        map.filter_map(|(resource, amount)| Some((resource.as_str(), quantity(amount)?))).collect()
    };
    // (the smaller, the larger, where the error is, and how each is called)
    let pairs = [
        ("min", "max", "min", "min value", "max value"),
        ("min", "defaultRequest", "defaultRequest", "min value", "default request value"),
        ("defaultRequest", "max", "defaultRequest", "default request value", "max value"),
        ("defaultRequest", "default", "defaultRequest", "default request value", "default limit value"),
        ("min", "default", "default", "min value", "default value"),
        ("default", "max", "default", "default value", "max value"),
    ];
    let mut errors = Vec::new();
    for (small, large, place, small_word, large_word) in pairs {
        let larger = amounts(large);
        for (resource, amount) in amounts(small) {
            let Some(bound) = larger.get(resource).filter(|bound| amount > **bound) else { continue };
            let detail = format!("{small_word} {amount} is greater than {large_word} {bound}");
            let value = amounts(place).get(resource).map(ToString::to_string).unwrap_or_default();
            errors.push(FieldError::invalid(&path.child(place).key(resource), value, detail));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ranges_are_in_order() {
        let range = |limit: Value| validate_limit_range(&json!({"spec": {"limits": [limit]}}));
        assert_eq!(range(json!({"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "2"}})), []);
        let errors = range(json!({"type": "Container", "min": {"cpu": "3"}, "max": {"cpu": "2"}}));
        assert_eq!(
            errors[0].to_string(),
            "spec.limits[0].min[cpu]: Invalid value: \"3\": min value 3 is greater than max value 2"
        );
        assert_eq!(range(json!({"type": "Pod", "default": {"cpu": "1"}})).len(), 1);
    }

    #[test]
    fn quotas() {
        let quota = |spec: Value| validate_quota(&json!({ "spec": spec }));
        assert_eq!(quota(json!({"hard": {"pods": "5", "requests.cpu": "1"}, "scopes": ["BestEffort"]})), []);
        assert_eq!(quota(json!({"hard": {"pods": "-1"}})).len(), 1);
        assert_eq!(quota(json!({"scopes": ["BestEffort", "NotBestEffort"]})).len(), 1);
    }
}
