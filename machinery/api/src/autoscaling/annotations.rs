//! The annotations in which upstream keeps the fields that version 1 of an autoscaler lacks: metrics in a format of
//! their own, the behavior as upstream's validated type, conditions. Pure; an unreadable annotation counts as absent.

use corten_meta::{Quantity, Value};
use serde_json::{Map, json};

use crate::cells::{list, text};
use crate::defaulting::{absent, remove};

/// A field of a metric in version 1, its field in version 2, and whether zero is written: in a spec, in a status. `*`
/// stands for the side: `target` or `current`.
type Row = (&'static str, &'static str, [bool; 2]);
/// The type, field and rows of every source, in upstream's order.
const SOURCES: [(&str, &str, &[Row]); 5] = [
    (
        "Object",
        "object",
        &[
            ("target", "/describedObject", [true, true]),
            ("metricName", "/metric/name", [true, true]),
            ("*Value", "/*/value", [true, true]),
            ("selector", "/metric/selector", [false, false]),
            ("averageValue", "/*/averageValue", [false, false]),
        ],
    ),
    (
        "Pods",
        "pods",
        &[
            ("metricName", "/metric/name", [true, true]),
            ("*AverageValue", "/*/averageValue", [true, true]),
            ("selector", "/metric/selector", [false, false]),
        ],
    ),
    (
        "Resource",
        "resource",
        &[
            ("name", "/name", [true, true]),
            ("*AverageUtilization", "/*/averageUtilization", [false, false]),
            ("*AverageValue", "/*/averageValue", [false, true]),
        ],
    ),
    (
        "ContainerResource",
        "containerResource",
        &[
            ("name", "/name", [true, true]),
            ("*AverageUtilization", "/*/averageUtilization", [false, false]),
            ("*AverageValue", "/*/averageValue", [false, true]),
            ("container", "/container", [true, true]),
        ],
    ),
    (
        "External",
        "external",
        &[
            ("metricName", "/metric/name", [true, true]),
            ("metricSelector", "/metric/selector", [false, false]),
            ("*Value", "/*/value", [false, true]),
            ("*AverageValue", "/*/averageValue", [false, false]),
        ],
    ),
];

/// Encodes metrics of version 2 in the format of version 1; `side` is `target` or `current`.
pub(super) fn encode_metrics(metrics: &[Value], side: &str) -> String {
    let is_status = usize::from(side == "current");
    let metric = |metric: &Value| {
        let mut fields = vec![("type".to_string(), json!(text(metric, "/type")).to_string())];
        for (_, field, rows) in SOURCES.iter().filter(|(_, field, _)| metric[field].is_object()) {
            let source = &metric[*field];
            let cell = |(name, pointer, written): &Row| {
                let found = source.pointer(&pointer.replace('*', side)).filter(|value| !value.is_null());
                let zero = if name.ends_with("Value") { json!("0") } else { json!("") };
                let shown = match found {
                    Some(value) => ordered(value, &["kind", "name", "apiVersion", "matchLabels", "matchExpressions"]),
                    None if written[is_status] => zero.to_string(),
                    None => return None,
                };
                Some((name.replace('*', side), shown))
            };
            fields.push((field.to_string(), object(rows.iter().filter_map(cell))));
        }
        object(fields.into_iter())
    };
    format!("[{}]", metrics.iter().map(metric).collect::<Vec<_>>().join(","))
}

/// Decodes metrics of version 1.
pub(super) fn decode_metrics(annotation: &str, side: &str) -> Option<Vec<Value>> {
    let metric = |input: &Value| {
        let mut metric = json!({ "type": input["type"] });
        for (_, field, rows) in SOURCES.iter().filter(|(_, field, _)| input[field].is_object()) {
            let mut source = json!({});
            for (name, pointer, _) in *rows {
                let value = &input[*field][name.replace('*', side)];
                if !value.is_null() {
                    corten_meta::set(&mut source, &pointer.replace("*", side), value.clone());
                }
            }
            if side == "target" {
                let kind = target_type(field, &source);
                corten_meta::set(&mut source, "/target/type", kind.into());
                // Version 1 always writes the value of an object, also if it is not the target.
                let value = Quantity::parse(text(&source, "/target/value"));
                if *field == "object" && kind == "AverageValue" && value.is_ok_and(|value| value.is_zero()) {
                    remove(&mut source, "/target/value");
                }
            }
            metric[*field] = source;
        }
        metric
    };
    Some(decode_rows(annotation)?.iter().map(metric).collect())
}

