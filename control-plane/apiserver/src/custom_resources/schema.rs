//! Structural schemas: pruning what they do not name, and filling what they default.
//!
//! Pure, on JSON. `metadata`, `apiVersion` and `kind` of the root belong to the API machinery and are left alone.

use corten_meta::Value;

/// Fields of the root (and of embedded resources) that every object has.
pub const ALWAYS: &[&str] = &["apiVersion", "kind", "metadata"];

fn preserves(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// Drops fields of an object that its schema does not name.
pub fn prune_root(schema: &Value, object: &mut Value) {
    if schema.is_object() {
        prune(Place::root(schema), object);
    }
}

/// A place in an object as pruning sees it.
#[derive(Clone, Copy)]
struct Place<'s> {
    /// Null where nothing is said of what stands here, which then may hold no fields.
    schema: &'s Value,
    is_resource: bool,
    /// Whether fields stay that nobody names.
    keeps: bool,
}

impl<'s> Place<'s> {
    fn new(schema: &'s Value) -> Place<'s> {
        Place { schema, is_resource: schema["x-kubernetes-embedded-resource"] == true, keeps: preserves(schema) }
    }

    fn root(schema: &'s Value) -> Place<'s> {
        Place { is_resource: true, ..Place::new(schema) }
    }

    fn field(self, name: &str) -> Field<'s> {
        let additional = &self.schema["additionalProperties"];
        match self.schema["properties"].get(name) {
            _ if self.is_resource && ALWAYS.contains(&name) => Field::Left,
            Some(schema) => Field::Known(Place::new(schema)),
            None if additional.is_object() => Field::Known(Place::new(additional)),
            // A field of any name is there, but nothing is said of what it holds.
            None if additional.is_boolean() => Field::Known(Place::new(&Value::Null)),
            None if self.keeps => Field::Left,
            None => Field::Unknown,
        }
    }

    /// The items of a list that keeps everything keep everything too.
    fn items(self) -> Option<Place<'s>> {
        let items = Place::new(&self.schema["items"]);
        (!self.keeps || items.schema.is_object()).then_some(Place { keeps: self.keeps || items.keeps, ..items })
    }
}

/// What becomes of a field.
enum Field<'s> {
    Left,
    Known(Place<'s>),
    Unknown,
}

fn prune(place: Place<'_>, value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|name, value| match place.field(name) {
            Field::Left => true,
            Field::Known(inner) => {
                prune(inner, value);
                true
            }
            Field::Unknown => false,
        }),
        Value::Array(items) => {
            if let Some(inner) = place.items() {
                items.iter_mut().for_each(|item| prune(inner, item));
            }
        }
        _ => {}
    }
}

/// The paths of fields that pruning would drop, `metadata` aside, in their order as texts.
pub fn unknown_fields(schema: &Value, object: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    if schema.is_object() {
        find_unknown(Place::root(schema), object, "", &mut unknown);
    }
    unknown.sort_unstable();
    unknown
}

fn find_unknown(place: Place<'_>, value: &Value, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let path = || if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match place.field(name) {
                    Field::Left => {}
                    Field::Known(inner) => find_unknown(inner, value, &path(), unknown),
                    Field::Unknown => unknown.push(path()),
                }
            }
        }
        Value::Array(items) => {
            let Some(inner) = place.items() else { return };
            for (index, item) in items.iter().enumerate() {
                find_unknown(inner, item, &format!("{path}[{index}]"), unknown);
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

    #[test]
    fn what_is_pruned_follows_from_the_schema_of_its_place() {
        let known = json!({ "type": "object", "properties": { "k": { "type": "string" } } });
        let keeping = |mut schema: Value| {
            schema["x-kubernetes-preserve-unknown-fields"] = true.into();
            schema
        };
        let embedded = json!({ "type": "object", "x-kubernetes-embedded-resource": true });
        let table = [
            // Fields of any name may be there, but nothing that they would hold.
            (json!({ "additionalProperties": true }), json!({ "x": 1, "y": { "z": 1 } }), json!({ "x": 1, "y": {} })),
            (json!({ "additionalProperties": false }), json!({ "x": 1 }), json!({ "x": 1 })),
            (json!({ "type": "array" }), json!([{ "x": 1 }]), json!([{}])),
            (keeping(json!({ "type": "array" })), json!([{ "x": 1 }]), json!([{ "x": 1 }])),
            (keeping(json!({ "items": known })), json!([{ "x": 1, "k": "" }]), json!([{ "x": 1, "k": "" }])),
            (
                keeping(json!({ "properties": { "p": known } })),
                json!({ "x": 1, "p": { "x": 1 } }),
                json!({ "x": 1, "p": {} }),
            ),
            (json!({ "items": embedded }), json!([{ "kind": "K", "x": 1 }]), json!([{ "kind": "K" }])),
            (
                json!({ "additionalProperties": embedded }),
                json!({ "a": { "kind": "K" } }),
                json!({ "a": { "kind": "K" } }),
            ),
        ];
        for (schema, given, wanted) in table {
            let root = json!({ "properties": { "spec": schema } });
            let mut object = json!({ "spec": given });
            let is_changed = given != wanted;
            assert_eq!(!unknown_fields(&root, &object).is_empty(), is_changed, "{schema}");
            prune_root(&root, &mut object);
            assert_eq!(object["spec"], wanted, "{schema}");
        }
        let object = json!({ "spec": { "v": { "unk": 1 }, "unk": 1, "a": 1 } });
        let root = json!({ "properties": { "spec": { "properties": { "v": {} } } } });
        assert_eq!(unknown_fields(&root, &object), ["spec.a", "spec.unk", "spec.v.unk"]);
    }
}
