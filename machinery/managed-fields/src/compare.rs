//! Comparison of two objects: the paths that were added, removed, or changed.

use std::collections::BTreeMap;

use corten_meta::Value;

use super::set::{Element, Filter, Node, Set};
use super::types::{ListKind, Shape, Type, item_element};

/// The difference of two objects of the same type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The paths that were added or changed.
    pub written: Set,
    pub removed: Set,
    /// Whether an associative list has an item without a key, so that its fields can have no owner.
    pub mismatches_type: bool,
}

impl Comparison {
    /// Returns the comparison without the paths that the request may not write.
    pub fn filtered(self, filter: &Filter) -> Comparison {
        Comparison { written: filter.apply(self.written), removed: filter.apply(self.removed), ..self }
    }
}

/// Compares two objects. The object itself has no owner, only its fields.
pub fn compare(of: Type<'_>, old: &Value, new: &Value) -> Comparison {
    let Difference { written, removed, mismatches_type } = value(of, Some(old), Some(new));
    Comparison { written: written.below, removed: removed.below, mismatches_type }
}

/// Returns whether two values are equal, where `1` and `1.0` are the same number.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(key, x)| y.get(key).is_some_and(|y| same(x, y)))
        }
        _ => a == b,
    }
}

/// The difference at a path and at all paths below it.
#[derive(Default)]
struct Difference {
    written: Node,
    removed: Node,
    /// Whether a list has an item that cannot be distinguished from others.
    mismatches_type: bool,
}

impl Difference {
    /// Adds the difference at a path below this one.
    fn put(&mut self, element: impl Fn() -> Element, of: Difference) {
        self.written.below.put(&element, of.written);
        self.removed.below.put(&element, of.removed);
        self.mismatches_type |= of.mismatches_type;
    }
}

fn value(of: Type<'_>, old: Option<&Value>, new: Option<&Value>) -> Difference {
    let (Some(shape), changed_shape) = shapes(of, old, new) else { return Difference::default() };
    if changed_shape {
        // Values without a schema may change their shape: the paths below the old value are removed, the rest is a new
        // value.
        let gone = below(of, old, None);
        let mut come = below(of, None, new);
        come.written.member = true;
        let mismatches_type = gone.mismatches_type || come.mismatches_type;
        return Difference { written: come.written, removed: gone.removed, mismatches_type };
    }
    if is_leaf(shape, old, new) {
        let mut leaf = Difference::default();
        match (old, new) {
            (None, _) => leaf.written.member = true,
            (_, None) => leaf.removed.member = true,
            (Some(old), Some(new)) => leaf.written.member = !same(old, new),
        }
        return leaf;
    }
    let mut difference = below(of, old, new);
    difference.written.member |= old.is_none();
    difference.removed.member |= old.is_some() && new.is_none();
    difference
}

/// Compares the fields or items of a value that is not atomic.
fn below(of: Type<'_>, old: Option<&Value>, new: Option<&Value>) -> Difference {
    match shapes(of, old, new) {
        (Some(Shape::Map { atomic: false }), _) => fields(of, old, new),
        (Some(Shape::List { items, kind: kind @ (ListKind::Set | ListKind::Map(_)) }), _) => {
            self::items(items, kind, old, new)
        }
        _ => Difference::default(),
    }
}

fn fields(of: Type<'_>, old: Option<&Value>, new: Option<&Value>) -> Difference {
    let mut all = Difference::default();
    let old = old.and_then(Value::as_object);
    let new = new.and_then(Value::as_object);
    let mut field = |name: &str, old: Option<&Value>, new: Option<&Value>| {
        let of = of.member(name).map_or(Type::Deduced, |member| member.of);
        all.put(|| Element::Field(name.to_owned()), value(of, old, new));
    };
    for (name, value) in old.into_iter().flatten() {
        field(name, Some(value), new.and_then(|new| new.get(name)));
    }
    for (name, value) in new.into_iter().flatten() {
        if old.is_none_or(|old| !old.contains_key(name)) {
            field(name, None, Some(value));
        }
    }
    all
}

fn items(items: Type<'_>, kind: ListKind<'_>, old: Option<&Value>, new: Option<&Value>) -> Difference {
    let mut by_element: BTreeMap<Element, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
        value.and_then(Value::as_array).into_iter().flatten()
    }
    let mut all = Difference::default();
    for item in list(old) {
        match item_element(items, kind, item) {
            Ok(element) => by_element.entry(element).or_default().0.push(item),
            Err(_) => all.mismatches_type = true,
        }
    }
    for item in list(new) {
        match item_element(items, kind, item) {
            Ok(element) => by_element.entry(element).or_default().1.push(item),
            Err(_) => all.mismatches_type = true,
        }
    }
    for (element, (old, new)) in by_element {
        all.put(|| element.clone(), item(items, &old, &new));
    }
    all
}

/// Compares the items of one key. Duplicate items are owned together, as one.
fn item(items: Type<'_>, old: &[&Value], new: &[&Value]) -> Difference {
    let mut one = Difference::default();
    match (old, new) {
        ([] | [_], [] | [_]) => one = value(items, old.first().copied(), new.first().copied()),
        ([_, _, ..], [_, _, ..]) => one.written.member = old != new,
        ([_, _, ..], _) => {
            if let Some(new) = new.first() {
                one = value(items, None, Some(new));
            }
            one.removed.member = true;
        }
        _ => {
            if let Some(old) = old.first() {
                one = value(items, Some(old), None);
            }
            one.written.member = true;
        }
    }
    one
}

/// Returns the shape of the two values, and whether it changed.
fn shapes<'a>(of: Type<'a>, old: Option<&Value>, new: Option<&Value>) -> (Option<Shape<'a>>, bool) {
    match (old.map(|v| of.shape(v)), new.map(|v| of.shape(v))) {
        (Some(old), Some(new)) => (Some(new), std::mem::discriminant(&old) != std::mem::discriminant(&new)),
        (one, other) => (one.or(other), false),
    }
}

/// Returns whether the values are owned as one. Empty containers are: only their presence can be owned.
pub fn is_leaf(shape: Shape<'_>, old: Option<&Value>, new: Option<&Value>) -> bool {
    let empty = |value: Option<&Value>| match value {
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        _ => true,
    };
    match shape {
        Shape::Scalar | Shape::Map { atomic: true } | Shape::List { kind: ListKind::Atomic, .. } => true,
        Shape::Map { .. } | Shape::List { .. } => empty(old) && empty(new),
    }
}
