//! Removal of paths from an object, and completion of sets before that.

use corten_meta::Value;
use serde_json::Map;

use super::set::{Element, Node, Set};
use super::types::{ListKind, Shape, Type, item_element};

/// Returns the value without the paths; `None` when nothing is left of it.
pub fn remove(of: Type<'_>, value: &Value, paths: &Set) -> Option<Value> {
    match (of.shape(value), value) {
        (Shape::Scalar, _) => Some(value.clone()),
        (Shape::Map { atomic: false }, Value::Object(fields)) => {
            let mut left = Map::new();
            for (name, inner) in fields {
                let kept = match paths.get(&Element::Field(name.clone())) {
                    None => Some(inner.clone()),
                    Some(node) if node.member => None,
                    // An owned field with an empty rest stays, as a null.
                    Some(node) => {
                        let of = of.member(name).map_or(Type::Deduced, |member| member.of);
                        Some(remove(of, inner, &node.below).unwrap_or_default())
                    }
                };
                if let Some(kept) = kept {
                    left.insert(name.clone(), kept);
                }
            }
            (!left.is_empty()).then_some(Value::Object(left))
        }
        (Shape::List { items, kind: kind @ (ListKind::Set | ListKind::Map(_)) }, Value::Array(list)) => {
            let left: Vec<Value> = list
                .iter()
                .filter_map(|item| {
                    let element = item_element(items, kind, item).ok();
                    match element.and_then(|element| paths.get(&element)) {
                        None => Some(item.clone()),
                        Some(node) if node.member => None,
                        Some(node) => Some(remove(items, item, &node.below).unwrap_or_default()),
                    }
                })
                .collect();
            (!left.is_empty()).then_some(Value::Array(left))
        }
        // A path inside is removed, but this value is atomic.
        _ => None,
    }
}

/// Returns the set and all fields of the schema on the way to its members: a struct is removed with its last field, but
/// a map with free keys is not.
pub fn with_named_fields(of: Type<'_>, set: &Set) -> Set {
    set.filtered(|element, node| {
        let (member, of) = match element {
            Element::Field(name) => match of.member(name) {
                Some(found) => (found.declared && !node.below.is_empty(), Some(found.of)),
                None => (false, None),
            },
            Element::Key(_) => (false, items(of)),
            _ => (false, None),
        };
        let below = match of {
            Some(of) => with_named_fields(of, &node.below),
            None => node.below.clone(),
        };
        Node { member: node.member || member, below }
    })
}

fn items(of: Type<'_>) -> Option<Type<'_>> {
    match of.shape(&Value::Array(Vec::new())) {
        Shape::List { items, .. } => Some(items),
        _ => None,
    }
}
