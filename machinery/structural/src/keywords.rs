//! Validates the keywords of a schema beside its structure: types, list and map types, and unsupported keywords. In
//! upstream's words and order: schemas below come before the schema's own keywords. Pure.

use corten_meta::{FieldError, Path, Value};

use crate::rules::field_path;
use crate::schema::ALWAYS;

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];
const REASONS: &[&str] = &["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
/// The keywords that hold one schema.
const ONE: [&str; 3] = ["additionalProperties", "not", "items"];

/// The position of a schema.
#[derive(Clone, Default)]
struct Position {
    is_root: bool,
    is_in_metadata: bool,
    /// The reason why a default is not allowed.
    no_default: Option<String>,
}

/// Adds the errors of the keywords of a schema and of those below it.
pub fn validate(schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    validate_schema(schema, path, &Position { is_root: true, ..Position::default() }, errors);
}

fn string<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema[key].as_str().unwrap_or_default()
}

/// Reports whether an unsupported keyword is present. Some count even if they are empty.
fn is_present(key: &str, value: &Value) -> bool {
    let is_empty = value.as_object().is_some_and(serde_json::Map::is_empty);
    !(value.is_null() || is_empty && matches!(key, "patternProperties" | "definitions"))
}

fn validate_schema(schema: &Value, path: &Path, position: &Position, errors: &mut Vec<FieldError>) {
    if !schema.is_object() {
        return;
    }
    supported(schema, path, position, errors);
    below(schema, path, position, errors);
    if schema["x-kubernetes-preserve-unknown-fields"] == false {
        let path = path.child("x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(&path, false, "must be true or undefined"));
    }
    collection_type(schema, &MAP_TYPE, path, errors);
    collection_type(schema, &LIST_TYPE, path, errors);
    list_map(schema, path, errors);
    list_items(schema, path, errors);
    for (index, rule) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        rule_form(rule, schema, &path.child("x-kubernetes-validations").index(index), errors);
    }
}

fn supported(schema: &Value, path: &Path, position: &Position, errors: &mut Vec<FieldError>) {
    let kind = string(schema, "type");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("type"), kind, TYPES).as_text());
    }
    if let Some(why) = position.no_default.as_ref().filter(|_| schema.get("default").is_some()) {
        errors.push(FieldError::forbidden(&path.child("default"), format!("must not be set {why}")));
    }
    for key in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if is_present(key, &schema[key]) {
            errors.push(FieldError::forbidden(&path.child(key), format!("{key} is not supported")));
        }
    }
    if kind == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(&path.child("type"), detail));
    }
    if schema["items"].as_array().is_some_and(|schemas| !schemas.is_empty()) {
        let detail = "items must be a schema object and not an array";
        errors.push(FieldError::forbidden(&path.child("items"), detail));
    }
    if position.is_in_metadata && schema["x-kubernetes-embedded-resource"] == true {
        let path = path.child("x-kubernetes-embedded-resource");
        errors.push(FieldError::forbidden(&path, "must not be used inside of resource meta"));
    }
    if schema["uniqueItems"] == true {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(&path.child("uniqueItems"), detail));
    }
    let has_properties = schema["properties"].as_object().is_some_and(|p| !p.is_empty());
    if has_properties && (schema["additionalProperties"].is_object() || schema["additionalProperties"] == false) {
        let path = path.child("additionalProperties");
        errors.push(FieldError::forbidden(&path, "additionalProperties and properties are mutual exclusive"));
    }
}

fn below(schema: &Value, path: &Path, position: &Position, errors: &mut Vec<FieldError>) {
    let inner = Position { is_root: false, ..position.clone() };
    let mut values = inner.clone();
    if position.is_in_metadata {
        values.no_default = Some("inside additionalProperties applying to object metadata".to_owned());
    }
    let [additional, not, items] = ONE;
    validate_schema(&schema[additional], &path.child(additional), &values, errors);
    let is_resource = position.is_root || schema["x-kubernetes-embedded-resource"] == true;
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let mut inner = inner.clone();
        if is_resource && ALWAYS.contains(&name.as_str()) {
            inner.is_in_metadata = true;
            if position.is_root {
                inner.no_default = Some(format!("in top-level {name}"));
            }
        }
        validate_schema(property, &path.child("properties").key(name), &inner, errors);
    }
    let keyed = |key: &str, errors: &mut Vec<FieldError>| {
        for (name, schema) in schema[key].as_object().into_iter().flatten() {
            validate_schema(schema, &path.child(key).key(name), &inner, errors);
        }
    };
    validate_schema(&schema[not], &path.child(not), &inner, errors);
    for key in ["allOf", "oneOf", "anyOf"] {
        for (index, branch) in schema[key].as_array().into_iter().flatten().enumerate() {
            validate_schema(branch, &path.child(key).index(index), &inner, errors);
        }
    }
    keyed("definitions", errors);
    validate_schema(&schema[items], &path.child(items), &inner, errors);
    for (index, schema) in schema[items].as_array().into_iter().flatten().enumerate() {
        validate_schema(schema, &path.child(items).index(index), &inner, errors);
    }
    keyed("dependencies", errors);
}

