//! Validates lists of the types set and map: they contain no duplicates. Pure.

use std::collections::HashMap;

use corten_meta::{FieldError, Path, Value};
use serde_json::Map;

/// Adds the errors of duplicates in a value and below it.
pub fn validate(schema: &Value, value: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map.iter().filter(|(_, value)| value.is_object() || value.is_array()) {
                let known = schema["properties"].get(name);
                let values = &schema["additionalProperties"];
                if let Some(schema) = known {
                    validate(schema, value, &path.child(name), errors);
                } else if values.is_object() {
                    validate(values, value, &path.key(name), errors);
                }
            }
        }
        Value::Array(items) => {
            match schema["x-kubernetes-list-type"].as_str() {
                Some("set") => repeated(items, path, errors),
                Some("map") => repeated_keys(schema, items, path, errors),
                _ => {}
            }
            if schema["items"].is_object() {
                for (index, item) in items.iter().enumerate().filter(|(_, item)| item.is_object() || item.is_array()) {
                    validate(&schema["items"], item, &path.index(index), errors);
                }
            }
        }
        _ => {}
    }
}

/// Adds an error for the second occurrence of an item, and none for further ones.
fn repeated(items: &[Value], path: &Path, errors: &mut Vec<FieldError>) {
    // Items are compared by their encoding, so that a large list costs linear and not quadratic time.
    let mut times: HashMap<Vec<u8>, usize> = HashMap::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let mut encoded = Vec::new();
        corten_meta::codec::write_value(&mut encoded, item);
        let times = times.entry(encoded).or_default();
        *times += 1;
        if *times == 2 {
            errors.push(FieldError::duplicate(&path.index(index), item.clone()));
        }
    }
}

fn repeated_keys(schema: &Value, items: &[Value], path: &Path, errors: &mut Vec<FieldError>) {
    if let Some((index, item)) = items.iter().enumerate().find(|(_, item)| !item.is_object() && !item.is_null()) {
        let detail = "must be an object for an array of list-type map";
        return errors.push(FieldError::invalid(&path.index(index), item.clone(), detail));
    }
    let names = || schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let key = |item: &Value| {
        let fields = names().filter_map(|name| Some((name.to_owned(), item.get(name)?.clone())));
        Value::Object(fields.collect::<Map<String, Value>>())
    };
    repeated(&items.iter().map(key).collect::<Vec<_>>(), path, errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_duplicate_is_reported_once() {
        let schema = json!({ "properties": {
            "set": { "x-kubernetes-list-type": "set", "items": { "type": "string" } },
            "map": { "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "p"], "items": { "type": "object" } } } });
        for (value, expected) in [
            (json!({ "set": ["a", "b"], "map": [{ "k": 1 }, { "k": 1, "p": 1 }] }), ""),
            (json!({ "set": ["a", "a", "a"] }), "s.set[1]: Duplicate value: \"a\""),
            (json!({ "map": [{ "k": 1, "v": 2 }, { "k": 1 }] }), "s.map[1]: Duplicate value: {\"k\":1}"),
            (json!({ "map": [{}, null] }), "s.map[1]: Duplicate value: {}"),
            (
                json!({ "map": ["x"] }),
                "s.map[0]: Invalid value: \"x\": must be an object for an array of list-type map",
            ),
        ] {
            let mut errors = Vec::new();
            validate(&schema, &value, &Path::root("s"), &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "), expected);
        }
    }
}
