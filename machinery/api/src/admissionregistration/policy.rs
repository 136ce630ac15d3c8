//! What the two admission policies and their bindings share: the rows.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, count, format_selector, list, name, text};

/// Name, number of checks, kind of the parameters, age.
pub(super) fn policy_cells(object: &Value, checks: &str, now: Timestamp) -> Vec<Value> {
    let param_kind = match object.pointer("/spec/paramKind").filter(|k| k.is_object()) {
        Some(kind) => format!("{}/{}", text(kind, "/apiVersion"), text(kind, "/kind")),
        None => "<unset>".to_string(),
    };
    vec![name(object), count(list(object, checks)), param_kind.into(), age(object, now)]
}

/// Name, policy, parameters, age.
pub(super) fn binding_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let param = match object.pointer("/spec/paramRef").filter(|r| r.is_object()) {
        Some(r) if !text(r, "/name").is_empty() => {
            format!("{}/{}", crate::cells::or(text(r, "/namespace"), "*"), text(r, "/name"))
        }
        Some(r) if r.get("selector").is_some() => format_selector(r.get("selector")),
        _ => "<unset>".to_string(),
    };
    vec![name(object), text(object, "/spec/policyName").into(), param.into(), age(object, now)]
}
