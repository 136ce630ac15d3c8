//! Validates the defaults of a schema: they are valid, and contain no field that would be pruned. In upstream's words.
//! Pure.

use corten_meta::field::aggregate;
use corten_meta::{FieldError, Path, Value};
use serde_json::json;

use crate::rules::Rules;
use crate::{embedded, schema as structure, validation};

const EMBEDDED: &str = "x-kubernetes-embedded-resource";

/// Adds the errors of a schema's defaults. The root of the schema is always a resource.
pub fn validate(schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let mut root = schema.clone();
    root[EMBEDDED] = true.into();
    below(&root, path, None, errors);
}

/// A position inside the type or the metadata of a resource.
#[derive(Clone, Copy)]
struct Inside<'a> {
    resource: &'a Value,
    value_path: &'a ValuePath<'a>,
}

/// The path from a resource to a position: a field or an item after another.
struct ValuePath<'a> {
    before: Option<&'a ValuePath<'a>>,
    field: Option<&'a str>,
}

impl ValuePath<'_> {
    /// Returns a resource that holds a value at the end of the path, and its type.
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
        let default_path = path.child("default");
        errors.append(&mut match inside {
            Some(inside) => metadata_errors(schema, default, inside, &default_path),
            None => default_errors(schema, default, &default_path),
        });
    }
    let before = inside.map(|inside| inside.value_path);
    if schema["items"].is_object() {
        let value_path = ValuePath { before, field: None };
        let inside = inside.map(|inside| Inside { value_path: &value_path, ..inside });
        below(&schema["items"], &path.child("items"), inside, errors);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let value_path = ValuePath { before, field: Some(name) };
        let resource = match inside {
            Some(inside) => Some(inside.resource),
            None => (is_resource && structure::ALWAYS.contains(&name.as_str())).then_some(schema),
        };
        let inside = resource.map(|resource| Inside { resource, value_path: &value_path });
        below(property, &path.child("properties").key(name), inside, errors);
    }
}

/// Returns the errors of a default inside of metadata, which is validated as a part of the metadata.
fn metadata_errors(schema: &Value, default: &Value, inside: Inside<'_>, default_path: &Path) -> Vec<FieldError> {
    let mut around = inside.value_path.around(default.clone());
    let found = match embedded::coerce(inside.resource, &mut around, &mut Vec::new()) {
        Err(error) => vec![error],
        Ok(()) => {
            let mut found = Vec::new();
            embedded::validate(inside.resource, &around, &mut found);
            found
        }
    };
    if found.is_empty() {
        return content_errors(schema, default, default_path);
    }
    let shown = aggregate(&found).unwrap_or_default();
    vec![FieldError::invalid(default_path, default.clone(), format!("must result in valid metadata: {shown}"))]
}

/// Returns the errors of any other default: of the resources inside it, of its schema and of its rules, those of the
/// first that fails.
fn default_errors(schema: &Value, default: &Value, default_path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut pruned = json!({ "default": default });
    let around = json!({ "type": "object", "properties": { "default": schema } });
    structure::prune_root(&around, &mut pruned);
    if pruned["default"] != *default {
        errors.push(FieldError::invalid(default_path, default.clone(), "must not have unknown fields"));
    }
    if let Err(error) = embedded::coerce_at(default_path, schema, &mut default.clone(), &mut Vec::new()) {
        errors.push(error);
        return errors;
    }
    let mut found = Vec::new();
    embedded::validate_at(default_path, schema, default, &mut found);
    errors.append(&mut if found.is_empty() { content_errors(schema, default, default_path) } else { found });
    errors
}

fn content_errors(schema: &Value, default: &Value, default_path: &Path) -> Vec<FieldError> {
    // The errors have paths as if the value were an object of its own.
    let found = validation::validate(&without_choices(schema), default, None, Some(default_path));
    if found.is_empty() { rule_errors(schema, default, default_path) } else { found }
}

/// Returns a schema without its int-or-string alternatives: upstream does not validate defaults against them.
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

/// Returns the errors of a schema's rules for its default, both as an update of itself and as a new value.
fn rule_errors(schema: &Value, default: &Value, default_path: &Path) -> Vec<FieldError> {
    let Some(rules) = Rules::compile_below(schema) else { return Vec::new() };
    let found = rules.check_default(default_path, schema, default);
    if found.is_empty() { rules.check_at(default_path, schema, default, None) } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_embedded_resources_are_validated() {
        let errors = |schema: Value| {
            let mut errors = Vec::new();
            validate(&schema, &Path::root("s"), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        let messages = errors(json!({ "type": "object", "default": {} }));
        assert_eq!(messages, "s.default.apiVersion: Required value; s.default.kind: Required value");
        let embedded = |name: &str| {
            let metadata = json!({ "type": "object", "properties": { "name": { "type": "string", "default": name } } });
            json!({ "type": "object", "properties": { "e": { "type": "object", EMBEDDED: true,
                "properties": { "metadata": metadata } } } })
        };
        assert_eq!(errors(embedded("a")), "");
        let messages = errors(embedded("a/b"));
        let default_path = "s.properties[e].properties[metadata].properties[name].default";
        let start = format!(
            "{default_path}: Invalid value: \"a/b\": must result in valid metadata: metadata.name: Invalid value"
        );
        assert!(messages.starts_with(&start), "{messages}");
    }
}
