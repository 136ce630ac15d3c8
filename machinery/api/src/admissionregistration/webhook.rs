//! What the two webhook configurations share: defaults and the row.

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};
use jiff::Timestamp;
use serde_json::json;

use crate::cells::{age, count, list, name, text};
use crate::defaulting::{default_at, items};
use crate::validation::{invalid_each, label_selector, required_word, supported};

/// Defaults of every webhook of a configuration.
pub(super) fn default_webhooks(object: &mut Value, mutating: bool) {
    for webhook in items(object, "/webhooks") {
        default_at(webhook, "/failurePolicy", "Fail");
        default_match(webhook, "");
        default_at(webhook, "/timeoutSeconds", 10);
        if mutating {
            default_at(webhook, "/reinvocationPolicy", "Never");
        }
        default_at(webhook, "/clientConfig/service/port", 443);
        items(webhook, "/rules").for_each(|rule| default_at(rule, "/scope", "*"));
    }
}

/// Defaults of what is matched, at a JSON pointer.
pub(super) fn default_match(object: &mut Value, at: &str) {
    default_at(object, &format!("{at}/matchPolicy"), "Equivalent");
    default_at(object, &format!("{at}/namespaceSelector"), json!({}));
    default_at(object, &format!("{at}/objectSelector"), json!({}));
    for rules in ["resourceRules", "excludeResourceRules"] {
        items(object, &format!("{at}/{rules}")).for_each(|rule| default_at(rule, "/scope", "*"));
    }
}

/// Errors of every webhook of a configuration.
pub(super) fn validate_webhooks(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for (at, webhook) in list(object, "/webhooks").iter().enumerate() {
        let path = Path::root("webhooks").index(at);
        errors.extend(validate_webhook(webhook, &path));
        if !seen.insert(text(webhook, "/name")) {
            errors.push(FieldError::duplicate(&path.child("name"), text(webhook, "/name")));
        }
    }
    errors
}

fn validate_webhook(webhook: &Value, path: &Path) -> Vec<FieldError> {
    let name = text(webhook, "/name");
    let name_path = path.child("name");
    let mut errors = match name {
        "" => vec![FieldError::required(&name_path, "")],
        _ if name.split('.').count() < 3 => {
            let detail = "should be a domain with at least three segments separated by dots";
            vec![FieldError::invalid(&name_path, name, detail)]
        }
        _ => invalid_each(&name_path, name, names::dns1123_subdomain(name)),
    };
    if list(webhook, "/admissionReviewVersions").is_empty() {
        let detail = "must specify one of v1, v1beta1";
        errors.push(FieldError::required(&path.child("admissionReviewVersions"), detail));
    }
    for (at, rule) in list(webhook, "/rules").iter().enumerate() {
        errors.extend(validate_rule(rule, &path.child("rules").index(at)));
    }
    errors.extend(supported(&webhook["failurePolicy"], &path.child("failurePolicy"), &["Fail", "Ignore"]));
    errors.extend(supported(&webhook["matchPolicy"], &path.child("matchPolicy"), &["Equivalent", "Exact"]));
    let effects = path.child("sideEffects");
    if text(webhook, "/sideEffects").is_empty() {
        errors.push(FieldError::required(&effects, "must specify one of None, NoneOnDryRun"));
    } else {
        errors.extend(required_word(&webhook["sideEffects"], &effects, &["None", "NoneOnDryRun"]));
    }
    if let Some(seconds) = webhook["timeoutSeconds"].as_i64().filter(|s| !(1..=30).contains(s)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(&path.child("timeoutSeconds"), seconds, detail));
    }
    errors.extend(label_selector(&webhook["namespaceSelector"], &path.child("namespaceSelector")));
    errors.extend(label_selector(&webhook["objectSelector"], &path.child("objectSelector")));
    let client = &webhook["clientConfig"];
    if client["url"].is_string() == client["service"].is_object() {
        let detail = "exactly one of url or service is required";
        errors.push(FieldError::required(&path.child("clientConfig"), detail));
    }
    errors
}

fn validate_rule(rule: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (field, what) in [
        ("operations", "operations"),
        ("apiGroups", "API groups"),
        ("apiVersions", "API versions"),
        ("resources", "resources"),
    ] {
        let values = list(rule, &format!("/{field}"));
        if values.is_empty() {
            errors.push(FieldError::required(&path.child(field), ""));
        } else if field != "resources" && values.len() > 1 && values.iter().any(|v| v == "*") {
            let detail = format!("if '*' is present, must not specify other {what}");
            errors.push(FieldError::invalid(&path.child(field), Value::from(values.to_vec()), detail));
        }
    }
    const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    for (at, operation) in list(rule, "/operations").iter().enumerate() {
        errors.extend(supported(operation, &path.child("operations").index(at), OPERATIONS));
    }
    errors.extend(supported(&rule["scope"], &path.child("scope"), &["*", "Cluster", "Namespaced"]));
    errors
}

/// Name, number of webhooks, age.
pub(super) fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), count(list(object, "/webhooks")), age(object, now)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks() {
        let webhook = |change: fn(&mut Value)| {
            let mut webhook = json!({"name": "a.b.c", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"service": {"name": "s", "namespace": "n"}},
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]});
            change(&mut webhook);
            let mut object = json!({ "webhooks": [webhook] });
            default_webhooks(&mut object, false);
            validate_webhooks(&object).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(webhook(|_| {}), Vec::<String>::new());
        assert_eq!(
            webhook(|w| w["sideEffects"] = Value::Null),
            ["webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun"]
        );
        assert_eq!(
            webhook(|w| w["rules"][0]["operations"] = json!(["*", "CREATE"])),
            [
                "webhooks[0].rules[0].operations: Invalid value: [\"*\",\"CREATE\"]: if '*' is present, must not specify other operations"
            ]
        );
        assert_eq!(
            webhook(|w| w["clientConfig"] = json!({})),
            ["webhooks[0].clientConfig: Required value: exactly one of url or service is required"]
        );
    }
}
