//! The set of an object's paths, and the check of an object against its schema.

use std::collections::BTreeMap;

use corten_api::schema::FieldType;
use corten_meta::Value;
use corten_meta::quote::quote;

use super::set::{Element, Set, show};
use super::types::{ListKind, Shape, Type, item_element};

/// Returns the paths of all fields and items of the object.
pub fn extract(of: Type<'_>, value: &Value) -> Set {
    let mut set = Set::default();
    walk(of, value, &mut Vec::new(), &mut set);
    set
}

fn walk(of: Type<'_>, value: &Value, path: &mut Vec<Element>, set: &mut Set) {
    match of.shape(value) {
        Shape::Map { atomic: false } => {
            for (name, inner) in value.as_object().into_iter().flatten() {
                let member = of.member(name);
                let declared = member.as_ref().is_some_and(|m| m.declared);
                path.push(Element::Field(name.clone()));
                walk(member.map_or(Type::Deduced, |m| m.of), inner, path, set);
                let empty = inner.is_null() || inner.as_object().is_some_and(serde_json::Map::is_empty);
                if empty || !declared {
                    set.insert(path.iter().cloned());
                }
                path.pop();
            }
        }
        Shape::List { items, kind: kind @ (ListKind::Set | ListKind::Map(_)) } => {
            let mut by_element: BTreeMap<Element, Vec<&Value>> = BTreeMap::new();
            for item in value.as_array().into_iter().flatten() {
                if let Ok(element) = item_element(items, kind, item) {
                    by_element.entry(element).or_default().push(item);
                }
            }
            for (element, found) in by_element {
                path.push(element);
                if let [item] = found.as_slice() {
                    walk(items, item, path, set);
                }
                set.insert(path.iter().cloned());
                path.pop();
            }
        }
        _ => set.insert(path.iter().cloned()),
    }
}

/// The reason why a value is not of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// A field that the type does not have.
    Undeclared,
    /// A duplicate item.
    Duplicate,
    /// An item without its keys.
    Unkeyed,
    /// A value of another type.
    Value,
}

/// An error at a path of an object: `.spec.foo: field not declared in schema`.
#[derive(Clone, Debug)]
pub struct FormError {
    pub kind: Misfit,
    text: String,
}

impl FormError {
    fn new(kind: Misfit, path: &[Element], what: impl std::fmt::Display) -> FormError {
        FormError { kind, text: format!("{}: {what}", show(path)) }
    }
}

impl std::fmt::Display for FormError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns the errors of an object that is not of its type.
pub fn check(of: Type<'_>, value: &Value) -> Vec<FormError> {
    let mut errors = Vec::new();
    check_value(of, value, &mut Vec::new(), &mut errors);
    errors
}

/// Joins the errors in one message, if there are any.
pub fn error_message(errors: &[FormError]) -> Option<String> {
    match errors {
        [] => None,
        [one] => Some(one.text.clone()),
        many => {
            let lines: Vec<&str> = many.iter().map(|error| error.text.as_str()).collect();
            Some(format!("errors:\n  {}", lines.join("\n  ")))
        }
    }
}

/// Returns whether a value is not of its type, so that its fields can have no owners. Duplicate items match,
/// and unknown fields are dropped.
pub fn mismatches_type(of: Type<'_>, value: &Value) -> bool {
    check(of, value).iter().any(|error| matches!(error.kind, Misfit::Unkeyed | Misfit::Value))
}

/// Formats a value as upstream prints the wrapper that it reads one through.
fn wrapped(value: &Value) -> String {
    format!("&{{{}}}", corten_meta::go::printed(value))
}

/// Formats a value as Go source.
fn as_source(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(name, inner)| format!("{name}:{}", as_source(inner), name = quote(name))).collect();
            format!("map[string]interface {{}}{{{}}}", fields.join(", "))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(as_source).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Null => "interface {}(nil)".to_owned(),
        scalar => scalar.to_string(),
    }
}

