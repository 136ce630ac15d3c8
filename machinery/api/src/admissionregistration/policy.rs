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
        Some(r) if r["selector"].is_object() => spelled_out(&r["selector"]),
        _ => "<unset>".to_string(),
    };
    vec![name(object), text(object, "/spec/policyName").into(), param.into(), age(object, now)]
}

/// Formats a selector as its Go type prints itself.
fn spelled_out(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let labels: String = labels.map(|(key, value)| format!("{key}: {},", value.as_str().unwrap_or_default())).collect();
    let requirement = |r: &Value| {
        let values: Vec<&str> = list(r, "/values").iter().filter_map(Value::as_str).collect();
        let key = text(r, "/key");
        let operator = text(r, "/operator");
        let values = values.join(" ");
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
    };
    let expressions: String = list(selector, "/matchExpressions").iter().map(requirement).collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},\
         MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
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
            (
                json!({"selector": {"matchLabels": {"a": "b"}}}),
                "&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}",
            ),
            (
                json!({"selector": {"matchExpressions": expressions}}),
                "&LabelSelector{MatchLabels:map[string]string{},MatchExpressions:[]LabelSelectorRequirement{\
                 LabelSelectorRequirement{Key:c,Operator:In,Values:[d e],},},}",
            ),
        ] {
            let cells = binding_cells(&json!({"spec": {"paramRef": param}}), Timestamp::UNIX_EPOCH);
            assert_eq!(cells[2], wanted);
        }
    }
}