/// Adds the errors of a rule that need no compiling.
fn rule_form(rule: &Value, schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let string = |key: &str| rule[key].as_str().unwrap_or_default();
    let invalid = |key: &str, detail: &str| FieldError::invalid(&path.child(key), string(key), detail);
    let expression = string("rule").trim();
    let message = string("message").trim();
    if expression.is_empty() {
        errors.push(FieldError::required(&path.child("rule"), "rule is not specified"));
    } else if !string("message").is_empty() && message.is_empty() {
        errors.push(invalid("message", "must be non-empty if specified"));
    } else if message.contains('\n') {
        errors.push(invalid("message", "must not contain line breaks"));
    } else if expression.contains('\n') && message.is_empty() {
        let detail = "message must be specified if rule contains line breaks";
        errors.push(FieldError::required(&path.child("message"), detail));
    }
    if !string("messageExpression").is_empty() && string("messageExpression").trim().is_empty() {
        let detail = "messageExpression must be non-empty if specified";
        errors.push(FieldError::required(&path.child("messageExpression"), detail));
    }
    if rule["reason"].is_string() && !REASONS.contains(&string("reason")) {
        errors.push(FieldError::not_supported(&path.child("reason"), string("reason"), REASONS));
    }
    if !string("fieldPath").is_empty() && string("fieldPath").trim().is_empty() {
        errors.push(invalid("fieldPath", "must be non-empty if specified"));
    }
    if string("fieldPath").contains('\n') {
        errors.push(invalid("fieldPath", "must not contain line breaks"));
    }
    if !string("fieldPath").is_empty() && field_path(string("fieldPath"), schema).is_none() {
        errors.push(invalid("fieldPath", "must be a valid path"));
    }
}

/// The keyword of a list or map type.
struct CollectionType {
    keyword: &'static str,
    /// The type of the schemas that may have the keyword.
    schema_type: &'static str,
    values: &'static [&'static str],
}

const MAP_TYPE: CollectionType =
    CollectionType { keyword: "x-kubernetes-map-type", schema_type: "object", values: &["atomic", "granular"] };
const LIST_TYPE: CollectionType =
    CollectionType { keyword: "x-kubernetes-list-type", schema_type: "array", values: &["atomic", "set", "map"] };

/// Checks that a list or map type is that of an array or object, and has a supported value.
fn collection_type(schema: &Value, collection: &CollectionType, path: &Path, errors: &mut Vec<FieldError>) {
    let CollectionType { keyword, schema_type, values } = *collection;
    let Some(value) = schema[keyword].as_str() else { return };
    let detail = format!("must be {schema_type} if {keyword} is specified");
    match string(schema, "type") {
        kind if kind == schema_type => {
            if value == "set" {
                set_items(&schema["items"], &path.child("items"), errors);
            }
        }
        "" => errors.push(FieldError::required(&path.child("type"), detail)),
        kind => errors.push(FieldError::invalid(&path.child("type"), kind, detail)),
    }
    if !values.contains(&value) {
        errors.push(FieldError::not_supported(&path.child(keyword), value, values).as_text());
    }
}

/// Checks the items of a set, which are compared as a unit.
fn set_items(items: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    const DETAIL: &str = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let list = &items["x-kubernetes-list-type"];
    match string(items, "type") {
        "array" if !list.is_null() && *list != "atomic" => {
            errors.push(FieldError::invalid(&path.child("x-kubernetes-list-type"), list.clone(), DETAIL));
        }
        "object" if items["x-kubernetes-map-type"] != "atomic" => {
            errors.push(FieldError::invalid(&path.child("x-kubernetes-map-type"), list.clone(), DETAIL));
        }
        _ => {}
    }
}

