//! Strategic merge patch: a merge that knows which lists are maps.
//!
//! Lists with a merge key are merged item by item, other lists are replaced; the directives `$patch`, `$retainKeys`,
//! `$setElementOrder/<list>` and `$deleteFromPrimitiveList/<list>` refine it. The schema table has the merge keys. A
//! directive counts only where there is something to merge: in a value that is new to the object all but `$patch` are
//! plain, unknown fields. Invariant: a failed merge leaves no half-merged object behind, because the caller's object is
//! only written at the end. The merge consumes the patch: upstream's errors show the rest of it.

mod lists;
mod position;

use corten_meta::Value;
use corten_meta::go::printed;
use corten_meta::patch::discard_nulls;
use serde_json::Map;

use crate::Error;
use crate::schema::schema;
use lists::{ListMerge, Order, element_kind, interleaved, merge_list};
use position::{Position, go_kind};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList";

/// Applies `patch` to an object of the named type.
pub fn strategic_merge(type_name: &str, original: &mut Value, patch: &Value) -> Result<(), Error> {
    *original = strategically_merged(type_name, original.clone(), &mut patch.clone())?;
    Ok(())
}

/// Applies a patch as [`strategic_merge`] does, to an object that it consumes; the patch is left as upstream's errors
/// show it.
pub fn strategically_merged(type_name: &str, original: Value, patch: &mut Value) -> Result<Value, Error> {
    let root = schema().type_(type_name).ok_or_else(|| Error::UnknownType(type_name.to_string()))?;
    let Value::Object(patch) = patch else {
        return Err(Error::PatchFormat("invalid JSON document"));
    };
    let target = if let Value::Object(target) = original { target } else { Map::new() };
    Ok(Value::Object(merge_map(target, patch, Position::root(root))?))
}

fn merge_map(
    mut original: Map<String, Value>,
    patch: &mut Map<String, Value>,
    position: Position,
) -> Result<Map<String, Value>, Error> {
    if let Some(directive) = patch.get(PATCH) {
        return match directive.as_str() {
            Some("replace") => {
                patch.remove(PATCH);
                Ok(patch.clone())
            }
            Some("delete") => Ok(Map::new()),
            _ => Err(unknown_patch(directive, patch)),
        };
    }
    apply_retain_keys(&mut original, patch)?;
    apply_element_orders(&mut original, patch, position)?;
    for (key, value) in patch.iter_mut() {
        merge_entry(&mut original, key, value, position)?;
    }
    Ok(original)
}

fn unknown_patch(directive: &Value, patch: &Map<String, Value>) -> Error {
    let patch = printed(&Value::Object(patch.clone()));
    error(format!("unknown patch type: {} in map: {patch}", as_text(directive)))
}

fn merge_entry(
    original: &mut Map<String, Value>,
    key: &str,
    patch: &mut Value,
    position: Position,
) -> Result<(), Error> {
    let (key, deletes) = match key.strip_prefix(DELETE_PRIMITIVES) {
        Some(rest) => match rest.strip_prefix('/') {
            Some("") => (key, true),
            Some(list) => (list, true),
            None => return Err(Error::PatchFormat("invalid patch format of primitive list")),
        },
        None => (key, false),
    };
    if patch.is_null() {
        original.remove(key);
        return Ok(());
    }
    let finds = original.get(key).is_some_and(|old| go_kind(old) == go_kind(patch));
    match (original.get_mut(key), patch) {
        (Some(Value::Object(old)), Value::Object(new)) => {
            let (field, inner) = position.map_field(key)?;
            let merged = match field.strategy() {
                Some("replace") => new.clone(),
                _ => merge_map(std::mem::take(old), new, inner)?,
            };
            *old = merged;
        }
        (Some(Value::Array(old)), Value::Array(new)) => {
            let (field, items) = position.list_field(key)?;
            let how = ListMerge { key: field.merge_key(), items, deletes };
            *old = match deletes || field.strategy() == Some("merge") {
                true => merge_list(std::mem::take(old), new, how)?,
                false => new.clone(),
            };
        }
        // A list of deletions matches nothing here.
        _ if deletes && !finds => {}
        (_, new) => {
            discard_nulls(new);
            match without_directives(new) {
                true => original.insert(key.to_string(), new.clone()),
                false => original.remove(key),
            };
        }
    }
    Ok(())
}

