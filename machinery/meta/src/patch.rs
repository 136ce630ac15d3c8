//! JSON patch (RFC 6902) and JSON merge patch (RFC 7396) as the API server applies them.
//!
//! JSON patch follows the corner cases of upstream's library: negative array indexes count from the end, `replace` may
//! create a member, `copy` of an absent one writes null, `test` of an absent one against null passes. A failing
//! operation changes nothing. Strategic merge patch needs the schema and lives with it.

use crate::Error;
use serde_json::{Map, Value};

/// Applies an RFC 7396 merge patch. As in upstream's library, a list that is new to the document loses the nulls in its
/// objects, and one that replaces an object keeps them.
pub fn merge_patch(target: &mut Value, patch: &Value) {
    match (&mut *target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    target.remove(key);
                } else {
                    merge_patch(target.entry(key.as_str()).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Object(_), _) => *target = patch.clone(),
        _ => {
            *target = patch.clone();
            discard_nulls(target);
        }
    }
}

/// Removes every field that is null, at any depth; items of lists stay.
pub fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, inner| !inner.is_null());
            map.values_mut().for_each(discard_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// Returns the merge patch that turns `from` into `to`.
pub fn merge_diff(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return to.clone();
    };
    let mut patch = Map::new();
    for key in from.keys().filter(|key| !to.contains_key(key.as_str())) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in to {
        match from.get(key) {
            Some(old) if old == value => {}
            Some(old @ Value::Object(_)) if value.is_object() => {
                patch.insert(key.clone(), merge_diff(old, value));
            }
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

/// Applies a JSON patch, all of it or nothing. A malformed patch is [`Error::BadPatch`], one that does not apply
/// [`Error::PatchFailed`].
pub fn json_patch(target: &mut Value, patch: &Value) -> Result<(), Error> {
    let operations = patch
        .as_array()
        .ok_or_else(|| Error::BadPatch("json: cannot unmarshal object into Go value of type jsonpatch.Patch".into()))?;
    let mut result = target.clone();
    for operation in operations {
        apply(&mut result, operation)?;
    }
    *target = result;
    Ok(())
}

fn apply(document: &mut Value, operation: &Value) -> Result<(), Error> {
    let Some(operation) = operation.as_object() else {
        return Err(Error::BadPatch("json: cannot unmarshal value into Go value of type jsonpatch.Operation".into()));
    };
    let kind = operation.get("op").and_then(Value::as_str).unwrap_or_default();
    let text = |field: &str| operation.get(field).and_then(Value::as_str);
    let path = || text("path").ok_or_else(|| failed(format!("{kind} operation failed to decode path: missing value")));
    let from = || text("from").ok_or_else(|| failed(format!("{kind} operation failed to decode from: missing value")));
    let value = || operation.get("value").cloned().unwrap_or(Value::Null);
    match kind {
        "add" => add(document, "add", path()?, value()),
        "remove" => remove(document, "remove", path()?).map(|_| ()),
        "replace" => replace(document, path()?, value()),
        "move" => {
            let moved = remove(document, "move", from()?)?;
            add(document, "move", path()?, moved)
        }
        "copy" => {
            let copied =
                find(document, from()?).ok_or_else(|| missing("copy", "from path", from().unwrap_or_default()))?;
            add(document, "copy", path()?, copied)
        }
        "test" => test(document, path()?, &value()),
        other => Err(failed(format!("Unexpected kind: {other}"))),
    }
}

fn failed(text: String) -> Error {
    Error::PatchFailed(text)
}

fn missing(operation: &str, what: &str, path: &str) -> Error {
    failed(format!("{operation} operation does not apply: doc is missing {what}: {path}: missing value"))
}

/// Makes the error about a missing container. Only two of upstream's messages quote the path.
fn missing_container(operation: &str, role: &str, path: &str) -> Error {
    match operation {
        "add" | "remove" => missing(operation, "path", &format!("\"{path}\"")),
        _ => missing(operation, role, path),
    }
}

/// Returns the container of a path's last step, and that step.
fn container<'a>(document: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let mut steps: Vec<String> = path.split('/').skip(1).map(decode_step).collect();
    let last = steps.pop()?;
    let mut here = document;
    for step in steps {
        here = match here {
            Value::Object(map) => map.get_mut(&step)?,
            Value::Array(items) => {
                let index = index_of(&step, items.len())?;
                items.get_mut(index)?
            }
            _ => return None,
        };
    }
    (here.is_object() || here.is_array()).then_some((here, last))
}

fn decode_step(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

/// Returns an index below `length`; negative ones count from the end.
fn index_of(step: &str, length: usize) -> Option<usize> {
    let index: i64 = step.parse().ok()?;
    let length = i64::try_from(length).ok()?;
    let index = if index < 0 { index + length } else { index };
    (0..length).contains(&index).then_some(index as usize)
}

/// Returns the value at a path; an absent member of an object is null.
fn find(document: &mut Value, path: &str) -> Option<Value> {
    match container(document, path)? {
        (Value::Object(map), key) => Some(map.get(&key).cloned().unwrap_or_default()),
        (Value::Array(items), step) => index_of(&step, items.len()).and_then(|index| items.get(index)).cloned(),
        _ => None,
    }
}

fn add(document: &mut Value, operation: &str, path: &str, value: Value) -> Result<(), Error> {
    match container(document, path) {
        Some((Value::Object(map), key)) => {
            map.insert(key, value);
            Ok(())
        }
        Some((Value::Array(items), step)) => {
            if step == "-" {
                items.push(value);
                return Ok(());
            }
            let index = index_of(&step, items.len() + 1).ok_or_else(|| {
                failed(format!("error in {operation} for path: '{path}': Unable to access invalid index: {step}: invalid index referenced"))
            })?;
            items.insert(index, value);
            Ok(())
        }
        _ => Err(missing_container(operation, "destination path", path)),
    }
}

fn remove(document: &mut Value, operation: &str, path: &str) -> Result<Value, Error> {
    match container(document, path) {
        Some((Value::Object(map), key)) => map.remove(&key).ok_or_else(|| {
            failed(format!(
                "error in {operation} for path: '{path}': Unable to remove nonexistent key: {key}: missing value"
            ))
        }),
        Some((Value::Array(items), step)) => match index_of(&step, items.len()) {
            Some(index) => Ok(items.remove(index)),
            None => Err(failed(format!(
                "error in {operation} for path: '{path}': Unable to access invalid index: {step}: invalid index referenced"
            ))),
        },
        _ => Err(missing_container(operation, "from path", path)),
    }
}

fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), Error> {
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            return Err(failed("replace operation value must be object or array".into()));
        }
        *document = value;
        return Ok(());
    }
    match container(document, path) {
        Some((Value::Object(map), key)) => {
            map.insert(key, value);
            Ok(())
        }
        Some((Value::Array(items), step)) => {
            let index = index_of(&step, items.len()).ok_or_else(|| missing("replace", "key", path))?;
            items[index] = value;
            Ok(())
        }
        _ => Err(missing("replace", "path", path)),
    }
}

fn test(document: &mut Value, path: &str, expected: &Value) -> Result<(), Error> {
    let different = || Error::PatchTestFailed(format!("testing value {path} failed: test failed"));
    if path.is_empty() {
        return if document == expected { Ok(()) } else { Err(different()) };
    }
    let actual = match container(document, path) {
        Some((Value::Object(map), key)) => map.get(&key).unwrap_or(&Value::Null),
        Some((Value::Array(items), step)) => match index_of(&step, items.len()) {
            Some(index) => &items[index],
            None => {
                return Err(failed(format!(
                    "error in test for path: '{path}': Unable to access invalid index: {step}: invalid index referenced"
                )));
            }
        },
        _ => return Err(failed(format!("test operation does not apply: is missing path: {path}: missing value"))),
    };
    if actual == expected { Ok(()) } else { Err(different()) }
}
