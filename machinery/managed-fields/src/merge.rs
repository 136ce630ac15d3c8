//! Merge of a configuration with the live object: the configuration's values win, nothing is removed.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::Value;
use serde_json::Map;

use super::compare::is_leaf;
use super::set::Element;
use super::types::{ListKind, Shape, Type, item_element};

/// Returns the live value with the configuration written over it.
pub fn merge(of: Type<'_>, live: &Value, config: &Value) -> Value {
    value(of, Some(live), Some(config)).unwrap_or_default()
}

fn value(of: Type<'_>, live: Option<&Value>, config: Option<&Value>) -> Option<Value> {
    let (Some(old), Some(new)) = (live, config) else { return config.or(live).cloned() };
    let shape = of.shape(new);
    if std::mem::discriminant(&shape) != std::mem::discriminant(&of.shape(old)) || is_leaf(shape, live, config) {
        return Some(new.clone());
    }
    match (shape, old, new) {
        (Shape::Map { .. }, _, _) => {
            let mut merged = old.as_object().cloned().unwrap_or_else(Map::new);
            for (name, inner) in new.as_object().into_iter().flatten() {
                let of = of.member(name).map_or(Type::Deduced, |member| member.of);
                if let Some(inner) = value(of, merged.get(name), Some(inner)) {
                    merged.insert(name.clone(), inner);
                }
            }
            Some(Value::Object(merged))
        }
        (Shape::List { items, kind }, _, _) => {
            let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
            Some(Value::Array(merge_items(items, kind, &list(old), &list(new))))
        }
        _ => Some(new.clone()),
    }
}

/// Merges two lists item by item. Items of the configuration keep its order; items that only the live object has stay
/// in their position between the common ones.
fn merge_items(items: Type<'_>, kind: ListKind<'_>, live: &[Value], config: &[Value]) -> Vec<Value> {
    let elements =
        |list: &[Value]| list.iter().map(|item| item_element(items, kind, item).ok()).collect::<Vec<Option<Element>>>();
    let live_elements = elements(live);
    let config_elements = elements(config);
    let mut live_by_element: BTreeMap<&Element, Option<&Value>> = BTreeMap::new();
    for (element, item) in live_elements.iter().zip(live) {
        let Some(element) = element else { continue };
        // Duplicate items cannot be merged into: the configuration's item replaces them.
        live_by_element.entry(element).and_modify(|found| *found = None).or_insert(Some(item));
    }
    let wanted: BTreeSet<&Element> = config_elements.iter().flatten().collect();
    let mut merged = Vec::with_capacity(live.len().max(config.len()));
    let mut rest = live_elements.iter().zip(live).peekable();
    let only_live = |element: &Option<Element>| element.as_ref().is_none_or(|element| !wanted.contains(element));
    for (element, item) in config_elements.iter().zip(config) {
        while let Some((_, item)) = rest.next_if(|(element, _)| only_live(element)) {
            merged.push(item.clone());
        }
        let shared = element.as_ref().is_some_and(|element| live_by_element.contains_key(element));
        let passed = if shared { rest.clone().position(|(e, _)| e == element).map_or(0, |at| at + 1) } else { 0 };
        for (element, item) in rest.by_ref().take(passed) {
            if only_live(element) {
                merged.push(item.clone());
            }
        }
        let old = element.as_ref().and_then(|element| live_by_element.get(element).copied().flatten());
        merged.extend(value(items, old, Some(item)));
    }
    merged.extend(rest.filter(|(element, _)| only_live(element)).map(|(_, item)| item.clone()));
    merged
}
