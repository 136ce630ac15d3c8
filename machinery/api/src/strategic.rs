//! Strategic merge patch: a merge that knows which lists are maps.
//!
//! Lists with a merge key are merged item by item, other lists are replaced; the directives `$patch`,
//! `$retainKeys`, `$setElementOrder/<list>` and `$deleteFromPrimitiveList/<list>` refine it. Which list is
//! which comes from the schema table. Invariant: a failed merge leaves no half-merged object behind,
//! because the caller's object is only written at the end.

use corten_meta::Value;
use corten_meta::go::printed;
use serde_json::Map;

use crate::Error;
use crate::schema::{Field, FieldType, Type, schema};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// Applies `patch` to an object of the named type.
pub fn strategic_merge(type_name: &str, original: &mut Value, patch: &Value) -> Result<(), Error> {
    *original = strategically_merged(type_name, original.clone(), patch)?;
    Ok(())
}

/// As [`strategic_merge`] for an object that nobody needs any more.
pub fn strategically_merged(type_name: &str, original: Value, patch: &Value) -> Result<Value, Error> {
    let root = schema().type_(type_name).ok_or_else(|| Error::UnknownType(type_name.to_string()))?;
    let Value::Object(patch) = patch.clone() else {
        return Err(error("invalid JSON document: the patch is not an object"));
    };
    let target = if let Value::Object(target) = original { target } else { Map::new() };
    Ok(Value::Object(merge_map(target, patch, Place::Struct(root))?))
}

/// What is known about the value that is being merged.
#[derive(Clone, Copy)]
enum Place<'a> {
    Struct(&'a Type),
    /// A map whose values have this type, or an object of any shape.
    Map(Option<&'a FieldType>),
}

impl<'a> Place<'a> {
    fn of(kind: &'a FieldType) -> Place<'a> {
        match kind {
            FieldType::Ref(id) => Place::Struct(schema().get(*id)),
            FieldType::Map(values) => Place::Map(Some(values)),
            _ => Place::Map(None),
        }
    }

    fn name(self) -> &'a str {
        match self {
            Place::Struct(t) => t.short_name(),
            Place::Map(_) => "map",
        }
    }

    /// The field a key names; a map has no fields, a struct must have it.
    fn field(self, key: &str) -> Result<Option<&'a Field>, Error> {
        match self {
            Place::Struct(t) if t.scalar.is_none() => match t.field(key) {
                Some(field) => Ok(Some(field)),
                None => Err(error(format!(
                    "unable to find api field in struct {} for the json field {key:?}",
                    t.short_name()
                ))),
            },
            _ => Ok(None),
        }
    }

    /// The place of the value under a key.
    fn inner(self, field: Option<&'a Field>) -> Place<'a> {
        match (self, field) {
            (_, Some(field)) => match &field.kind {
                FieldType::List(items) => Place::of(items),
                kind => Place::of(kind),
            },
            (Place::Map(Some(kind)), None) => Place::of(kind),
            _ => Place::Map(None),
        }
    }
}

fn merge_map(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    place: Place,
) -> Result<Map<String, Value>, Error> {
    if let Some(directive) = patch.remove(PATCH) {
        return match directive.as_str() {
            Some("replace") => Ok(patch),
            Some("delete") => Ok(Map::new()),
            _ => Err(error(format!("unknown patch type found: {}", plain(&directive)))),
        };
    }
    apply_retain_keys(&mut original, &mut patch)?;
    apply_element_orders(&mut original, &mut patch, place)?;
    for (key, value) in patch {
        merge_entry(&mut original, &key, value, place)?;
    }
    Ok(original)
}

fn merge_entry(original: &mut Map<String, Value>, key: &str, patch: Value, place: Place) -> Result<(), Error> {
    if let Some(list) = key.strip_prefix(DELETE_PRIMITIVES) {
        return delete_primitives(original, list, patch);
    }
    if patch.is_null() {
        original.remove(key);
        return Ok(());
    }
    match (original.remove(key), patch) {
        (Some(Value::Object(old)), Value::Object(new)) => {
            let field = place.field(key)?;
            let merged =
                if strategy(field) == Some("replace") { new } else { merge_map(old, new, place.inner(field))? };
            original.insert(key.to_string(), Value::Object(merged));
        }
        (Some(Value::Array(old)), Value::Array(new)) => {
            let field = place.field(key)?;
            let merged = merge_list_by_strategy(old, new, field, place.inner(field))?;
            original.insert(key.to_string(), Value::Array(merged));
        }
        (_, mut new) => {
            discard_nulls(&mut new);
            if let Some(new) = without_directives(new) {
                original.insert(key.to_string(), new);
            }
        }
    }
    Ok(())
}

/// The strategy of a field without `retainKeys`, which is spoken in the patch itself.
fn strategy(field: Option<&Field>) -> Option<&str> {
    field?.patch_strategy.iter().map(String::as_str).find(|s| *s != "retainKeys")
}

fn merge_key(field: Option<&Field>) -> Option<&str> {
    field?.patch_merge_key.as_deref()
}

/// `$retainKeys`: everything that is not listed goes.
fn apply_retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), Error> {
    const BAD: &str = "invalid patch format of retainKeys";
    let Some(listed) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let listed = listed.as_array().ok_or_else(|| error(BAD))?;
    let retained = |key: &str| listed.iter().any(|l| l.as_str() == Some(key));
    for (key, value) in patch.iter() {
        let directive = key.starts_with(SET_ORDER) || key.starts_with(DELETE_PRIMITIVES);
        if !value.is_null() && !directive && !retained(key) {
            return Err(error(BAD));
        }
    }
    original.retain(|key, _| retained(key));
    Ok(())
}

