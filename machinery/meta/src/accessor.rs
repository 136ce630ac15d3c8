//! Accessors for the metadata of an object held as a [`Value`]. A field of an unexpected shape reads as absent; nothing
//! panics.

use crate::owner::Owner;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Returns `metadata.name`, or "".
pub fn name(object: &Value) -> &str {
    string(object, "name")
}

/// Returns `metadata.namespace`, or "".
pub fn namespace(object: &Value) -> &str {
    string(object, "namespace")
}

/// Returns `metadata.uid`, or "".
pub fn uid(object: &Value) -> &str {
    string(object, "uid")
}

/// Returns `metadata.resourceVersion`, or "".
pub fn resource_version(object: &Value) -> &str {
    string(object, "resourceVersion")
}

/// Returns `metadata.deletionTimestamp` if it is set.
pub fn deletion_timestamp(object: &Value) -> Option<&str> {
    Some(string(object, "deletionTimestamp")).filter(|t| !t.is_empty())
}

/// Returns `metadata.generation`, or 0.
pub fn generation(object: &Value) -> i64 {
    object.get("metadata").and_then(|m| m.get("generation")).and_then(Value::as_i64).unwrap_or(0)
}

/// Returns `metadata.labels`.
pub fn labels(object: &Value) -> BTreeMap<String, String> {
    string_map(object, "labels")
}

/// Returns `metadata.annotations`.
pub fn annotations(object: &Value) -> BTreeMap<String, String> {
    string_map(object, "annotations")
}

/// Returns `metadata.finalizers`.
pub fn finalizers(object: &Value) -> Vec<&str> {
    list(object, "finalizers").iter().filter_map(Value::as_str).collect()
}

/// Returns `metadata.ownerReferences`.
pub fn owner_references(object: &Value) -> Vec<Owner> {
    let word = |o: &Value, key: &str| o.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let flag = |o: &Value, key: &str| o.get(key).and_then(Value::as_bool).unwrap_or(false);
    list(object, "ownerReferences")
        .iter()
        .filter(|o| o.is_object())
        .map(|o| Owner {
            api_version: word(o, "apiVersion"),
            kind: word(o, "kind"),
            name: word(o, "name"),
            uid: word(o, "uid"),
            controller: flag(o, "controller"),
            block_owner_deletion: flag(o, "blockOwnerDeletion"),
        })
        .collect()
}

/// Returns the value at a JSON pointer. A pointer without escapes, as the names of Kubernetes' fields have none, takes
/// a faster path.
pub fn at<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    let Some(steps) = plain(pointer) else { return object.pointer(pointer) };
    steps.split('/').try_fold(object, |here, step| match here {
        Value::Object(map) => map.get(step),
        Value::Array(_) => here.pointer(&["/", step].concat()),
        _ => None,
    })
}

/// Returns the value at a JSON pointer, as [`at`] does, for writing.
pub fn at_mut<'a>(object: &'a mut Value, pointer: &str) -> Option<&'a mut Value> {
    let Some(steps) = plain(pointer) else { return object.pointer_mut(pointer) };
    steps.split('/').try_fold(object, |here, step| match here {
        Value::Object(map) => map.get_mut(step),
        Value::Array(_) => here.pointer_mut(&["/", step].concat()),
        _ => None,
    })
}

/// Returns the steps of a pointer that has at least one step and no escapes.
fn plain(pointer: &str) -> Option<&str> {
    pointer.strip_prefix('/').filter(|steps| !steps.contains('~'))
}

/// Sets `value` at a JSON pointer and creates missing objects. Replaces a scalar or null on the way by an object.
/// Enters an array if the step is one of its indexes, and leaves the array alone otherwise.
pub fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut here = object;
    for step in pointer.split('/').skip(1) {
        let entered = match step.contains('~') {
            true => enter(here, &step.replace("~1", "/").replace("~0", "~")),
            false => enter(here, step),
        };
        match entered {
            Some(next) => here = next,
            None => return,
        }
    }
    *here = value;
}

/// Returns the field or element `step` of `here`, and creates the field if it is absent.
fn enter<'a>(here: &'a mut Value, step: &str) -> Option<&'a mut Value> {
    if here.is_array() {
        return step.parse::<usize>().ok().and_then(|index| here.get_mut(index));
    }
    if !here.is_object() {
        *here = Value::Object(Map::new());
    }
    let map = here.as_object_mut()?;
    // `Map::entry` copies the key even if the field exists.
    if !map.contains_key(step) {
        map.insert(step.to_owned(), Value::Null);
    }
    map.get_mut(step)
}

fn string<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn string_map(object: &Value, field: &str) -> BTreeMap<String, String> {
    let Some(map) = object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_object) else {
        return BTreeMap::new();
    };
    map.iter().filter_map(|(k, v)| v.as_str().map(|v| (k.clone(), v.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_metadata() {
        let pod = json!({"metadata": {"name": "web", "namespace": "prod", "uid": "u", "resourceVersion": "7",
            "generation": 3, "labels": {"app": "web", "odd": 1}, "finalizers": ["a/b"],
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "o", "controller": true}]}});
        assert_eq!((name(&pod), namespace(&pod), uid(&pod), resource_version(&pod)), ("web", "prod", "u", "7"));
        assert_eq!(generation(&pod), 3);
        assert_eq!(labels(&pod), BTreeMap::from([("app".to_owned(), "web".to_owned())]));
        assert_eq!(finalizers(&pod), ["a/b"]);
        assert_eq!(deletion_timestamp(&pod), None);
        let owners = owner_references(&pod);
        assert!(owners[0].controller && owners[0].uid == "o");
    }

    #[test]
    fn fields_of_unexpected_shapes_are_absent() {
        for odd in [json!(null), json!(3), json!({"metadata": []}), json!({"metadata": {"name": 4, "labels": "x"}})] {
            assert_eq!(name(&odd), "");
            assert!(labels(&odd).is_empty() && owner_references(&odd).is_empty() && finalizers(&odd).is_empty());
        }
    }

    #[test]
    fn pointers_resolve_to_their_values() {
        let value = json!({"a": {"b": [{"c": 1}], "x/y": 2, "t~": 3, "": 4}, "0": 5});
        for pointer in [
            "",
            "a",
            "/a",
            "/a/b",
            "/a/b/0/c",
            "/a/b/00",
            "/a/b/+0",
            "/a/b/9",
            "/a/x~1y",
            "/a/t~0",
            "/a/",
            "/0",
            "/",
            "/a/b/0/c/d",
        ] {
            assert_eq!(at(&value, pointer), value.pointer(pointer), "{pointer:?}");
            assert_eq!(at_mut(&mut value.clone(), pointer), value.clone().pointer_mut(pointer), "{pointer:?}");
        }
    }

    #[test]
    fn set_creates_missing_objects() {
        let mut v = json!({"list": [{"a": 1}], "scalar": 1});
        set(&mut v, "/spec/template/x~1y", json!(5));
        set(&mut v, "/list/0/a", json!(2));
        set(&mut v, "/list/9/a", json!(2));
        set(&mut v, "/scalar/b", json!(true));
        assert_eq!(v, json!({"list": [{"a": 2}], "scalar": {"b": true}, "spec": {"template": {"x/y": 5}}}));
    }
}
