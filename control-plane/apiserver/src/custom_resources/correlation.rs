//! What a value was before: a schema may be tightened under objects that would no longer pass, so what did not change is
//! not refused. Pure.
//!
//! Only what the schema knows can be followed into the past. A value that holds a field of which the schema says nothing
//! counts as changed, and so does every whole object: of its metadata no schema says all.

use corten_meta::Value;

/// The schema of a field, if it is known.
pub fn field<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    let known = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
    known.filter(|schema| schema.is_object())
}

/// The fields by which the items of a list are known.
pub fn list_keys(schema: &Value) -> Vec<&str> {
    let is_map = schema["x-kubernetes-list-type"] == "map";
    let keys = schema["x-kubernetes-list-map-keys"].as_array().filter(|_| is_map).into_iter().flatten();
    keys.filter_map(Value::as_str).collect()
}

/// The item of the old list that has the same keys; items of other lists have no past.
pub fn item<'a>(keys: &[&str], item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    if keys.is_empty() {
        return None;
    }
    let same = |other: &&Value| keys.iter().all(|key| other.get(key) == item.get(key));
    old?.as_array()?.iter().find(same)
}

/// Whether a value is what it was.
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
    fn what_the_schema_does_not_know_counts_as_changed() {
        let text = json!({ "type": "string" });
        let known = json!({ "properties": { "a": text, "b": text } });
        let list = json!({ "items": known, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"] });
        let unit = json!({ "items": known, "x-kubernetes-list-type": "atomic" });
        let a = json!({ "a": "1", "b": "2" });
        let other = json!({ "a": "2" });
        let strange = json!({ "a": "1", "c": 3 });
        for (schema, new, old, wanted) in [
            (&known, a.clone(), a.clone(), true),
            (&known, a.clone(), other.clone(), false),
            (&known, strange.clone(), strange.clone(), false),
            (&json!({ "additionalProperties": text }), strange.clone(), strange.clone(), true),
            (&json!({ "additionalProperties": true }), strange.clone(), strange.clone(), false),
            // Items that have keys may stand in another order.
            (&list, json!([a, other]), json!([other, a]), true),
            (&list, json!([strange]), json!([strange]), false),
            // Other lists are compared as a whole.
            (&unit, json!([a, other]), json!([other, a]), false),
            (&unit, json!([strange]), json!([strange]), true),
            (&known, json!({ "a": null }), json!({ "a": null }), true),
            (&text, json!("x"), json!("x"), true),
        ] {
            assert_eq!(is_unchanged(schema, &new, &old), wanted, "{schema} {new} {old}");
        }
    }
}
