//! Correlation of a value with its old value (ratcheting): a CRD may tighten its schema while stored objects violate
//! it, so an unchanged value is not refused. Pure.
//!
//! Only values that the schema specifies can be correlated. A value with an unspecified field counts as changed, and so
//! does every complete object: no schema specifies all its metadata.

use corten_meta::Value;

/// Returns the schema of a field, if it is specified.
pub fn field<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    let known = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
    known.filter(|schema| schema.is_object())
}

/// Returns the map keys of a list's items.
pub fn list_keys(schema: &Value) -> Vec<&str> {
    let is_map = schema["x-kubernetes-list-type"] == "map";
    let keys = schema["x-kubernetes-list-map-keys"].as_array().filter(|_| is_map).into_iter().flatten();
    keys.filter_map(Value::as_str).collect()
}

/// Returns the item of the old list that has the same keys; items of other lists have no old value.
pub fn item<'a>(keys: &[&str], item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    if keys.is_empty() {
        return None;
    }
    let same = |other: &&Value| keys.iter().all(|key| other.get(key) == item.get(key));
    old?.as_array()?.iter().find(same)
}

/// Reports whether a value is unchanged.
pub fn is_unchanged(schema: &Value, new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Array(items), Value::Array(before)) => {
            let keys = list_keys(schema);
            if keys.is_empty() {
                return items == before;
            }
            let is_same = |one: &Value| {
                item(&keys, one, Some(old)).is_some_and(|before| is_unchanged(&schema["items"], one, before))
            };
            items.len() == before.len() && items.iter().all(is_same)
        }
        (Value::Object(fields), Value::Object(before)) => {
            let is_same = |(name, value): (&String, &Value)| match (field(schema, name), before.get(name)) {
                (Some(schema), Some(before)) => is_unchanged(schema, value, before),
                _ => false,
            };
            fields.len() == before.len() && fields.iter().all(is_same)
        }
        _ => new == old,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_with_unspecified_fields_counts_as_changed() {
        let string = json!({ "type": "string" });
        let known = json!({ "properties": { "a": string, "b": string } });
        let list = json!({ "items": known, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"] });
        let unit = json!({ "items": known, "x-kubernetes-list-type": "atomic" });
        let a = json!({ "a": "1", "b": "2" });
        let other = json!({ "a": "2" });
        let strange = json!({ "a": "1", "c": 3 });
        for (schema, new, old, wanted) in [
            (&known, a.clone(), a.clone(), true),
            (&known, a.clone(), other.clone(), false),
            (&known, strange.clone(), strange.clone(), false),
            (&json!({ "additionalProperties": string }), strange.clone(), strange.clone(), true),
            (&json!({ "additionalProperties": true }), strange.clone(), strange.clone(), false),
            // Items with keys may be in another order.
            (&list, json!([a, other]), json!([other, a]), true),
            (&list, json!([strange]), json!([strange]), false),
            // Other lists are compared as a unit.
            (&unit, json!([a, other]), json!([other, a]), false),
            (&unit, json!([strange]), json!([strange]), true),
            (&known, json!({ "a": null }), json!({ "a": null }), true),
            (&string, json!("x"), json!("x"), true),
        ] {
            assert_eq!(is_unchanged(schema, &new, &old), wanted, "{schema} {new} {old}");
        }
    }
}