/// Returns the map keys of a schema's items.
fn keys(schema: &Value) -> Vec<&str> {
    schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Checks that a list of the type map, and no other, has map keys, which are scalar fields of its items.
fn list_map(schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let keys = keys(schema);
    let mark = path.child("x-kubernetes-list-type");
    const MUST_BE_MAP: &str = "must be map if x-kubernetes-list-map-keys is non-empty";
    match schema["x-kubernetes-list-type"].as_str() {
        Some("map") => {}
        None if !keys.is_empty() => return errors.push(FieldError::required(&mark, MUST_BE_MAP)),
        Some(other) if !keys.is_empty() => return errors.push(FieldError::invalid(&mark, other, MUST_BE_MAP)),
        _ => return,
    }
    let here = path.child("x-kubernetes-list-map-keys");
    if keys.is_empty() {
        errors.push(FieldError::required(&here, "must not be empty if x-kubernetes-list-type is map"));
    }
    let items = &schema["items"];
    let items_path = path.child("items");
    if items.is_null() {
        return errors.push(FieldError::required(&items_path, "must have a schema if x-kubernetes-list-type is map"));
    }
    if !items.is_object() {
        let detail = "must only have a single schema if x-kubernetes-list-type is map";
        return errors.push(FieldError::invalid(&items_path, items.clone(), detail));
    }
    if string(items, "type") != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        return errors.push(FieldError::invalid(&items_path.child("type"), string(items, "type"), detail));
    }
    let all = || Value::from(keys.clone());
    for (at, key) in keys.iter().enumerate() {
        match items["properties"].get(*key) {
            Some(property) if matches!(string(property, "type"), "array" | "object") => {
                let path = items_path.child("properties").key(key).child("type");
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(FieldError::invalid(&path, string(items, "type"), detail));
            }
            Some(_) => {}
            None => errors.push(FieldError::invalid(&here, all(), "entries must all be names of item properties")),
        }
        if keys.iter().take(at).any(|before| before == key) {
            errors.push(FieldError::invalid(&here, all(), "must not contain duplicate entries"));
        }
    }
}

/// Checks that items of sets and maps are not nullable, and that map keys are required or have a default.
fn list_items(schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let list = string(schema, "x-kubernetes-list-type");
    let items = &schema["items"];
    let items_path = path.child("items");
    if !items.is_object() || !matches!(list, "set" | "map") {
        return;
    }
    if items["nullable"] == true {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list}");
        errors.push(FieldError::forbidden(&items_path.child("nullable"), detail));
    }
    let required = |key: &str| items["required"].as_array().is_some_and(|list| list.iter().any(|name| name == key));
    for key in keys(schema).into_iter().filter(|_| list == "map") {
        let Some(property) = items["properties"].get(key) else { continue };
        let key_path = items_path.child("properties").key(key);
        if !required(key) && property.get("default").is_none() {
            let detail =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(&key_path.child("default"), detail));
        }
        if property["nullable"] == true {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(&key_path.child("nullable"), detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: Value, expected: &[&str]) {
        let mut errors = Vec::new();
        validate(&schema, &Path::root("s"), &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{schema}");
    }

    #[test]
    fn keywords_are_allowed_only_where_they_apply() {
        check(json!({ "type": "object", "x-kubernetes-map-type": "atomic" }), &[]);
        check(
            json!({ "type": "object", "x-kubernetes-list-type": "map" }),
            &[
                "s.type: Invalid value: \"object\": must be array if x-kubernetes-list-type is specified",
                "s.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
                "s.items: Required value: must have a schema if x-kubernetes-list-type is map",
            ],
        );
        check(
            json!({ "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "k"],
                "items": { "type": "object", "required": ["k"], "properties": { "k": { "type": "string", "nullable": true } } } }),
            &[
                "s.x-kubernetes-list-map-keys: Invalid value: [\"k\",\"k\"]: must not contain duplicate entries",
                "s.items.properties[k].nullable: Forbidden: this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
                "s.items.properties[k].nullable: Forbidden: this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
            ],
        );
        check(
            json!({ "type": "array", "x-kubernetes-list-type": "set", "items": { "type": "object" } }),
            &[
                "s.items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
            ],
        );
    }

    #[test]
    fn metadata_has_no_defaults() {
        let metadata = json!({ "type": "object", "properties": { "name": { "type": "string", "default": "a" } } });
        check(
            json!({ "type": "object", "properties": { "metadata": metadata } }),
            &["s.properties[metadata].properties[name].default: Forbidden: must not be set in top-level metadata"],
        );
    }
}
