//! Small writers for defaulting: set a field only if it is absent.
//!
//! "Absent" is no field or null. Zero values that upstream cannot distinguish from absent are removed before (see
//! [`crate::schema::fill_defaults`]), so a remaining empty string was set by the client. A writer never creates the
//! parent of a field: without a parent, there is nothing to default.

use std::borrow::Cow;

use corten_meta::{Value, at, at_mut};

/// Reports whether the value at a JSON pointer is absent in upstream's sense.
pub(crate) fn absent(object: &Value, pointer: &str) -> bool {
    at(object, pointer).is_none_or(Value::is_null)
}

/// Sets the field at a JSON pointer if it is absent and its parent is an object.
pub(crate) fn default_at(object: &mut Value, pointer: &str, value: impl Into<Value>) {
    if absent(object, pointer) {
        put(object, pointer, value);
    }
}

/// Sets a number if it is absent or zero.
pub(crate) fn default_nonzero(object: &mut Value, pointer: &str, value: i64) {
    if absent(object, pointer) || at(object, pointer).and_then(Value::as_i64) == Some(0) {
        put(object, pointer, value);
    }
}

/// Sets the field at a JSON pointer if its parent is an object.
pub(crate) fn put(object: &mut Value, pointer: &str, value: impl Into<Value>) {
    let Some((parent, name)) = pointer.rsplit_once('/') else { return };
    if let Some(parent) = at_mut(object, parent).and_then(Value::as_object_mut) {
        parent.insert(unescaped(name).into_owned(), value.into());
    }
}

/// Removes the field at a JSON pointer.
pub(crate) fn remove(object: &mut Value, pointer: &str) -> Option<Value> {
    let (parent, name) = pointer.rsplit_once('/')?;
    at_mut(object, parent)?.as_object_mut()?.remove(unescaped(name).as_ref())
}

/// Returns a step of a JSON pointer without its escapes.
fn unescaped(step: &str) -> Cow<'_, str> {
    if step.contains('~') { step.replace("~1", "/").replace("~0", "~").into() } else { step.into() }
}

/// Returns the items of the list at a JSON pointer, for writing.
pub(crate) fn items<'a>(object: &'a mut Value, pointer: &str) -> impl Iterator<Item = &'a mut Value> {
    at_mut(object, pointer).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Returns the value at a JSON pointer if it is an object, for writing.
pub(crate) fn object_at<'a>(object: &'a mut Value, pointer: &str) -> Option<&'a mut Value> {
    at_mut(object, pointer).filter(|v| v.is_object())
}
