//! Structural schemas: checking what they demand, in the words of upstream's validator.
//!
//! Pure, on JSON. `metadata`, `apiVersion` and `kind` of the root are checked elsewhere.

use std::collections::HashSet;

use corten_cel::library::regex::compile;
use corten_meta::{FieldError, Path, Value};
use serde_json::Map;

use super::formats;
use super::rules::correlated;
use super::schema::ALWAYS;

/// Checks a value that replaces `old`; `path` is `None` at the root. What did not change is not refused: a schema may
/// be tightened under objects that would no longer pass.
pub fn validate(schema: &Value, value: &Value, old: Option<&Value>, path: Option<Path>, errors: &mut Vec<FieldError>) {
    if !schema.is_object() || (old == Some(value) && path.is_some()) {
        return;
    }
    let here = || path.clone().unwrap_or_else(|| Path::root(""));
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if !check_type(schema, value, &here(), errors) {
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let words: Vec<String> =
            allowed.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        errors.push(FieldError::not_supported(&here(), value.clone(), &words));
    }
    check_bounds(schema, value, &here(), errors);
    check_text(schema, value, &here(), errors);
    check_junctors(schema, value, path.as_ref(), errors);
    match value {
        Value::Object(map) => validate_map(schema, map, old, path, errors),
        Value::Array(items) => {
            check_unique(schema, items, &here(), errors);
            let keys = list_keys(schema);
            for (index, item) in items.iter().enumerate() {
                let before = correlated(&keys, item, old);
                validate(&schema["items"], item, before, Some(here().index(index)), errors);
            }
        }
        _ => {}
    }
}

/// The keys of a list that is a map of items.
fn list_keys(schema: &Value) -> Vec<String> {
    let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
    keys.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn validate_map(
    schema: &Value,
    map: &Map<String, Value>,
    old: Option<&Value>,
    path: Option<Path>,
    errors: &mut Vec<FieldError>,
) {
    let child = |name: &str| path.as_ref().map_or_else(|| Path::root(name), |p| p.child(name));
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !map.contains_key(name) {
            errors.push(FieldError::required(&child(name), ""));
        }
    }
    for (name, value) in map {
        if path.is_none() && ALWAYS.contains(&name.as_str()) {
            continue;
        }
        let schema = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
        validate(schema, value, old.and_then(|old| old.get(name)), Some(child(name)), errors);
    }
}

fn check_type(schema: &Value, value: &Value, path: &Path, errors: &mut Vec<FieldError>) -> bool {
    if schema["x-kubernetes-int-or-string"] == true {
        let good = value.is_i64() || value.is_u64() || value.is_string();
        if !good {
            errors.push(type_error(path, value, "integer,string"));
        }
        return good;
    }
    let Some(wanted) = schema["type"].as_str().filter(|wanted| !wanted.is_empty()) else { return true };
    let good = match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        _ => false,
    };
    if !good {
        errors.push(type_error(path, value, wanted));
    }
    good
}

fn type_error(path: &Path, value: &Value, wanted: &str) -> FieldError {
    let actual = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let detail = format!("{path} in body must be of type {wanted}: {actual:?}");
    FieldError::invalid(path, actual, detail)
}

