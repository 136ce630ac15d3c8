//! Small readers of an object, and the phrases that rows of `kubectl get` share.
//!
//! Every reader treats values of an unexpected type as absent: a row must never fail.

use corten_meta::{Value, at};
use jiff::Timestamp;
use serde_json::json;

/// Returns the string at a JSON pointer, or empty.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    at(object, pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the integer at a JSON pointer, or 0.
pub(crate) fn number(object: &Value, pointer: &str) -> i64 {
    at(object, pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// Returns the bool at a JSON pointer, or false.
pub(crate) fn boolean(object: &Value, pointer: &str) -> bool {
    at(object, pointer).and_then(Value::as_bool).unwrap_or_default()
}

/// Returns the list at a JSON pointer, or an empty one.
pub(crate) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    at(object, pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the string, or `otherwise` if it is empty.
pub(crate) fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

/// Returns the time at a JSON pointer.
pub(crate) fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    text(object, pointer).parse().ok()
}

/// Returns the age of the time at a pointer, in kubectl's short form.
pub(crate) fn since(object: &Value, pointer: &str, now: Timestamp) -> String {
    match time(object, pointer) {
        Some(then) => corten_meta::time::human_duration(now.duration_since(then)),
        None => "<unknown>".to_string(),
    }
}

/// Returns the Age column.
pub(crate) fn age(object: &Value, now: Timestamp) -> Value {
    since(object, "/metadata/creationTimestamp", now).into()
}

/// Returns the Name column.
pub(crate) fn name(object: &Value) -> Value {
    text(object, "/metadata/name").into()
}

/// Returns container names and images, each joined by commas.
pub(crate) fn containers(object: &Value, pod_spec: &str) -> [Value; 2] {
    let containers = list(object, &format!("{pod_spec}/containers"));
    ["/name", "/image"].map(|field| join(containers.iter().map(|c| text(c, field))).into())
}

/// Joins with commas.
pub(crate) fn join<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    parts.collect::<Vec<_>>().join(",")
}

/// Returns a map of labels as `a=b,c=d`, or `<none>`.
pub(crate) fn format_labels(labels: Option<&Value>) -> String {
    match labels.and_then(Value::as_object) {
        Some(map) if !map.is_empty() => {
            let mut pairs: Vec<_> =
                map.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
            pairs.sort_unstable();
            pairs.join(",")
        }
        _ => "<none>".to_string(),
    }
}

/// Returns a LabelSelector as kubectl prints it; `<none>` if it selects everything.
pub(crate) fn format_selector(selector: Option<&Value>) -> String {
    let Some(selector) = selector.filter(|s| !s.is_null()) else { return "<none>".to_string() };
    match corten_meta::labels::Selector::from_label_selector(selector) {
        Ok(selector) if selector.is_empty() => "<none>".to_string(),
        Ok(selector) => selector.to_string(),
        Err(_) => "<error>".to_string(),
    }
}

/// Returns the first three of a list, and the number of the others.
pub(crate) fn first_three(items: &[String]) -> String {
    const SHOWN: usize = 3;
    if items.len() > SHOWN {
        return format!("{} + {} more...", items[..SHOWN].join(","), items.len() - SHOWN);
    }
    items.join(",")
}

/// Returns a number as a cell.
pub(crate) fn count(items: &[Value]) -> Value {
    json!(items.len())
}

/// Returns a cell by its source: a pointer to a string, with a fallback after a bar, or the form of another value with
/// its pointer in parentheses.
pub(crate) fn cell(source: &str, object: &Value, now: Timestamp) -> Value {
    let Some((form, pointer)) = source.strip_suffix(')').and_then(|source| source.split_once('(')) else {
        let (pointer, fallback) = source.split_once('|').unwrap_or((source, ""));
        return or(text(object, pointer), fallback).into();
    };
    match form {
        "age" => age(object, now),
        "number" => number(object, pointer).into(),
        "bool" => boolean(object, pointer).into(),
        "count" => count(list(object, pointer)),
        "join" => join(list(object, pointer).iter().filter_map(Value::as_str)).into(),
        "labels" => format_labels(object.pointer(pointer)).into(),
        "selector" => format_selector(object.pointer(pointer)).into(),
        "value" => object.pointer(pointer).cloned().unwrap_or_else(|| "<none>".into()),
        "names" => containers(object, pointer)[0].take(),
        "images" => containers(object, pointer)[1].take(),
        _ => Value::Null,
    }
}
