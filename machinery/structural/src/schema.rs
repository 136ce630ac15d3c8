//! Structural schemas: they prune unspecified fields, and set defaults.
//!
//! Pure, on JSON. `metadata`, `apiVersion` and `kind` of the root belong to the API machinery and are left alone.

use corten_meta::Value;

/// Fields of the root (and of embedded resources) that every object has.
pub const ALWAYS: &[&str] = &["apiVersion", "kind", "metadata"];

fn preserves(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// Removes fields of an object that its schema does not specify.
pub fn prune_root(schema: &Value, object: &mut Value) {
    if schema.is_object() {
        prune(Position::root(schema), object);
    }
}

/// A position in an object during pruning.
#[derive(Clone, Copy)]
struct Position<'s> {
    /// The schema, or null if it is unspecified: then an object here keeps no fields.
    schema: &'s Value,
    is_resource: bool,
    /// Whether unspecified fields are preserved.
    preserves_unknown: bool,
}

impl<'s> Position<'s> {
    fn new(schema: &'s Value) -> Position<'s> {
        Position {
            schema,
            is_resource: schema["x-kubernetes-embedded-resource"] == true,
            preserves_unknown: preserves(schema),
        }
    }

    fn root(schema: &'s Value) -> Position<'s> {
        Position { is_resource: true, ..Position::new(schema) }
    }

    fn field(self, name: &str) -> Field<'s> {
        let additional = &self.schema["additionalProperties"];
        match self.schema["properties"].get(name) {
            _ if self.is_resource && ALWAYS.contains(&name) => Field::Left,
            Some(schema) => Field::Known(Position::new(schema)),
            None if additional.is_object() => Field::Known(Position::new(additional)),
            // A field of any name is allowed, but its contents are unspecified.
            None if additional.is_boolean() => Field::Known(Position::new(&Value::Null)),
            None if self.preserves_unknown => Field::Left,
            None => Field::Unknown,
        }
    }

    /// Returns the position of a list's items, which preserve fields if the list does.
    fn items(self) -> Option<Position<'s>> {
        let items = Position::new(&self.schema["items"]);
        (!self.preserves_unknown || items.schema.is_object())
            .then_some(Position { preserves_unknown: self.preserves_unknown || items.preserves_unknown, ..items })
    }
}

/// The treatment of a field.
enum Field<'s> {
    Left,
    Known(Position<'s>),
    Unknown,
}

fn prune(position: Position<'_>, value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|name, value| match position.field(name) {
            Field::Left => true,
            Field::Known(inner) => {
                prune(inner, value);
                true
            }
            Field::Unknown => false,
        }),
        Value::Array(items) => {
            if let Some(inner) = position.items() {
                items.iter_mut().for_each(|item| prune(inner, item));
            }
        }
        _ => {}
    }
}

/// Returns the sorted paths of fields that pruning would remove, except those of `metadata`.
pub fn unknown_fields(schema: &Value, object: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    if schema.is_object() {
        find_unknown(Position::root(schema), object, "", &mut unknown);
    }
    unknown.sort_unstable();
    unknown
}

fn find_unknown(position: Position<'_>, value: &Value, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let path = || if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match position.field(name) {
                    Field::Left => {}
                    Field::Known(inner) => find_unknown(inner, value, &path(), unknown),
                    Field::Unknown => unknown.push(path()),
                }
            }
        }
        Value::Array(items) => {
            let Some(inner) = position.items() else { return };
            for (index, item) in items.iter().enumerate() {
                find_unknown(inner, item, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Removes null fields that are not nullable; those with a default get it afterwards.
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

/// Sets the defaults of absent fields.
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
    fn unknown_fields_are_pruned_and_defaults_set() {
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
    fn nulls_are_pruned_where_they_are_not_nullable() {
        let schema = json!({ "properties": {
            "a": { "type": "string" }, "b": { "type": "string", "nullable": true }, "c": { "type": "string", "default": "x" },
            "l": { "type": "array", "items": { "type": "string" } }, "m": { "additionalProperties": { "type": "string" } } } });
        let mut object = json!({ "a": null, "b": null, "c": null, "l": [null], "m": { "x": null }, "other": null });
        prune_nulls(&schema, &mut object);
        assert_eq!(object, json!({ "b": null, "c": null, "l": [null], "m": {}, "other": null }));
    }

    #[test]
    fn unknown_fields_are_reported() {
        let object = json!({ "kind": "K", "metadata": { "x": 1 }, "extra": 1,
            "spec": { "odd": true, "any": { "kept": 1 }, "labels": { "l": "v" } } });
        assert_eq!(unknown_fields(&schema(), &object), ["extra", "spec.odd"]);
        assert!(unknown_fields(&Value::Null, &object).is_empty());
    }

    #[test]
    fn the_schema_at_each_position_decides_what_is_pruned() {
        let known = json!({ "type": "object", "properties": { "k": { "type": "string" } } });
        let keeping = |mut schema: Value| {
            schema["x-kubernetes-preserve-unknown-fields"] = true.into();
            schema
        };
        let embedded = json!({ "type": "object", "x-kubernetes-embedded-resource": true });
        let table = [
            // Fields of any name are allowed, but none inside them.
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
        for (schema, spec, wanted) in table {
            let root = json!({ "properties": { "spec": schema } });
            let mut object = json!({ "spec": spec });
            let is_changed = spec != wanted;
            assert_eq!(!unknown_fields(&root, &object).is_empty(), is_changed, "{schema}");
            prune_root(&root, &mut object);
            assert_eq!(object["spec"], wanted, "{schema}");
        }
        let object = json!({ "spec": { "v": { "unk": 1 }, "unk": 1, "a": 1 } });
        let root = json!({ "properties": { "spec": { "properties": { "v": {} } } } });
        assert_eq!(unknown_fields(&root, &object), ["spec.a", "spec.unk", "spec.v.unk"]);
    }
}