fn check_bounds(schema: &Value, value: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let mut refuse =
        |detail: String| errors.push(FieldError::invalid(path, value.clone(), format!("{path} in body {detail}")));
    if let Some(number) = value.as_f64() {
        if let Some(min) = schema["minimum"].as_f64() {
            let exclusive = schema["exclusiveMinimum"] == true;
            if number < min || (exclusive && number == min) {
                refuse(format!(
                    "should be greater than {}{}",
                    if exclusive { "" } else { "or equal to " },
                    schema["minimum"]
                ));
            }
        }
        if let Some(max) = schema["maximum"].as_f64() {
            let exclusive = schema["exclusiveMaximum"] == true;
            if number > max || (exclusive && number == max) {
                refuse(format!(
                    "should be less than {}{}",
                    if exclusive { "" } else { "or equal to " },
                    schema["maximum"]
                ));
            }
        }
    }
    if let (Some(number), Some(step)) = (value.as_f64(), schema["multipleOf"].as_f64())
        && step > 0.0
        && (number / step).fract() != 0.0
    {
        refuse(format!("should be a multiple of {}", schema["multipleOf"]));
    }
    let length = match value {
        Value::String(text) => Some((text.chars().count(), "minLength", "maxLength", "chars long")),
        Value::Array(list) => Some((list.len(), "minItems", "maxItems", "items")),
        Value::Object(map) => Some((map.len(), "minProperties", "maxProperties", "properties")),
        _ => None,
    };
    if let Some((length, min, max, unit)) = length {
        if schema[min].as_u64().is_some_and(|min| (length as u64) < min) {
            refuse(format!("should be at least {} {unit}", schema[min]));
        }
        if schema[max].as_u64().is_some_and(|max| (length as u64) > max) {
            refuse(format!("may not be more than {} {unit}", schema[max]));
        }
    }
}

/// `pattern` and `format` of a text.
fn check_text(schema: &Value, value: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let Some(text) = value.as_str() else { return };
    if let Some(pattern) = schema["pattern"].as_str()
        && compile(pattern).is_ok_and(|regex| !regex.is_match(text))
    {
        errors.push(FieldError::invalid(path, text, format!("{path} in body should match '{pattern}'")));
    }
    if let Some(format) = schema["format"].as_str()
        && matches!(schema["type"].as_str(), None | Some("" | "string"))
        && !formats::has(format, text)
    {
        errors.push(FieldError::invalid(path, text, format!("{path} in body must be of type {format}: {text:?}")));
    }
}

/// `uniqueItems` and the items of sets and maps.
fn check_unique(schema: &Value, items: &[Value], path: &Path, errors: &mut Vec<FieldError>) {
    let kind = schema["x-kubernetes-list-type"].as_str();
    let keys: Vec<&str> =
        schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let identity = |item: &Value| match kind {
        Some("set") => Some(item.clone()),
        Some("map") => {
            let key = keys.iter().map(|key| ((*key).to_owned(), item.get(*key).cloned().unwrap_or_default()));
            Some(Value::Object(key.collect()))
        }
        _ => None,
    };
    // By their text, so that a list of a hundred thousand costs as many looks and not their square.
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let Some(identity) = identity(item) else { break };
        if !seen.insert(identity.to_string()) {
            errors.push(FieldError::duplicate(&path.index(index), identity));
        }
    }
    let repeats = || {
        let mut seen = HashSet::new();
        items.iter().any(|item| !seen.insert(item.to_string()))
    };
    if schema["uniqueItems"] == true && repeats() {
        let detail = format!("{path} in body shouldn't contain duplicates");
        errors.push(FieldError::invalid(path, Value::from(items.to_vec()), detail));
    }
}

