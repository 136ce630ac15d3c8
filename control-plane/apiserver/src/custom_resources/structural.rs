//! Structural schemas: what a schema must be so that objects can be pruned, defaulted and published by it. In
//! upstream's words. Pure.

use corten_cel::library::regex::compile;
use corten_meta::{FieldError, Path, Value};

use super::{schema as structure, validation};

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];

/// Where a schema stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Everything that keeps a schema from being structural.
pub fn validate(schema: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if schema["nullable"] == true {
        errors.push(FieldError::forbidden(&path.child("nullable"), "nullable cannot be true at the root"));
    }
    invariants(schema, Level::Root, path, &mut errors);
    if errors.is_empty() {
        marks(schema, path, &mut errors);
    }
    if errors.is_empty() {
        defaults(schema, path, Some("at the root"), true, &mut errors);
    }
    errors
}

fn text<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema[key].as_str().unwrap_or_default()
}

fn is(schema: &Value, mark: &str) -> bool {
    schema[mark] == true
}

/// The schemas below one, with their places.
fn below(schema: &Value, path: &Path) -> Vec<(Level, Path, Value)> {
    let mut found = Vec::new();
    if schema["items"].is_object() {
        found.push((Level::Item, path.child("items"), schema["items"].clone()));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        found.push((Level::Field, path.child("properties").key(name), property.clone()));
    }
    if schema["additionalProperties"].is_object() {
        found.push((Level::Field, path.child("additionalProperties"), schema["additionalProperties"].clone()));
    }
    found
}

fn invariants(schema: &Value, level: Level, path: &Path, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    if kind == "array" && !schema["items"].is_object() {
        errors.push(FieldError::required(&path.child("items"), "must be specified"));
    }
    for (level, path, schema) in below(schema, path) {
        invariants(&schema, level, &path, errors);
    }
    let has_values = !schema["additionalProperties"].is_null();
    if has_values && level == Level::Root {
        let path = path.child("additionalProperties");
        errors.push(FieldError::forbidden(&path, "must not be used at the root"));
    }
    let embedded = is(schema, "x-kubernetes-embedded-resource");
    let int_or_string = is(schema, "x-kubernetes-int-or-string");
    let preserves = is(schema, "x-kubernetes-preserve-unknown-fields");
    for (set, mark) in
        [(preserves, "x-kubernetes-preserve-unknown-fields"), (embedded, "x-kubernetes-embedded-resource")]
    {
        if int_or_string && set {
            let detail = "must be false if x-kubernetes-int-or-string is true";
            errors.push(FieldError::invalid(&path.child(mark), true, detail));
        }
    }
    let must_be_object = "must be object if x-kubernetes-embedded-resource is true";
    match (embedded, kind) {
        (true, "object") => {}
        (true, "") => errors.push(FieldError::required(&path.child("type"), must_be_object)),
        (true, kind) => errors.push(FieldError::invalid(&path.child("type"), kind, must_be_object)),
        (false, "") if !int_or_string && !preserves => {
            let detail = match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            };
            errors.push(FieldError::required(&path.child("type"), detail));
        }
        _ => {}
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(&path.child("type"), kind, "must be object at the root"));
    }
    resource_fields(schema, level, embedded, path, errors);
    junctors(schema, path, errors);
}

/// `apiVersion`, `kind` and `metadata` of the root and of embedded resources.
fn resource_fields(schema: &Value, level: Level, embedded: bool, path: &Path, errors: &mut Vec<FieldError>) {
    if level != Level::Root && !embedded {
        return;
    }
    let properties = path.child("properties");
    for (field, wanted) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
        let Some(property) = schema["properties"].get(field) else { continue };
        if text(property, "type") != wanted {
            let path = properties.key(field).child("type");
            errors.push(FieldError::invalid(&path, text(property, "type"), format!("must be {wanted}")));
        }
    }
    if let (Level::Root, Some(metadata)) = (level, schema["properties"].get("metadata")) {
        let other = metadata.as_object().into_iter().flatten().any(|(key, value)| match key.as_str() {
            "type" | "description" => false,
            "properties" => value
                .as_object()
                .is_some_and(|p| p.keys().any(|name| !matches!(name.as_str(), "name" | "generateName"))),
            _ => true,
        });
        if other {
            let detail =
                "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(FieldError::forbidden(&properties.key("metadata"), detail));
        }
    }
    let preserves = is(schema, "x-kubernetes-preserve-unknown-fields");
    let empty = schema["properties"].as_object().is_none_or(serde_json::Map::is_empty);
    if embedded && !preserves && empty {
        let detail =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(&properties, detail));
    }
}

/// `anyOf`, `allOf`, `oneOf` and `not` only narrow what the schema around them says.
fn junctors(schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let pattern = text(schema, "pattern");
    if let Err(error) = compile(pattern) {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(&path.child("pattern"), pattern, detail));
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        let int_or_string = key != "oneOf" && is(schema, "x-kubernetes-int-or-string");
        for (index, branch) in schema[key].as_array().into_iter().flatten().enumerate() {
            nested(branch, schema, int_or_string, &path.child(key).index(index), errors);
        }
    }
    if schema["not"].is_object() {
        nested(&schema["not"], schema, false, &path.child("not"), errors);
    }
}

