//! The schemas in a CustomResourceDefinition: their pruning, and their unknown formats.
//!
//! In a field that is a schema or a list, or a schema or a bool, the table of types does not know the schema's fields.

use corten_meta::Value;

const TYPE: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
/// The fields that hold a schema or something else.
const EITHER: [&str; 3] = ["additionalItems", "additionalProperties", "items"];
/// The known formats, without their dashes.
const FORMATS: [&str; 26] = [
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "duration",
    "email",
    "hexcolor",
    "hostname",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "k8slongname",
    "k8sshortname",
    "mac",
    "password",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
];

/// Removes the unknown fields of schemas where the table of types cannot.
pub(super) fn prune(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    let is_some = |items: &Value| items.is_object() || items.as_array().is_some_and(|schemas| !schemas.is_empty());
    fields.retain(|name, inner| name != "items" || is_some(inner));
    for (name, inner) in fields.iter_mut() {
        if EITHER.contains(&name.as_str()) && inner.is_object() {
            crate::schema::prune(TYPE, inner);
        }
        match (name.as_str(), inner) {
            ("properties" | "patternProperties" | "definitions", Value::Object(inner)) => {
                inner.values_mut().for_each(prune);
            }
            ("allOf" | "anyOf" | "oneOf" | "items", Value::Array(inner)) => inner.iter_mut().for_each(prune),
            ("not" | "items" | "additionalProperties" | "additionalItems", inner) => prune(inner),
            _ => {}
        }
    }
}

/// Returns the unknown formats of a CustomResourceDefinition.
pub(super) fn unknown_formats(definition: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for version in crate::cells::list(definition, "/spec/versions") {
        collect(&version["schema"]["openAPIV3Schema"], &mut found);
    }
    found
}

fn collect(schema: &Value, found: &mut Vec<String>) {
    let format = schema["format"].as_str().unwrap_or_default();
    let known = match schema["type"].as_str().unwrap_or_default() {
        "" | "string" => FORMATS.contains(&format.replace('-', "").as_str()),
        "integer" => ["int32", "int64"].contains(&format),
        "number" => ["float", "double"].contains(&format),
        _ => false,
    };
    if !format.is_empty() && !known && !found.iter().any(|other| other == format) {
        found.push(format.to_string());
    }
    inside(schema).into_iter().for_each(|schema| collect(schema, found));
}

/// Reports whether a schema, or one inside of it, has a default.
pub(super) fn has_default(schema: &Value) -> bool {
    !schema["default"].is_null() || inside(schema).into_iter().any(has_default)
}

/// Returns the direct subschemas of a schema.
fn inside(schema: &Value) -> Vec<&Value> {
    let mut found = Vec::new();
    for (name, inner) in schema.as_object().into_iter().flatten() {
        match (name.as_str(), inner) {
            ("properties" | "patternProperties" | "definitions", Value::Object(inner)) => found.extend(inner.values()),
            ("allOf" | "anyOf" | "oneOf" | "items", Value::Array(inner)) => found.extend(inner),
            ("not" | "items" | "additionalProperties" | "additionalItems", Value::Object(_)) => found.push(inner),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_in_alternatives_are_pruned_too() {
        let mut schema = json!({"type": "object", "properties": {
            "l": {"type": "array", "items": {"type": "object", "zzz": 1, "nullable": false, "additionalProperties": {"type": "string", "q": 1, "nullable": false}}},
            "any": {"additionalProperties": true, "items": true}}});
        crate::schema::fill_defaults(TYPE, &mut schema);
        prune(&mut schema);
        let wanted = json!({"type": "object", "properties": {
            "l": {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "string"}}},
            "any": {"additionalProperties": true}}});
        assert_eq!(schema, wanted);
    }

    #[test]
    fn nested_defaults_are_found() {
        let within = |schema: serde_json::Value| has_default(&json!({"properties": {"a": schema}}));
        assert!(within(json!({"default": 1})) && within(json!({"items": {"not": {"default": false}}})));
        assert!(!within(json!({"items": {"type": "string"}, "additionalProperties": true})));
    }

    #[test]
    fn unknown_formats_are_named() {
        let schema = json!({"type": "object", "properties": {
            "a": {"type": "string", "format": "date-time"}, "b": {"type": "string", "format": "fancy"},
            "c": {"type": "integer", "format": "int64"}, "d": {"type": "integer", "format": "date"}}});
        let definition = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": schema}}]}});
        assert_eq!(unknown_formats(&definition), ["fancy", "date"]);
    }
}
