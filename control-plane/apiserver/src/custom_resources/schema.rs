//! Structural schemas: pruning what they do not name, and filling what they default.
//!
//! Pure, on JSON. `metadata`, `apiVersion` and `kind` of the root belong to the API machinery and are left alone.

use corten_meta::Value;
use serde_json::Map;

/// Fields of the root (and of embedded resources) that every object has.
pub const ALWAYS: &[&str] = &["apiVersion", "kind", "metadata"];

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
    // Where none may be, they are not dropped but refused.
    let keep_unknown = preserves(schema) || additional.is_boolean();
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

/// The paths of fields that pruning would drop, `metadata` aside.
pub fn unknown_fields(schema: &Value, object: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    if schema.is_object() {
        find_unknown(schema, object, true, "", &mut unknown);
    }
    unknown
}

fn find_unknown(schema: &Value, value: &Value, is_resource: bool, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            let additional = &schema["additionalProperties"];
            for (name, inner) in map.iter().filter(|(name, _)| !(is_resource && ALWAYS.contains(&name.as_str()))) {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match schema["properties"].get(name) {
                    Some(schema) => {
                        let embedded = schema["x-kubernetes-embedded-resource"] == true;
                        find_unknown(schema, inner, embedded, &path, unknown);
                    }
                    None if additional.is_object() => find_unknown(additional, inner, false, &path, unknown),
                    None if preserves(schema) || additional.is_boolean() => {}
                    None => unknown.push(path),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                find_unknown(&schema["items"], item, false, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Drops fields that are null where the schema allows no null; those with a default get it afterwards.
pub fn prune_nulls(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|name, value| {
            let schema = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
            let refused = schema.is_object() && schema["nullable"] != true && schema["default"].is_null();
            if value.is_null() && refused {
                return false;
            }
            prune_nulls(schema, value);
            true
        }),
        Value::Array(items) => items.iter_mut().for_each(|item| prune_nulls(&schema["items"], item)),
        _ => {}
    }
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
    fn nulls_go_where_they_are_not_allowed() {
        let schema = json!({ "properties": {
            "a": { "type": "string" }, "b": { "type": "string", "nullable": true }, "c": { "type": "string", "default": "x" },
            "l": { "type": "array", "items": { "type": "string" } }, "m": { "additionalProperties": { "type": "string" } } } });
        let mut object = json!({ "a": null, "b": null, "c": null, "l": [null], "m": { "x": null }, "other": null });
        prune_nulls(&schema, &mut object);
        assert_eq!(object, json!({ "b": null, "c": null, "l": [null], "m": {}, "other": null }));
    }

    #[test]
    fn unknown_fields_are_named() {
        let object = json!({ "kind": "K", "metadata": { "x": 1 }, "extra": 1,
            "spec": { "odd": true, "any": { "kept": 1 }, "labels": { "l": "v" } } });
        assert_eq!(unknown_fields(&schema(), &object), ["extra", "spec.odd"]);
        assert!(unknown_fields(&Value::Null, &object).is_empty());
    }
}