/// Returns the error of a scalar of a type of the table or of a structural schema.
fn scalar_error(of: Type<'_>, value: &Value) -> Option<String> {
    let kind = match of {
        Type::Field(field) => &field.kind,
        Type::Item(kind) => kind,
        Type::Custom { schema, .. } => match schema["type"].as_str() {
            Some("integer" | "number") => &FieldType::Number(""),
            Some("boolean") => &FieldType::Boolean,
            // A string of another format may be any scalar.
            Some("string") if matches!(schema["format"].as_str(), None | Some("" | "byte")) => &FieldType::String,
            Some("string") => &FieldType::Time,
            _ => return None,
        },
        _ => return None,
    };
    let found = match value {
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Object(_) => "map[string]interface {}",
        Value::Array(_) => "[]interface {}",
        _ => "float64",
    };
    match kind {
        FieldType::Integer(_) | FieldType::Number(_) if !value.is_number() => {
            Some(format!("expected numeric (int or float), got {found}"))
        }
        FieldType::Boolean if !value.is_boolean() => Some(format!("expected boolean, got {}", wrapped(value))),
        FieldType::String | FieldType::Bytes if !value.is_string() => {
            Some(format!("expected string, got &value.valueUnstructured{{Value:{}}}", as_source(value)))
        }
        FieldType::Quantity | FieldType::Time | FieldType::MicroTime if value.is_object() || value.is_array() => {
            Some(format!("expected any scalar, got {}", wrapped(value)))
        }
        _ => None,
    }
}

/// Returns whether the schema allows any value here.
fn is_open(of: Type<'_>) -> bool {
    matches!(of, Type::Item(FieldType::IntOrString))
        || matches!(of, Type::Field(field) if field.kind == FieldType::IntOrString)
}

fn check_value(of: Type<'_>, value: &Value, path: &mut Vec<Element>, errors: &mut Vec<FormError>) {
    if value.is_null() {
        return;
    }
    let mut wrong = |path: &[Element], what: String| errors.push(FormError::new(Misfit::Value, path, what));
    match of.shape(value) {
        Shape::Scalar => match scalar_error(of, value) {
            Some(what) => wrong(path, what),
            None if (value.is_object() || value.is_array()) && !is_open(of) => {
                wrong(path, format!("expected scalar, got {value}"))
            }
            None => {}
        },
        Shape::Map { .. } => {
            let Some(fields) = value.as_object() else {
                return wrong(path, format!("expected map, got {}", wrapped(value)));
            };
            for (name, inner) in fields {
                path.push(Element::Field(name.clone()));
                let member = of.member(name);
                match &member {
                    Some(member) => check_value(member.of, inner, path, errors),
                    None => errors.push(FormError::new(Misfit::Undeclared, path, "field not declared in schema")),
                }
                path.pop();
                if member.is_none() {
                    // Upstream does not check the fields beside it.
                    return;
                }
            }
        }
        Shape::List { items, kind } => {
            let Some(list) = value.as_array() else {
                return wrong(path, format!("expected list, got {}", wrapped(value)));
            };
            let mut seen = std::collections::BTreeSet::new();
            for (index, item) in list.iter().enumerate() {
                let element = match kind {
                    ListKind::Atomic => Element::Index(index as i64),
                    kind => match item_element(items, kind, item) {
                        Ok(element) => element,
                        Err(why) => {
                            // Without a key, an item has no path, so upstream checks no further.
                            let what = format!("element {index}: {why}");
                            return errors.push(FormError::new(Misfit::Unkeyed, path, what));
                        }
                    },
                };
                if !seen.insert(element.clone()) {
                    let what = format!("duplicate entries for key {element}");
                    errors.push(FormError::new(Misfit::Duplicate, path, what));
                }
                path.push(element);
                check_value(items, item, path, errors);
                path.pop();
            }
        }
    }
}