fn nested(branch: &Value, outer: &Value, int_or_string: bool, path: &Path, errors: &mut Vec<FieldError>) {
    // The usual way to write that a value is a number or a text.
    let is_choice = int_or_string && branch.as_object().is_some_and(|b| b.len() == 1);
    if is_choice && matches!(text(branch, "type"), "integer" | "string") {
        return;
    }
    if !text(branch, "type").is_empty() {
        errors.push(FieldError::forbidden(&path.child("type"), "must be empty to be structural"));
    }
    for key in ["additionalProperties", "default", "nullable"] {
        let set = !branch[key].is_null() && branch[key] != false;
        if set {
            errors.push(FieldError::forbidden(&path.child(key), "must be undefined to be structural"));
        }
    }
    for key in ["title", "description"] {
        if !text(branch, key).is_empty() {
            errors.push(FieldError::forbidden(&path.child(key), "must be empty to be structural"));
        }
    }
    let marks = branch.as_object().into_iter().flatten().filter(|(key, value)| {
        key.starts_with("x-kubernetes-") && *key != "x-kubernetes-validations" && **value != false
    });
    for (mark, _) in marks {
        let detail = if mark.starts_with("x-kubernetes-list-map") { "must be empty" } else { "must be false" };
        errors.push(FieldError::forbidden(&path.child(mark), format!("{detail} to be structural")));
    }
    if branch["x-kubernetes-validations"].as_array().is_some_and(|rules| !rules.is_empty()) {
        let path = path.child("x-kubernetes-validations");
        errors.push(FieldError::forbidden(&path, "must be empty to be structural"));
    }
    for (name, property) in branch["properties"].as_object().into_iter().flatten() {
        let place = path.child("properties").key(name);
        match outer["properties"].get(name) {
            Some(outer) => nested(property, outer, is(outer, "x-kubernetes-int-or-string"), &place, errors),
            None if outer["x-kubernetes-preserve-unknown-fields"] == true
                || outer["additionalProperties"].is_object() => {}
            None => errors.push(FieldError::required(&place, format!("because it is defined in {place}"))),
        }
    }
    if branch["items"].is_object() {
        nested(&branch["items"], &outer["items"], false, &path.child("items"), errors);
    }
    junctors(branch, path, errors);
}

/// Types, and what lists and maps are marked as.
fn marks(schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    let (list, map) = (text(schema, "x-kubernetes-list-type"), text(schema, "x-kubernetes-map-type"));
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("type"), kind, TYPES));
    }
    if is(schema, "uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(&path.child("uniqueItems"), detail));
    }
    for key in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if !schema[key].is_null() {
            errors.push(FieldError::forbidden(&path.child(key), format!("{key} is not supported")));
        }
    }
    let has_properties = schema["properties"].as_object().is_some_and(|p| !p.is_empty());
    if has_properties && (schema["additionalProperties"].is_object() || schema["additionalProperties"] == false) {
        let path = path.child("additionalProperties");
        errors.push(FieldError::forbidden(&path, "additionalProperties and properties are mutual exclusive"));
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == false {
        let path = path.child("x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(&path, false, "must be true or undefined"));
    }
    for (mark, value, of, words) in [
        ("x-kubernetes-map-type", map, "object", &["atomic", "granular"][..]),
        ("x-kubernetes-list-type", list, "array", &["atomic", "set", "map"][..]),
    ] {
        if value.is_empty() {
            continue;
        }
        let detail = format!("must be {of} if {mark} is specified");
        match kind {
            kind if kind == of => {}
            "" => errors.push(FieldError::required(&path.child("type"), detail)),
            kind => errors.push(FieldError::invalid(&path.child("type"), kind, detail)),
        }
        if !words.contains(&value) {
            errors.push(FieldError::not_supported(&path.child(mark), value, words));
        }
    }
    list_map(schema, list, path, errors);
    for (_, path, schema) in below(schema, path) {
        marks(&schema, &path, errors);
    }
}

/// A list that is a map of items: its keys are required or defaulted scalars of its items.
fn list_map(schema: &Value, list: &str, path: &Path, errors: &mut Vec<FieldError>) {
    let keys: Vec<&str> =
        schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mark = path.child("x-kubernetes-list-type");
    match list {
        "map" => {}
        _ if keys.is_empty() => return,
        "" => {
            let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
            return errors.push(FieldError::required(&mark, detail));
        }
        other => {
            let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
            return errors.push(FieldError::invalid(&mark, other, detail));
        }
    }
    if keys.is_empty() {
        let path = path.child("x-kubernetes-list-map-keys");
        errors.push(FieldError::required(&path, "must not be empty if x-kubernetes-list-type is map"));
    }
    let (items, place) = (&schema["items"], path.child("items"));
    if text(items, "type") != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        return errors.push(FieldError::invalid(&place.child("type"), text(items, "type"), detail));
    }
    let required = |key: &str| items["required"].as_array().is_some_and(|list| list.iter().any(|name| name == key));
    for (index, key) in keys.iter().enumerate() {
        let here = path.child("x-kubernetes-list-map-keys").index(index);
        let Some(property) = items["properties"].get(*key) else {
            errors.push(FieldError::invalid(&here, *key, "entries must all be names of item properties"));
            continue;
        };
        if matches!(text(property, "type"), "array" | "object") {
            let path = place.child("properties").key(key).child("type");
            let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            errors.push(FieldError::invalid(&path, text(property, "type"), detail));
        }
        if property.get("default").is_none() && !required(key) {
            let path = place.child("properties").key(key).child("default");
            let detail =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(&path, detail));
        }
    }
}

