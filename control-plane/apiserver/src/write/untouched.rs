//! The fields that a write of the status leaves alone: all but metadata and status.
//!
//! They have had their defaults since they were last written. So they are set aside while the rest of the object is
//! merged, defaulted and compared, and put back before admission sees the object. Pure.

use corten_meta::Value;
use serde_json::Map;

/// The fields of an object that a write of its status can change.
pub const CONCERNED: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];

/// The other fields of an object, set aside.
#[derive(Clone)]
pub struct Untouched(Map<String, Value>);

impl Untouched {
    /// Takes them out of the object.
    pub fn take(object: &mut Value) -> Untouched {
        let Some(fields) = object.as_object_mut() else { return Untouched(Map::new()) };
        let mut concerned = Map::new();
        for name in CONCERNED {
            concerned.extend(fields.remove_entry(name));
        }
        Untouched(std::mem::replace(fields, concerned))
    }

    /// Puts them back, or into another version of the same object.
    pub fn put_into(self, object: &mut Value) {
        if let Some(fields) = object.as_object_mut() {
            fields.extend(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use corten_api::Kind;
    use corten_api::schema::{FieldType, Type, schema};
    use serde_json::json;

    use super::*;

    /// Returns a value with every field set, up to a depth.
    fn filled(of: &FieldType, depth: usize) -> Value {
        match of {
            FieldType::Integer(_) | FieldType::Number(_) | FieldType::IntOrString => json!(1),
            FieldType::Boolean => json!(true),
            FieldType::Quantity => json!("1"),
            FieldType::Time => json!("2026-01-01T00:00:00Z"),
            FieldType::MicroTime => json!("2026-01-01T00:00:00.000000Z"),
            FieldType::Object | FieldType::Any => json!({ "a": "b" }),
            FieldType::String | FieldType::Bytes => json!("abcd"),
            FieldType::List(items) => json!([filled(items, depth)]),
            FieldType::Map(values) => json!({ "a": filled(values, depth) }),
            FieldType::Ref(id) => filled_type(schema().get(*id), depth),
        }
    }

    fn filled_type(of: &Type, depth: usize) -> Value {
        match (&of.scalar, depth.checked_sub(1)) {
            (Some(scalar), _) => filled(scalar, depth),
            (None, None) => json!({}),
            (None, Some(depth)) => {
                of.fields.iter().map(|field| (field.name.clone(), filled(&field.kind, depth))).collect()
            }
        }
    }

    fn completed(kind: &Kind, mut object: Value) -> Value {
        kind.default(&mut object);
        kind.settle(&mut object);
        object
    }

    #[test]
    fn a_status_gets_the_same_defaults_without_the_rest() {
        let mut kinds = 0;
        let spared = |kind: &&Arc<Kind>| kind.rules.has_status && !kind.rules.status_needs_spec;
        for kind in corten_api::kinds().iter().filter(spared) {
            let of = schema().type_(&kind.schema).expect("a type of the table");
            let stored = completed(kind, filled_type(of, 6));
            for status in [stored["status"].clone(), filled_type(of, 3)["status"].clone(), json!({}), Value::Null] {
                let mut object = stored.clone();
                object["status"] = status;
                let expected = completed(kind, object.clone());
                let untouched = Untouched::take(&mut object);
                kind.default(&mut object);
                drop(Untouched::take(&mut object));
                untouched.put_into(&mut object);
                kind.settle(&mut object);
                assert_eq!(object, expected, "{}", kind.kind);
            }
            kinds += 1;
        }
        assert!(kinds > 20, "only {kinds} kinds have a status");
    }
}