/// Decodes a list of structs that have a type each.
pub(super) fn decode_rows(annotation: &str) -> Option<Vec<Value>> {
    let rows: Vec<Value> = serde_json::from_str(annotation).ok()?;
    let is_row = |row: &Value| row.is_object() && (row["type"].is_null() || row["type"].is_string());
    rows.iter().all(|row| row.is_null() || is_row(row)).then_some(rows)
}

/// Returns the type of a target, which version 1 does not have: it follows from the values.
fn target_type(field: &str, source: &Value) -> &'static str {
    match field {
        "resource" | "containerResource" if !absent(source, "/target/averageUtilization") => "Utilization",
        "object" if absent(source, "/target/averageValue") => "Value",
        "external" if !absent(source, "/target/value") => "Value",
        _ => "AverageValue",
    }
}

/// Encodes the behavior under the names of upstream's validated type.
pub(super) fn encode_behavior(behavior: &Value) -> String {
    let policy = |policy: &Value| capitalized(policy, &["type", "value", "periodSeconds"], &Value::to_string);
    let rule = |value: &Value| match value.as_array() {
        Some(policies) => format!("[{}]", policies.iter().map(policy).collect::<Vec<_>>().join(",")),
        None => value.to_string(),
    };
    let rules = ["stabilizationWindowSeconds", "selectPolicy", "policies", "tolerance"];
    capitalized(behavior, &["scaleUp", "scaleDown"], &|value| capitalized(value, &rules, &rule))
}

/// Encodes these fields of a struct with a capital each, and null for absent ones.
fn capitalized(value: &Value, fields: &[&str], encode: &dyn Fn(&Value) -> String) -> String {
    if !value.is_object() {
        return value.to_string();
    }
    let name = |field: &str| format!("{}{}", field[..1].to_uppercase(), &field[1..]);
    object(fields.iter().map(|field| (name(field), encode(&value[*field]))))
}

/// Decodes the behavior: names in any case, and no nulls.
pub(super) fn decode_behavior(annotation: &str) -> Option<Value> {
    fn renamed(value: Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
                fields.map(|(name, value)| (lower(&name), renamed(value))).collect::<Map<_, _>>().into()
            }
            Value::Array(items) => items.into_iter().map(renamed).collect(),
            other => other,
        }
    }
    fn lower(name: &str) -> String {
        let mut characters = name.chars();
        characters.next().map(|first| first.to_lowercase().chain(characters).collect()).unwrap_or_default()
    }
    Some(renamed(serde_json::from_str(annotation).ok()?))
        .filter(|value| value.as_object().is_some_and(|o| !o.is_empty()))
}

pub(super) fn encode_conditions(conditions: &[Value]) -> String {
    let condition = |condition: &Value| {
        let fields = ["type", "status", "lastTransitionTime", "reason", "message"].into_iter();
        let cell = |name: &str| match &condition[name] {
            Value::Null if name != "lastTransitionTime" => None,
            value => Some((name.to_string(), value.to_string())),
        };
        object(fields.filter_map(cell))
    };
    format!("[{}]", conditions.iter().map(condition).collect::<Vec<_>>().join(","))
}

/// Takes the first CPU utilization out of the metrics of a spec, for which version 1 has a field.
pub(super) fn take_cpu(metrics: &[Value]) -> (Option<Value>, Vec<Value>) {
    let utilization = "/resource/target/averageUtilization";
    let is_cpu = |m: &&Value| m["type"] == "Resource" && m["resource"]["name"] == "cpu" && !absent(m, utilization);
    let first = metrics.iter().find(is_cpu).and_then(|m| m.pointer(utilization)).cloned();
    (first, metrics.iter().filter(|m| !is_cpu(m)).cloned().collect())
}