/// Defaults are valid and name no field that would be pruned; `forbidden` says where there may be none.
fn defaults(schema: &Value, path: &Path, forbidden: Option<&str>, is_root: bool, errors: &mut Vec<FieldError>) {
    if let Some(default) = schema.get("default") {
        let place = path.child("default");
        let mut pruned = serde_json::json!({ "default": default });
        let around = serde_json::json!({ "type": "object", "properties": { "default": schema } });
        structure::prune_root(&around, &mut pruned);
        if let Some(why) = forbidden.filter(|why| *why != "at the root") {
            errors.push(FieldError::forbidden(&place, format!("must not be set {why}")));
        } else if pruned["default"] != *default {
            errors.push(FieldError::invalid(&place, default.clone(), "must not have unknown fields"));
        } else if !default.is_null() {
            validation::validate(schema, default, None, Some(place), errors);
        } else if schema["nullable"] != true {
            errors.push(FieldError::invalid(&place, Value::Null, "must not be null when nullable is not true"));
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let meta = is_root && structure::ALWAYS.contains(&name.as_str());
        let why = format!("in top-level {name}");
        let below = if meta { Some(why.as_str()) } else { forbidden.filter(|why| *why != "at the root") };
        defaults(property, &path.child("properties").key(name), below, false, errors);
    }
    let forbidden = forbidden.filter(|why| *why != "at the root");
    for key in ["items", "additionalProperties"] {
        if schema[key].is_object() {
            defaults(&schema[key], &path.child(key), forbidden, false, errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn errors(schema: Value) -> String {
        let found = validate(&schema, &Path::root("schema"));
        found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    fn field(schema: Value) -> Value {
        json!({ "type": "object", "properties": { "f": schema } })
    }

    #[test]
    fn schemas_are_structural() {
        for good in [
            json!({ "type": "object" }),
            json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true }),
            json!({ "type": "object", "properties": { "metadata": { "type": "object", "properties": { "name": { "type": "string" } } } } }),
            field(
                json!({ "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] }),
            ),
            field(
                json!({ "type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true }),
            ),
            field(
                json!({ "type": "array", "items": { "type": "object", "required": ["k"], "properties": { "k": { "type": "string" } } },
                          "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"] }),
            ),
            field(
                json!({ "type": "object", "properties": { "a": { "type": "string" } }, "oneOf": [{ "required": ["a"] }] }),
            ),
            field(json!({ "type": "integer", "default": 3 })),
        ] {
            assert_eq!(errors(good.clone()), "", "{good}");
        }
    }

    #[test]
    fn what_is_not_structural_is_named() {
        for (schema, expected) in [
            (json!({}), "schema.type: Required value: must not be empty at the root"),
            (json!({ "type": "string" }), "schema.type: Invalid value: \"string\": must be object at the root"),
            (
                field(json!({})),
                "schema.properties[f].type: Required value: must not be empty for specified object fields",
            ),
            (field(json!({ "type": "array" })), "schema.properties[f].items: Required value: must be specified"),
            (
                field(json!({ "type": "object", "allOf": [{ "type": "object" }] })),
                "schema.properties[f].allOf[0].type: Forbidden: must be empty to be structural",
            ),
            (field(json!({ "type": "strin" })), "Unsupported value: \"strin\""),
            (
                field(json!({ "type": "array", "items": { "type": "string" }, "uniqueItems": true })),
                "uniqueItems cannot be set to true",
            ),
            (field(json!({ "type": "string", "pattern": "(" })), "must be a valid regular expression"),
            (field(json!({ "type": "integer", "default": "x" })), "must be of type integer"),
            (
                field(json!({ "type": "object", "properties": { "a": { "type": "string" } }, "default": { "b": 1 } })),
                "must not have unknown fields",
            ),
            (
                json!({ "type": "object", "properties": { "metadata": { "type": "object", "properties": { "labels": { "type": "object" } } } } }),
                "must not specify anything other than name and generateName",
            ),
            (
                field(
                    json!({ "type": "array", "items": { "type": "object", "properties": { "k": { "type": "string" } } },
                           "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"] }),
                ),
                "must have a default or be a required property",
            ),
            (
                field(
                    json!({ "type": "object", "properties": { "a": { "type": "string" } }, "additionalProperties": { "type": "string" } }),
                ),
                "mutual exclusive",
            ),
        ] {
            let found = errors(schema.clone());
            assert!(found.contains(expected), "{schema}: {found}");
        }
    }
}
