//! Fields of objects that are read as JSON.

use corten_meta::{Key, Value};

pub fn key(object: &Value) -> Key {
    Key::new(corten_meta::namespace(object), corten_meta::name(object))
}

pub fn string<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub fn list<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Reports whether the Ready condition of a node is true.
pub fn is_ready(node: &Value) -> bool {
    list(node, "/status/conditions").any(|one| one["type"] == "Ready" && one["status"] == "True")
}
