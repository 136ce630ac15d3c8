//! The table rows of the two admission policies and their bindings.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, count, list, name, text};

/// Returns name, number of validations, kind of the parameters, age.
pub(super) fn policy_cells(object: &Value, checks: &str, now: Timestamp) -> Vec<Value> {
    let param_kind = match object.pointer("/spec/paramKind").filter(|k| k.is_object()) {
        Some(kind) => format!("{}/{}", text(kind, "/apiVersion"), text(kind, "/kind")),
        None => "<unset>".to_string(),
    };
    vec![name(object), count(list(object, checks)), param_kind.into(), age(object, now)]
}

/// Returns name, policy, parameters, age.
pub(super) fn binding_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let param = match object.pointer("/spec/paramRef").filter(|r| r.is_object()) {
        Some(r) if !text(r, "/name").is_empty() => {
            format!("{}/{}", crate::cells::or(text(r, "/namespace"), "*"), text(r, "/name"))
        }
        Some(r) if r["selector"].is_object() => crate::cells::format_selector(r.get("selector")),
        _ => "<unset>".to_string(),
    };
    vec![name(object), text(object, "/spec/policyName").into(), param.into(), age(object, now)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_of_bindings() {
        let expressions = json!([{"key": "c", "operator": "In", "values": ["d", "e"]}]);
        for (param, wanted) in [
            (json!(null), "<unset>"),
            (json!({"name": "a"}), "*/a"),
            (json!({"name": "a", "namespace": "b"}), "b/a"),
            (json!({"selector": {"matchLabels": {"a": "b"}}}), "a=b"),
            (json!({"selector": {"matchExpressions": expressions}}), "c in (d,e)"),
        ] {
            let cells = binding_cells(&json!({"spec": {"paramRef": param}}), Timestamp::UNIX_EPOCH);
            assert_eq!(cells[2], wanted);
        }
    }
}