/// `$deleteFromPrimitiveList/<list>`: takes scalars out of a list.
fn delete_primitives(original: &mut Map<String, Value>, list: &str, patch: Value) -> Result<(), Error> {
    let Value::Array(gone) = patch else {
        return Err(error("invalid patch format of primitive list"));
    };
    if let Some(Value::Array(items)) = original.get_mut(list) {
        items.retain(|item| !gone.contains(item));
    }
    Ok(())
}

/// `$setElementOrder/<list>`: merges the list now, then puts its items in the wanted order.
fn apply_element_orders(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    place: Place,
) -> Result<(), Error> {
    let directives: Vec<String> = patch.keys().filter(|k| k.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let list = directive[SET_ORDER.len()..].to_string();
        let Some(Value::Array(order)) = patch.remove(&directive) else {
            return Err(error("invalid patch format of setElementOrder list"));
        };
        let field = place.field(&list)?;
        let key = merge_key(field);
        let old = take_list(original, &list)?;
        let new = take_list(patch, &list)?;
        if let Some(new) = &new {
            check_order(new, &order, key)?;
        }
        let server_order = old.clone().unwrap_or_default();
        let merged = match (old, new) {
            (None, None) => continue,
            (Some(old), None) => old,
            (None, Some(new)) => match without_directives(Value::Array(new)) {
                Some(Value::Array(items)) => items,
                _ => continue,
            },
            (Some(old), Some(new)) => merge_list_by_strategy(old, new, field, place.inner(field))?,
        };
        let ordered = in_order(merged, &order, &server_order, key)?;
        original.insert(list, Value::Array(ordered));
    }
    Ok(())
}

fn take_list(object: &mut Map<String, Value>, key: &str) -> Result<Option<Vec<Value>>, Error> {
    match object.remove(key) {
        None => Ok(None),
        Some(Value::Array(list)) => Ok(Some(list)),
        Some(other) => Err(error(format!("expected a []interface {{}}, but received a {}", go_kind(&other)))),
    }
}

/// The items of the patch must come in the order that the directive asks for.
fn check_order(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), Error> {
    let items: Vec<&Value> = patch.iter().filter(|i| i.get(PATCH).is_none()).collect();
    if items.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut wanted = order.iter();
    for item in items {
        if !wanted.any(|w| same(item, w, key)) {
            return Err(error(format!(
                "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
                Value::Array(patch.to_vec()),
                Value::Array(order.to_vec())
            )));
        }
    }
    Ok(())
}

fn merge_list_by_strategy(
    old: Vec<Value>,
    new: Vec<Value>,
    field: Option<&Field>,
    items: Place,
) -> Result<Vec<Value>, Error> {
    if strategy(field) == Some("merge") { merge_list(old, new, merge_key(field), items) } else { Ok(new) }
}

