//! Atomic lists, as upstream compares them.
//!
//! Upstream compares values field by field and ignores empty ones, but it compares an atomic list as a Go value, where
//! an empty list or map in an item differs from none. A client that sends an empty one has written the list.

use corten_meta::Value;

use super::types::{ListKind, Shape, Type};

/// Takes the atomic lists from the object as it was sent, with the empty lists and maps in their items.
pub fn take_lists(of: Type<'_>, object: &mut Value, given: &Value) {
    take(of, object, given, false);
}

fn take(of: Type<'_>, object: &mut Value, given: &Value, within_atomic: bool) {
    match (of.shape(object), object, given) {
        (Shape::Map { atomic }, Value::Object(object), Value::Object(given)) => {
            for (name, value) in object {
                let (Some(member), Some(given)) = (of.member(name), given.get(name)) else { continue };
                take(member.of, value, given, within_atomic || atomic);
            }
        }
        (Shape::List { items, kind }, Value::Array(object), Value::Array(given)) => {
            if within_atomic || matches!(kind, ListKind::Atomic) {
                object.clone_from(given);
            } else {
                object.iter_mut().zip(given).for_each(|(item, given)| take(items, item, given, false));
            }
        }
        _ => {}
    }
}
