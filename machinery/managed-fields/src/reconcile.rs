//! Reconciliation of owned paths with the present type: a CustomResourceDefinition may have made a value atomic.

use corten_meta::Value;
use serde_json::Map;

use super::set::{Element, Node, Set};
use super::types::{ListKind, Shape, Type};

/// Returns the set with the values that are atomic now in place of the paths below them; `None` if nothing changed. A
/// value that is no longer atomic stays owned as one.
pub fn reconcile(of: Type<'_>, set: &Set) -> Option<Set> {
    let reconciled = below(of, set);
    (reconciled != *set).then_some(reconciled)
}

fn below(of: Type<'_>, set: &Set) -> Set {
    set.filtered(|element, node| match child(of, element) {
        Some(of) => owned_below(of, node),
        None => node.clone(),
    })
}

/// Returns the owned paths at and below a value.
fn owned_below(of: Type<'_>, node: &Node) -> Node {
    let one = || Node { member: true, below: Set::default() };
    match static_shape(of) {
        // Without owned paths below it, it is owned as one already.
        _ if node.below.is_empty() => node.clone(),
        Some(Shape::Map { atomic: true } | Shape::List { kind: ListKind::Atomic, .. }) => one(),
        Some(_) => Node { member: node.member, below: below(of, &node.below) },
        None => node.clone(),
    }
}

/// Returns the type of an element's value; `None` where the type has none.
fn child<'a>(of: Type<'a>, element: &Element) -> Option<Type<'a>> {
    match (static_shape(of)?, element) {
        (Shape::Map { .. }, Element::Field(name)) => of.member(name).map(|member| member.of),
        (Shape::List { items, .. }, _) => Some(items),
        _ => None,
    }
}

/// Returns the shape of all values of the type; `None` for a type whose shape depends on the value.
fn static_shape(of: Type<'_>) -> Option<Shape<'_>> {
    let shape = of.shape(&Value::Object(Map::new()));
    let is_free = match of {
        Type::Deduced => true,
        Type::Custom { schema, .. } if matches!(shape, Shape::Map { .. }) => {
            let properties = schema["properties"].as_object();
            properties.is_none_or(Map::is_empty) && !schema["additionalProperties"].is_object()
        }
        _ => false,
    };
    (!is_free).then_some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_that_became_atomic_is_owned_as_one() {
        let list = |kind: &str| {
            json!({ "type": "array", "x-kubernetes-list-type": kind, "x-kubernetes-list-map-keys": ["k"],
                    "items": { "type": "object", "properties": { "k": { "type": "string" } } } })
        };
        let map = |kind: &str| json!({ "type": "object", "x-kubernetes-map-type": kind, "properties": { "x": { "type": "string" } } });
        let free = json!({ "type": "object", "x-kubernetes-map-type": "atomic" });
        let items = json!({ ".": {}, "k:{\"k\":\"a\"}": { ".": {}, "f:k": {} } });
        for (place, owned, expected) in [
            (list("atomic"), items.clone(), Some(json!({}))),
            (list("map"), items.clone(), None),
            (list("map"), json!({}), None),
            (map("atomic"), json!({ "f:x": {} }), Some(json!({}))),
            (map("atomic"), json!({}), None),
            (map("granular"), json!({ "f:x": {} }), None),
            // A type whose shape depends on the value is left as it is.
            (free, json!({ "f:x": {} }), None),
            (json!({ "type": "string" }), json!({ "f:x": {} }), None),
        ] {
            let schema = json!({ "type": "object", "properties": { "spec": {
                "type": "object", "properties": { "p": place } } } });
            let set = |of: &Value| Set::decode(&json!({ "f:spec": { "f:p": of, "f:gone": {} } })).unwrap();
            let reconciled = reconcile(Type::CustomResource(&schema), &set(&owned));
            assert_eq!(reconciled, expected.as_ref().map(set), "{schema}");
        }
    }
}