fn merge_list(original: Vec<Value>, patch: Vec<Value>, key: Option<&str>, items: Place) -> Result<Vec<Value>, Error> {
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    if !same_kind(&original, &patch)? {
        let mut merged = original.clone();
        merged.extend(patch.iter().cloned());
        return in_order(unique(merged), &patch, &original, None);
    }
    let key = key.ok_or_else(|| error(format!("cannot merge lists without merge key for {}", items.name())))?;
    let (original, patch) = apply_item_directives(original, patch, key)?;
    let mut merged = original.clone();
    for item in &patch {
        let wanted = merge_value(item, key)?;
        match merged.iter().position(|m| m.get(key) == Some(wanted)) {
            Some(at) => {
                let old = merged[at].as_object().cloned().unwrap_or_default();
                let new = item.as_object().cloned().unwrap_or_default();
                merged[at] = Value::Object(merge_map(old, new, items)?);
            }
            None => merged.push(item.clone()),
        }
    }
    in_order(merged, &patch, &original, Some(key))
}

/// Items that are directives: `$patch: delete` removes its match, `$patch: replace` drops the old list.
fn apply_item_directives(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let mut plain_items = Vec::new();
    let mut replace = false;
    for item in patch {
        match item.get(PATCH).map(|d| d.as_str().unwrap_or_default()) {
            None => plain_items.push(item),
            Some("delete") => {
                let wanted = merge_value(&item, key)?;
                original.retain(|o| o.get(key) != Some(wanted));
            }
            Some("replace") => replace = true,
            Some("merge") => return Err(error("merging lists cannot yet be specified in the patch")),
            Some(_) => {
                return Err(error(format!("unknown patch type: {} in map: {}", plain(&item[PATCH]), printed(&item))));
            }
        }
    }
    if replace { Ok((plain_items, Vec::new())) } else { Ok((original, plain_items)) }
}

fn merge_value<'a>(item: &'a Value, key: &str) -> Result<&'a Value, Error> {
    item.get(key).ok_or_else(|| error(format!("map: {} does not contain declared merge key: {key}", printed(item))))
}

/// Whether all items are objects (`true`) or all are scalars (`false`).
fn same_kind(a: &[Value], b: &[Value]) -> Result<bool, Error> {
    let mut kinds = a.iter().chain(b).map(go_kind);
    let first = kinds.next().unwrap_or("string");
    if first == "[]interface {}" {
        return Err(error("not supporting lists of lists yet"));
    }
    match kinds.find(|k| *k != first) {
        Some(other) => Err(error(format!("list element types are not identical: {first} and {other}"))),
        None => Ok(first == "map[string]interface {}"),
    }
}

/// Items that the patch names come in its order, the others keep theirs; the two are woven together
/// so that relations of the old list hold where the patch says nothing.
fn in_order(
    merged: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    key: Option<&str>,
) -> Result<Vec<Value>, Error> {
    if let Some(key) = key {
        for item in &merged {
            merge_value(item, key)?;
        }
    }
    let at = |order: &[Value], item: &Value| order.iter().position(|o| same(o, item, key));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| at(patch_order, item).is_some());
    named.sort_by_key(|item| at(patch_order, item));
    others.sort_by_key(|item| at(server_order, item));

    let mut woven = Vec::with_capacity(named.len() + others.len());
    let (mut left, mut right) = (others.into_iter().peekable(), named.into_iter().peekable());
    loop {
        let take_left = match (left.peek(), right.peek()) {
            (None, None) => return Ok(woven),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(l), Some(r)) => match (at(server_order, l), at(server_order, r)) {
                (Some(l), Some(r)) => l < r,
                _ => false,
            },
        };
        woven.extend(if take_left { left.next() } else { right.next() });
    }
}

fn same(a: &Value, b: &Value, key: Option<&str>) -> bool {
    match key {
        Some(key) => a.get(key).is_some() && a.get(key) == b.get(key),
        None => a == b,
    }
}

fn unique(items: Vec<Value>) -> Vec<Value> {
    let mut seen = Vec::with_capacity(items.len());
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(discard_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// A value that is new to the object, without the directives in it; `None` when it is itself a directive.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) => {
            if map.contains_key(PATCH) {
                return None;
            }
            let plain = map
                .into_iter()
                .filter(|(k, _)| k != RETAIN_KEYS && !k.starts_with(SET_ORDER) && !k.starts_with(DELETE_PRIMITIVES));
            Some(Value::Object(plain.filter_map(|(k, v)| Some((k, without_directives(v)?))).collect()))
        }
        Value::Array(list) => Some(Value::Array(list.into_iter().filter_map(without_directives).collect())),
        other => Some(other),
    }
}

fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

fn error(text: impl Into<String>) -> Error {
    Error::Patch(text.into())
}
