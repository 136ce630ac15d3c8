//! What the two webhook configurations share: defaults and the row.

use corten_meta::Value;
use jiff::Timestamp;
use serde_json::json;

use crate::cells::{age, count, list, name};
use crate::defaulting::{default_at, items};

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

/// Name, number of webhooks, age.
pub(super) fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), count(list(object, "/webhooks")), age(object, now)]
}
