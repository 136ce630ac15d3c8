//! The defaults of a schema: they are valid, and name no field that would be pruned. In upstream's words. Pure.

use corten_meta::{FieldError, Path, Value};
use serde_json::json;

use super::rules::Rules;
use super::{embedded, schema as structure, validation};
use crate::error::aggregate;

const EMBEDDED: &str = "x-kubernetes-embedded-resource";

/// Adds everything that is wrong with the defaults of a schema. Its root is a resource, whatever it says.
pub fn validate(schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let mut root = schema.clone();
    root[EMBEDDED] = true.into();
    below(&root, path, None, errors);
}

/// A place inside the type or the metadata of a resource.
#[derive(Clone, Copy)]
struct Inside<'a> {
    resource: &'a Value,
    way: &'a Way<'a>,
}

/// The way from a resource to a place: a field, or an item, after another.
struct Way<'a> {
    before: Option<&'a Way<'a>>,
    field: Option<&'a str>,
}

impl Way<'_> {
    /// A resource that holds a value at the end of the way, and its type.
    fn around(&self, value: Value) -> Value {
        let held = match self.field {
            Some(field) => json!({ field: value }),
            None => json!([value]),
        };
        match self.before {
            Some(before) => before.around(held),
            None => {
                let mut resource = json!({ "apiVersion": "validation/v1", "kind": "Validation" });
                if let (Some(resource), Value::Object(held)) = (resource.as_object_mut(), held) {
                    resource.extend(held);
                }
                resource
            }
        }
    }
}

fn below(schema: &Value, path: &Path, inside: Option<Inside<'_>>, errors: &mut Vec<FieldError>) {
    let is_resource = schema[EMBEDDED] == true;
    let inside = inside.filter(|_| !is_resource);
    if let Some(default) = schema.get("default").filter(|default| !default.is_null()) {
        let place = path.child("default");
        errors.append(&mut match inside {
            Some(inside) => metadata_errors(schema, default, inside, &place),
            None => default_errors(schema, default, &place),
        });
    }
    let before = inside.map(|inside| inside.way);
    if schema["items"].is_object() {
        let way = Way { before, field: None };
        let inside = inside.map(|inside| Inside { way: &way, ..inside });
        below(&schema["items"], &path.child("items"), inside, errors);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let way = Way { before, field: Some(name) };
        let resource = match inside {
            Some(inside) => Some(inside.resource),
            None => (is_resource && structure::ALWAYS.contains(&name.as_str())).then_some(schema),
        };
        let inside = resource.map(|resource| Inside { resource, way: &way });
        below(property, &path.child("properties").key(name), inside, errors);
    }
}

/// What is wrong with a default inside of metadata, which is judged as a part of it.
fn metadata_errors(schema: &Value, default: &Value, inside: Inside<'_>, place: &Path) -> Vec<FieldError> {
    let mut around = inside.way.around(default.clone());
    let found = match embedded::coerce(inside.resource, &mut around, &mut Vec::new()) {
        Err(error) => vec![error],
        Ok(()) => {
            let mut found = Vec::new();
            embedded::validate(inside.resource, &around, &mut found);
            found
        }
    };
    if found.is_empty() {
        return content_errors(schema, default, place);
    }
    let shown = aggregate(found.iter().map(ToString::to_string).collect());
    vec![FieldError::invalid(place, default.clone(), format!("must result in valid metadata: {shown}"))]
}

/// What is wrong with any other default. Of the resources inside it, of its form and of its rules, the first that fails
/// is told.
fn default_errors(schema: &Value, default: &Value, place: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut pruned = json!({ "default": default });
    let around = json!({ "type": "object", "properties": { "default": schema } });
    structure::prune_root(&around, &mut pruned);
    if pruned["default"] != *default {
        errors.push(FieldError::invalid(place, default.clone(), "must not have unknown fields"));
    }
    if let Err(error) = embedded::coerce_at(place, schema, &mut default.clone(), &mut Vec::new()) {
        errors.push(error);
        return errors;
    }
    let mut found = Vec::new();
    embedded::validate_at(place, schema, default, &mut found);
    errors.append(&mut if found.is_empty() { content_errors(schema, default, place) } else { found });
    errors
}

fn content_errors(schema: &Value, default: &Value, place: &Path) -> Vec<FieldError> {
    // The errors speak of the value as if it were an object of its own.
    let found = validation::validate(&without_choices(schema), default, None, Some(place));
    if found.is_empty() { held_to_rules(schema, default, place) } else { found }
}

/// A schema that does not say that a value is a number or a text: upstream does not ask that of defaults.
fn without_choices(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, value)| *key != "x-kubernetes-int-or-string" || !value.is_boolean());
            kept.map(|(key, value)| (key.clone(), without_choices(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_choices).collect(),
        other => other.clone(),
    }
}

/// What the rules of a schema say against its default, both as a change of itself and as a value without past.
fn held_to_rules(schema: &Value, default: &Value, place: &Path) -> Vec<FieldError> {
    let Some(rules) = Rules::compile_below(schema) else { return Vec::new() };
    let found = rules.check_default(place, schema, default);
    if found.is_empty() { rules.check_at(place, schema, default, None) } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_resources_are_resources() {
        let errors = |schema: Value| {
            let mut errors = Vec::new();
            validate(&schema, &Path::root("s"), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        let told = errors(json!({ "type": "object", "default": {} }));
        assert_eq!(told, "s.default.apiVersion: Required value; s.default.kind: Required value");
        let embedded = |name: &str| {
            let metadata = json!({ "type": "object", "properties": { "name": { "type": "string", "default": name } } });
            json!({ "type": "object", "properties": { "e": { "type": "object", EMBEDDED: true,
                "properties": { "metadata": metadata } } } })
        };
        assert_eq!(errors(embedded("a")), "");
        let told = errors(embedded("a/b"));
        let place = "s.properties[e].properties[metadata].properties[name].default";
        let start =
            format!("{place}: Invalid value: \"a/b\": must result in valid metadata: metadata.name: Invalid value");
        assert!(told.starts_with(&start), "{told}");
    }
}
