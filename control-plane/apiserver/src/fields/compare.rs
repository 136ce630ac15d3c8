//! What a change touched: the paths that came, went, or have another value.

use std::collections::BTreeMap;

use corten_meta::Value;

use super::set::{Element, Filter, Set};
use super::types::{ListKind, Shape, Type, item_element};

/// The difference of two objects of the same type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    pub added: Set,
    pub modified: Set,
    pub removed: Set,
}

impl Comparison {
    /// Without the paths that are not the request's to write.
    pub fn filtered(self, filter: &Filter) -> Comparison {
        Comparison {
            added: filter.apply(self.added),
            modified: filter.apply(self.modified),
            removed: filter.apply(self.removed),
        }
    }

    /// What came or has another value.
    pub fn written(&self) -> Set {
        self.modified.union(&self.added)
    }
}

/// Compares two objects.
pub fn compare(of: Type<'_>, old: &Value, new: &Value) -> Comparison {
    let mut walk = Walk::default();
    walk.value(of, Some(old), Some(new));
    walk.comparison
}

/// Equality in which `1` and `1.0` are the same number.
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

/// A step of the walk; names are borrowed until a path is kept.
#[derive(Clone)]
enum Step<'v> {
    Field(&'v str),
    Item(Element),
}

#[derive(Default)]
struct Walk<'v> {
    path: Vec<Step<'v>>,
    comparison: Comparison,
}

impl<'v> Walk<'v> {
    fn path(&self) -> impl Iterator<Item = Element> + use<'v> {
        let path = self.path.clone();
        path.into_iter().map(|step| match step {
            Step::Field(name) => Element::Field(name.to_owned()),
            Step::Item(element) => element,
        })
    }

    fn add(&mut self) {
        let path = self.path();
        self.comparison.added.insert(path);
    }

    fn remove(&mut self) {
        let path = self.path();
        self.comparison.removed.insert(path);
    }

    fn modify(&mut self) {
        let path = self.path();
        self.comparison.modified.insert(path);
    }

    fn value(&mut self, of: Type<'_>, old: Option<&'v Value>, new: Option<&'v Value>) {
        let (Some(shape), changed_shape) = shapes(of, old, new) else { return };
        if changed_shape {
            // Values without a schema may change their form: what was below is gone, the rest is another value.
            self.below(of, old, None);
            self.below(of, None, new);
            return self.modify();
        }
        if is_leaf(shape, old, new) {
            match (old, new) {
                (None, _) => self.add(),
                (_, None) => self.remove(),
                (Some(old), Some(new)) if !same(old, new) => self.modify(),
                _ => {}
            }
            return;
        }
        self.below(of, old, new);
        match (old, new) {
            (None, _) => self.add(),
            (_, None) => self.remove(),
            _ => {}
        }
    }

    /// Compares the fields or items of a value that is not owned as one.
    fn below(&mut self, of: Type<'_>, old: Option<&'v Value>, new: Option<&'v Value>) {
        let (Some(shape), _) = shapes(of, old, new) else { return };
        match shape {
            Shape::Map { atomic: false } => self.fields(of, old, new),
            Shape::List { items, kind: kind @ (ListKind::Set | ListKind::Map(_)) } => self.items(items, kind, old, new),
            _ => {}
        }
    }

    fn fields(&mut self, of: Type<'_>, old: Option<&'v Value>, new: Option<&'v Value>) {
        let fields = |value: Option<&'v Value>| value.and_then(Value::as_object);
        let (old, new) = (fields(old), fields(new));
        let mut field = |name: &'v str, old: Option<&'v Value>, new: Option<&'v Value>| {
            let of = of.member(name).map_or(Type::Deduced, |member| member.of);
            self.path.push(Step::Field(name));
            self.value(of, old, new);
            self.path.pop();
        };
        for (name, value) in old.into_iter().flatten() {
            field(name, Some(value), new.and_then(|new| new.get(name)));
        }
        for (name, value) in new.into_iter().flatten() {
            if old.is_none_or(|old| !old.contains_key(name)) {
                field(name, None, Some(value));
            }
        }
    }

    fn items(&mut self, items: Type<'_>, kind: ListKind<'_>, old: Option<&'v Value>, new: Option<&'v Value>) {
        let mut by_element: BTreeMap<Element, (Vec<&'v Value>, Vec<&'v Value>)> = BTreeMap::new();
        let list = |value: Option<&'v Value>| value.and_then(Value::as_array).into_iter().flatten();
        for item in list(old) {
            if let Ok(element) = item_element(items, kind, item) {
                by_element.entry(element).or_default().0.push(item);
            }
        }
        for item in list(new) {
            if let Ok(element) = item_element(items, kind, item) {
                by_element.entry(element).or_default().1.push(item);
            }
        }
        for (element, (old, new)) in by_element {
            self.path.push(Step::Item(element));
            match (old.as_slice(), new.as_slice()) {
                ([] | [_], [] | [_]) => self.value(items, old.first().copied(), new.first().copied()),
                // Items that share a key are owned together, as one.
                ([_, _, ..], [_, _, ..]) if old != new => self.modify(),
                ([_, _, ..], [_, _, ..]) => {}
                ([_, _, ..], _) => {
                    if let Some(new) = new.first() {
                        self.value(items, None, Some(new));
                    }
                    self.remove();
                }
                _ => {
                    if let Some(old) = old.first() {
                        self.value(items, Some(old), None);
                    }
                    self.add();
                }
            }
            self.path.pop();
        }
    }
}

/// The shape of the two values, and whether it changed.
fn shapes<'a>(of: Type<'a>, old: Option<&Value>, new: Option<&Value>) -> (Option<Shape<'a>>, bool) {
    match (old.map(|v| of.shape(v)), new.map(|v| of.shape(v))) {
        (Some(old), Some(new)) => (Some(new), std::mem::discriminant(&old) != std::mem::discriminant(&new)),
        (one, other) => (one.or(other), false),
    }
}

/// Whether the values are owned as one. Empty containers are: their being there is all there is to own.
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
