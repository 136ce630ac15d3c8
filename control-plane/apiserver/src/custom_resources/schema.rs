//! Structural schemas: pruning what they do not name, filling what they default, checking what they demand.
//!
//! Pure, on JSON. `metadata`, `apiVersion` and `kind` of the root belong to the API machinery and are left alone.

use corten_meta::{FieldError, Path, Value};
use serde_json::Map;

/// Fields of the root (and of embedded resources) that every object has.
const ALWAYS: &[&str] = &["apiVersion", "kind", "metadata"];

fn preserves(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// Drops fields of an object that its schema does not name.
pub fn prune_root(schema: &Value, object: &mut Value) {
    if !schema.is_object() {
        return;
    }
    prune(schema, object, true);
}

fn prune(schema: &Value, value: &mut Value, is_resource: bool) {
    match value {
        Value::Object(map) => prune_map(schema, map, is_resource),
        Value::Array(items) => items.iter_mut().for_each(|item| prune(&schema["items"], item, false)),
        _ => {}
    }
}

fn prune_map(schema: &Value, map: &mut Map<String, Value>, is_resource: bool) {
    let properties = schema["properties"].as_object();
    let additional = &schema["additionalProperties"];
    let keep_unknown = preserves(schema) || *additional == true;
    map.retain(|name, value| {
        if is_resource && ALWAYS.contains(&name.as_str()) {
            return true;
        }
        match properties.and_then(|p| p.get(name)) {
            Some(schema) => {
                prune(schema, value, schema["x-kubernetes-embedded-resource"] == true);
                true
            }
            None if additional.is_object() => {
                prune(additional, value, false);
                true
            }
            None => keep_unknown,
        }
    });
}

/// Fills absent fields that have a default.
pub fn default(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                let absent = map.get(name).is_none_or(|v| v.is_null() && schema["nullable"] != true);
                if absent && let Some(value) = schema.get("default") {
                    map.insert(name.clone(), value.clone());
                }
                if let Some(value) = map.get_mut(name) {
                    default(schema, value);
                }
            }
            if schema["additionalProperties"].is_object() {
                let named = schema["properties"].as_object();
                for (name, value) in map.iter_mut() {
                    if named.is_none_or(|p| !p.contains_key(name)) {
                        default(&schema["additionalProperties"], value);
                    }
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| default(&schema["items"], item)),
        _ => {}
    }
}

/// Checks a value; `path` is `None` at the root.
pub fn validate(schema: &Value, value: &Value, path: Option<Path>, errors: &mut Vec<FieldError>) {
    if !schema.is_object() {
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
    match value {
        Value::Object(map) => validate_map(schema, map, path, errors),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                validate(&schema["items"], item, Some(here().index(index)), errors);
            }
        }
        _ => {}
    }
}

fn validate_map(schema: &Value, map: &Map<String, Value>, path: Option<Path>, errors: &mut Vec<FieldError>) {
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
        match schema["properties"].get(name) {
            Some(schema) => validate(schema, value, Some(child(name)), errors),
            None => validate(&schema["additionalProperties"], value, Some(child(name)), errors),
        }
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
    let Some(wanted) = schema["type"].as_str() else { return true };
    let good = match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        _ => true,
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({ "type": "object", "properties": { "spec": { "type": "object", "required": ["size"], "properties": {
            "size": { "type": "integer", "minimum": 1 },
            "mode": { "type": "string", "enum": ["a", "b"], "default": "a" },
            "any": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
            "labels": { "type": "object", "additionalProperties": { "type": "string" } } } } } })
    }

    #[test]
    fn unknown_fields_go_and_defaults_come() {
        let mut object = json!({ "apiVersion": "v", "kind": "K", "metadata": { "x": 1 }, "extra": 1,
            "spec": { "size": 2, "odd": true, "any": { "kept": 1 }, "labels": { "l": "v" } } });
        prune_root(&schema(), &mut object);
        default(&schema(), &mut object);
        assert_eq!(
            object,
            json!({ "apiVersion": "v", "kind": "K", "metadata": { "x": 1 },
            "spec": { "size": 2, "mode": "a", "any": { "kept": 1 }, "labels": { "l": "v" } } })
        );
    }

    #[test]
    fn demands_are_checked() {
        let check = |spec: Value| {
            let mut errors = Vec::new();
            validate(&schema(), &json!({ "metadata": 5, "spec": spec }), None, &mut errors);
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
}