/// Applies `$retainKeys`: removes every field that is not listed.
fn apply_retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), Error> {
    const BAD: Error = Error::PatchFormat("invalid patch format of retainKeys");
    let Some(listed) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let listed = listed.as_array().ok_or(BAD)?;
    let retained = |key: &str| listed.iter().any(|l| l.as_str() == Some(key));
    for (key, value) in patch.iter() {
        let directive = key.starts_with(SET_ORDER) || key.starts_with(DELETE_PRIMITIVES);
        if !value.is_null() && !directive && !retained(key) {
            return Err(BAD);
        }
    }
    original.retain(|key, _| retained(key));
    Ok(())
}

/// Applies `$setElementOrder/<list>`: merges the list, then orders its items.
fn apply_element_orders(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    position: Position,
) -> Result<(), Error> {
    let directives: Vec<String> = patch.keys().filter(|k| k.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let order = patch.remove(&directive).unwrap_or_default();
        let Value::Array(order) = order else {
            return Err(kind_mismatch("[]interface {}", &order));
        };
        let list = directive.strip_prefix(SET_ORDER).and_then(|rest| rest.strip_prefix('/'));
        let list = list.ok_or(Error::PatchFormat("invalid patch format of setElementOrder list"))?;
        for side in [&*original, &*patch] {
            if let Some(other) = side.get(list).filter(|value| !value.is_array()) {
                return Err(kind_mismatch("[]interface {}", other));
            }
        }
        let (field, items) = position.list_field(list)?;
        let key = field.merge_key();
        let new = patch.get_mut(list).and_then(Value::as_array_mut);
        lists::check_order(new.as_deref().map_or(&[], Vec::as_slice), &order, key)?;
        let server = original.get(list).and_then(Value::as_array).cloned();
        let added = new.as_deref().cloned().unwrap_or_default();
        let merged = match (&server, new) {
            (None, None) => continue,
            (Some(server), None) => server.clone(),
            (None, Some(new)) => {
                new.retain_mut(without_directives);
                new.clone()
            }
            (Some(server), Some(new)) if field.strategy() == Some("merge") => {
                merge_list(server.clone(), new, ListMerge { key, items, deletes: false })?
            }
            (Some(_), Some(new)) => new.clone(),
        };
        let server = server.unwrap_or_default();
        let kind = element_kind(&[server.as_slice(), added.as_slice()])?;
        let ordered = interleaved(merged, Order { patch: &order, server: &server, key, maps: kind == position::MAP })?;
        original.insert(list.to_string(), Value::Array(ordered));
        patch.remove(list);
    }
    Ok(())
}

/// Removes the directives of a value that is new to the object; `false` if the value is a deletion itself.
fn without_directives(value: &mut Value) -> bool {
    match value {
        Value::Object(map) => {
            if map.contains_key(PATCH) {
                return false;
            }
            map.retain(|_, inner| without_directives(inner));
        }
        Value::Array(list) => list.retain_mut(without_directives),
        _ => {}
    }
    true
}

/// Formats a value as Go's `%s` does: other types than strings are marked.
fn as_text(value: &Value) -> String {
    match value {
        Value::Null => "%!s(<nil>)".to_string(),
        Value::Bool(_) | Value::Number(_) => format!("%!s({}={value})", go_kind(value)),
        Value::Array(items) => format!("[{}]", items.iter().map(as_text).collect::<Vec<_>>().join(" ")),
        other => printed(other),
    }
}

fn kind_mismatch(wanted: &str, found: &Value) -> Error {
    let found = if found.is_null() { "%!s(<nil>)" } else { go_kind(found) };
    error(format!("expected a {wanted}, but received a {found}"))
}

fn without_merge_key(item: &Value, key: &str) -> Error {
    error(format!("map: {} does not contain declared merge key: {key}", printed(item)))
}

fn error(text: impl Into<String>) -> Error {
    Error::Patch(text.into())
}