/// Returns the CPU utilization of a status.
pub(super) fn current_cpu(object: &Value) -> Option<&Value> {
    let is_cpu = |m: &&Value| m["type"] == "Resource" && m["resource"]["name"] == "cpu";
    let metrics = list(object, "/status/currentMetrics").iter().filter(is_cpu);
    // The last one counts.
    metrics.rev().find_map(|m| m.pointer("/resource/current/averageUtilization").filter(|value| !value.is_null()))
}

fn object(fields: impl Iterator<Item = (String, String)>) -> String {
    let fields: Vec<String> = fields.map(|(name, value)| format!("{}:{value}", json!(name))).collect();
    format!("{{{}}}", fields.join(","))
}

/// Encodes JSON whose outermost fields are in this order.
fn ordered(value: &Value, order: &[&str]) -> String {
    match value.as_object() {
        Some(fields) => {
            let named = order.iter().filter_map(|name| Some(((*name).to_string(), fields.get(*name)?.to_string())));
            object(named)
        }
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_other_than_lists_of_structs_are_absent() {
        for (text, wanted) in
            [("[]", true), ("[null, {}]", true), ("[{\"type\": 5}]", false), ("{}", false), ("[1]", false)]
        {
            assert_eq!(decode_rows(text).is_some(), wanted, "{text}");
        }
    }

    #[test]
    fn metrics_are_kept_in_the_format_of_version_1() {
        let metrics = json!([
            {"type": "Pods", "pods": {"metric": {"name": "m", "selector": {"matchLabels": {"a": "b"}}},
                                      "target": {"type": "AverageValue", "averageValue": "1"}}},
            {"type": "Object", "object": {"describedObject": {"kind": "Service", "name": "s", "apiVersion": "v1"},
                                          "metric": {"name": "m"}, "target": {"type": "Value", "value": "2"}}},
            {"type": "Object", "object": {"describedObject": {"kind": "Service", "name": "s", "apiVersion": "v1"},
                                          "metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "2"}}},
            {"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 5}}},
        ]);
        let metrics = metrics.as_array().unwrap();
        let messages = encode_metrics(metrics, "target");
        let wanted = r#"[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"1","selector":{"matchLabels":{"a":"b"}}}},{"type":"Object","object":{"target":{"kind":"Service","name":"s","apiVersion":"v1"},"metricName":"m","targetValue":"2"}},{"type":"Object","object":{"target":{"kind":"Service","name":"s","apiVersion":"v1"},"metricName":"m","targetValue":"0","averageValue":"2"}},{"type":"Resource","resource":{"name":"memory","targetAverageUtilization":5}}]"#;
        assert_eq!(messages, wanted);
        assert_eq!(&decode_metrics(&messages, "target").unwrap(), metrics);
    }

    #[test]
    fn statuses_conditions_and_behavior() {
        let current = json!([{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 0}}}]);
        let messages = encode_metrics(current.as_array().unwrap(), "current");
        let wanted = r#"[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":0,"currentAverageValue":"0"}}]"#;
        assert_eq!(messages, wanted);
        let condition = json!([{"status": "True", "type": "X", "reason": "r"}]);
        let messages = encode_conditions(condition.as_array().unwrap());
        assert_eq!(messages, r#"[{"type":"X","status":"True","lastTransitionTime":null,"reason":"r"}]"#);
        let behavior = json!({"scaleUp": {"stabilizationWindowSeconds": 10, "selectPolicy": "Max",
                                          "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}});
        let messages = encode_behavior(&behavior);
        let wanted = r#"{"ScaleUp":{"StabilizationWindowSeconds":10,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":null},"ScaleDown":null}"#;
        assert_eq!(messages, wanted);
        assert_eq!(decode_behavior(&messages), Some(behavior));
    }
}
