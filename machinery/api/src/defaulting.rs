//! Small writers for defaulting: fill a field only when it is absent.
//!
//! "Absent" is no field or null. Zero values of fields that cannot tell them from absent are gone by then (see
//! [`crate::schema::fill_defaults`]), so an empty text that is still there was meant.
//! A writer never creates the parent of a field: where there is no parent, there is nothing to default.

use std::borrow::Cow;

use corten_meta::{Value, at, at_mut};

/// Whether the value at a JSON pointer is absent in upstream's sense.
pub(crate) fn absent(object: &Value, pointer: &str) -> bool {
    at(object, pointer).is_none_or(Value::is_null)
}

/// Fills the field at a JSON pointer when it is absent and its parent is an object.
pub(crate) fn default_at(object: &mut Value, pointer: &str, value: impl Into<Value>) {
    if absent(object, pointer) {
        put(object, pointer, value);
    }
}

/// The same for a number whose zero means absent.
pub(crate) fn default_nonzero(object: &mut Value, pointer: &str, value: i64) {
    if absent(object, pointer) || at(object, pointer).and_then(Value::as_i64) == Some(0) {
        put(object, pointer, value);
    }
}

/// Writes the field at a JSON pointer when its parent is an object.
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

/// A step of a JSON pointer as the name it stands for.
fn unescaped(step: &str) -> Cow<'_, str> {
    if step.contains('~') { step.replace("~1", "/").replace("~0", "~").into() } else { step.into() }
}

/// The items of the list at a JSON pointer, to write.
pub(crate) fn items<'a>(object: &'a mut Value, pointer: &str) -> impl Iterator<Item = &'a mut Value> {
    at_mut(object, pointer).and_then(Value::as_array_mut).into_iter().flatten()
}

/// The value at a JSON pointer when it is an object, to write.
pub(crate) fn object_at<'a>(object: &'a mut Value, pointer: &str) -> Option<&'a mut Value> {
    at_mut(object, pointer).filter(|v| v.is_object())
}