/// `allOf`, `anyOf`, `oneOf` and `not`.
fn check_junctors(schema: &Value, value: &Value, path: Option<&Path>, errors: &mut Vec<FieldError>) {
    let name = path.map(ToString::to_string).unwrap_or_default();
    let mut refuse =
        |why: String| errors.push(FieldError::invalid(&Path::root("<nil>"), "", format!("{name:?} must {why}")));
    let found = |schema: &Value| {
        let mut errors = Vec::new();
        validate(schema, value, None, path.cloned(), &mut errors);
        errors
    };
    let branches = |key: &str| schema[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let valid = |key: &str| branches(key).iter().filter(|branch| found(branch).is_empty()).count();
    if !branches("anyOf").is_empty() && valid("anyOf") == 0 {
        refuse("validate at least one schema (anyOf)".to_owned());
    }
    match valid("oneOf") {
        1 => {}
        _ if branches("oneOf").is_empty() => {}
        0 => refuse("validate one and only one schema (oneOf). Found none valid".to_owned()),
        many => refuse(format!("validate one and only one schema (oneOf). Found {many} valid alternatives")),
    }
    if schema["not"].is_object() && found(&schema["not"]).is_empty() {
        refuse("not validate the schema (not)".to_owned());
    }
    let inner: Vec<FieldError> = branches("allOf").iter().flat_map(found).collect();
    if !inner.is_empty() {
        refuse("validate all the schemas (allOf)".to_owned());
        errors.extend(inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({ "type": "object", "properties": { "spec": { "type": "object", "required": ["size"], "properties": {
            "size": { "type": "integer", "minimum": 1, "multipleOf": 1 },
            "mode": { "type": "string", "enum": ["a", "b"], "default": "a" },
            "cron": { "type": "string", "pattern": "^(\\d+|\\*)(/\\d+)?$" },
            "at": { "type": "string", "format": "date-time" },
            "net": { "type": "string", "format": "cidr" },
            "set": { "type": "array", "x-kubernetes-list-type": "set", "items": { "type": "string" } },
            "map": { "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": { "type": "object" } },
            "any": { "type": "integer", "anyOf": [{ "minimum": 10 }, { "maximum": 2 }], "not": { "enum": [12] } },
            "one": { "type": "object", "oneOf": [{ "required": ["a"] }, { "required": ["b"] }] },
            "all": { "type": "integer", "allOf": [{ "minimum": 3 }, { "maximum": 5 }] },
            "labels": { "type": "object", "additionalProperties": { "type": "string" } } } } } })
    }

    #[test]
    fn demands_are_checked() {
        let check = |spec: Value| {
            let mut errors = Vec::new();
            validate(&schema(), &json!({ "metadata": 5, "spec": spec }), None, None, &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(check(json!({ "size": 1 })), "");
        assert_eq!(check(json!({})), "spec.size: Required value");
        assert!(check(json!({ "size": "x" })).contains("spec.size in body must be of type integer: \"string\""));
        assert!(check(json!({ "size": 0 })).contains("spec.size in body should be greater than or equal to 1"));
        assert!(check(json!({ "size": 1, "mode": "c" })).contains("supported values: \"a\", \"b\""));
        assert!(
            check(json!({ "size": 1, "labels": { "l": 1 } })).contains("spec.labels.l in body must be of type string")
        );
    }

    #[test]
    fn words_lists_and_alternatives_are_checked() {
        let check = |field: &str, value: Value| {
            let mut errors = Vec::new();
            let mut spec = json!({ "size": 1 });
            spec[field] = value;
            validate(&schema(), &json!({ "spec": spec }), None, None, &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        for (field, good, bad, message) in [
            ("cron", json!("*/5"), json!("x"), "spec.cron in body should match '^(\\d+|\\*)(/\\d+)?$'"),
            ("at", json!("2026-01-02T03:04:05Z"), json!("now"), "spec.at in body must be of type date-time: \"now\""),
            ("net", json!("10.0.0.0/8"), json!("10.0.0.0/33"), "must be of type cidr"),
            ("set", json!(["a", "b"]), json!(["a", "a"]), "spec.set[1]: Duplicate value: \"a\""),
            (
                "map",
                json!([{ "k": 1 }, { "k": 2 }]),
                json!([{ "k": 1, "v": 1 }, { "k": 1 }]),
                "spec.map[1]: Duplicate value",
            ),
            ("any", json!(11), json!(5), "\"spec.any\" must validate at least one schema (anyOf)"),
            ("any", json!(1), json!(12), "\"spec.any\" must not validate the schema (not)"),
            (
                "one",
                json!({ "a": 1 }),
                json!({}),
                "\"spec.one\" must validate one and only one schema (oneOf). Found none valid",
            ),
            ("one", json!({ "b": 1 }), json!({ "a": 1, "b": 1 }), "Found 2 valid alternatives"),
            ("all", json!(4), json!(6), "\"spec.all\" must validate all the schemas (allOf)"),
        ] {
            assert_eq!(check(field, good), "", "{field}");
            let found = check(field, bad);
            assert!(found.contains(message), "{found}");
        }
    }
}
