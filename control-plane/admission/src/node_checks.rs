//! Checks that the rules about nodes share.

use corten_meta::Value;

/// `Ok`, or the reason of the refusal.
pub type Checked = Result<(), String>;

pub fn only(holds: bool, why: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(why()) }
}

/// Reports whether two objects have the same value at the pointer; absent and empty values are the same.
pub fn same(old: &Value, new: &Value, pointer: &str) -> bool {
    let read = |object: &Value| object.pointer(pointer).filter(|v| !is_empty(v)).cloned();
    read(old) == read(new)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
