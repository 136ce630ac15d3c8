//! Validates that schemas are structural, so that they can prune and default objects. In upstream's words. Pure. The
//! module `keywords` validates the rest of a schema.

use corten_cel::library::regex::compile;
use corten_meta::{FieldError, Path, Value};

use crate::{defaults, keywords};

/// The keywords that the root of a schema may have together with a status subresource, which would lose the others.
const BESIDE_STATUS: &[&str] = &[
    "Description",
    "Type",
    "Format",
    "Title",
    "Maximum",
    "ExclusiveMaximum",
    "Minimum",
    "ExclusiveMinimum",
    "MaxLength",
    "MinLength",
    "Pattern",
    "MaxItems",
    "MinItems",
    "UniqueItems",
    "MultipleOf",
    "Required",
    "Items",
    "Properties",
    "ExternalDocs",
    "Example",
    "XPreserveUnknownFields",
    "XValidations",
];

/// The level of a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// The errors of a schema.
pub struct SchemaErrors {
    /// The errors that make it not structural; the rules of such a schema are not validated.
    pub structure: Vec<FieldError>,
    /// The errors of its other keywords.
    pub keywords: Vec<FieldError>,
    pub is_structural: bool,
}

/// Validates that a schema is structural and its keywords are valid. `given` is the schema with its empty fields.
pub fn validate(schema: &Value, as_sent: &Value, path: &Path, has_status: bool) -> SchemaErrors {
    let mut errors = Vec::new();
    if has_status {
        beside_status(as_sent, path, &mut errors);
    }
    if schema["nullable"] == true {
        errors.push(FieldError::forbidden(&path.child("nullable"), "nullable cannot be true at the root"));
    }
    let mut structure = Vec::new();
    // A schema with unsupported keywords is not validated further.
    if has_unsupported_keywords(schema) {
        let mut keywords = Vec::new();
        keywords::validate(as_sent, path, &mut keywords);
        // The validation of keywords reports all unsupported ones, except `$schema`.
        if errors.is_empty() && keywords.is_empty() {
            errors.push(FieldError::invalid(path, "", "OpenAPIV3Schema 'schema' is not supported"));
        }
        return SchemaErrors { structure: errors, keywords, is_structural: false };
    }
    invariants(schema, Level::Root, path, &mut structure);
    complete_junctors(schema, Some(schema), (path, path), &mut structure);
    structure.sort_by_cached_key(ToString::to_string);
    if structure.is_empty() {
        defaults::validate(schema, path, &mut structure);
    }
    errors.append(&mut structure);
    let mut keywords = Vec::new();
    keywords::validate(as_sent, path, &mut keywords);
    let is_structural = errors.is_empty();
    SchemaErrors { structure: errors, keywords, is_structural }
}

/// Reports whether a schema or one below it has keywords that structural schemas do not support.
fn has_unsupported_keywords(schema: &Value) -> bool {
    const UNKNOWN: [&str; 7] =
        ["id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions"];
    let is_set = |key: &str, value: &Value| match value {
        Value::Null => false,
        Value::String(string) => !string.is_empty(),
        Value::Object(map) => !map.is_empty() || key == "additionalItems",
        _ => true,
    };
    let one = ["items", "additionalProperties", "not"].into_iter().map(|key| &schema[key]);
    let many = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
    let properties = schema["properties"].as_object().into_iter().flat_map(serde_json::Map::values);
    schema.is_object()
        && (UNKNOWN.iter().any(|key| is_set(key, &schema[*key]))
            || schema["items"].as_array().is_some_and(|schemas| !schemas.is_empty())
            || schema["x-kubernetes-preserve-unknown-fields"] == false
            || one.chain(many).chain(properties).any(has_unsupported_keywords))
}

/// Refuses keywords of the root that the status subresource does not allow. Empty ones count, unless they cannot be
/// distinguished from absent ones.
fn beside_status(schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let kind = string(schema, "type");
    // The error names the first keyword in upstream's order.
    let is_before = ["id", "$schema", "$ref"].iter().any(|key| !schema[*key].is_null());
    if !kind.is_empty() && kind != "object" && !is_before {
        let detail =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        return errors.push(FieldError::invalid(&path.child("type"), kind, detail));
    }
    let is_allowed = |key: &str| match key {
        "x-kubernetes-preserve-unknown-fields" | "x-kubernetes-validations" => true,
        key => BESIDE_STATUS.iter().any(|allowed| allowed.eq_ignore_ascii_case(key)),
    };
    if schema.as_object().into_iter().flatten().any(|(key, value)| !is_allowed(key) && !value.is_null()) {
        let allowed = BESIDE_STATUS.join(" ");
        let detail = format!(
            "only [{allowed}] fields are allowed at the root of the schema if the status subresource is enabled"
        );
        errors.push(FieldError::invalid(path, schema.clone(), detail));
    }
}

fn string<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema[key].as_str().unwrap_or_default()
}

fn is(schema: &Value, mark: &str) -> bool {
    schema[mark] == true
}

/// Returns the schemas below a schema, with their paths.
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
    let kind = string(schema, "type");
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
    if embedded && has_values {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(&path.child("additionalProperties"), detail));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(&path.child("type"), kind, "must be object at the root"));
    }
    resource_fields(schema, level, embedded, path, errors);
    junctors(schema, path, errors);
}

/// Checks `apiVersion`, `kind` and `metadata` of the root and of embedded resources.
fn resource_fields(schema: &Value, level: Level, embedded: bool, path: &Path, errors: &mut Vec<FieldError>) {
    if level != Level::Root && !embedded {
        return;
    }
    let properties = path.child("properties");
    for (field, wanted) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
        let Some(property) = schema["properties"].get(field) else { continue };
        if string(property, "type") != wanted {
            let path = properties.key(field).child("type");
            errors.push(FieldError::invalid(&path, string(property, "type"), format!("must be {wanted}")));
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

/// Reports whether these are the two alternatives of an int-or-string.
fn is_int_or_string(branches: &Value) -> bool {
    *branches == serde_json::json!([{ "type": "integer" }, { "type": "string" }])
}

/// Checks that `anyOf`, `allOf`, `oneOf` and `not` only restrict the schema around them.
fn junctors(schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let pattern = string(schema, "pattern");
    if let Err(error) = compile(pattern) {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(&path.child("pattern"), pattern, detail));
    }
    for key in ["anyOf", "allOf", "oneOf"] {
        if key == "anyOf" && is_int_or_string(&schema[key]) {
            continue;
        }
        for (index, branch) in schema[key].as_array().into_iter().flatten().enumerate() {
            nested(branch, &path.child(key).index(index), errors);
        }
    }
    nested(&schema["not"], &path.child("not"), errors);
}

/// Adds the errors of keywords that a schema below a junctor may not have.
fn nested(branch: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    if !branch.is_object() {
        return;
    }
    const FORBIDDEN: [(&str, &str); 11] = [
        ("type", "empty"),
        ("additionalProperties", "undefined"),
        ("default", "undefined"),
        ("title", "empty"),
        ("description", "empty"),
        ("nullable", "false"),
        ("x-kubernetes-preserve-unknown-fields", "false"),
        ("x-kubernetes-embedded-resource", "false"),
        ("x-kubernetes-int-or-string", "false"),
        ("x-kubernetes-list-map-keys", "empty"),
        ("x-kubernetes-validations", "empty"),
    ];
    junctors(branch, path, errors);
    nested(&branch["items"], &path.child("items"), errors);
    for (name, property) in branch["properties"].as_object().into_iter().flatten() {
        nested(property, &path.child("properties").key(name), errors);
    }
    let keywords = ["x-kubernetes-list-type", "x-kubernetes-map-type"].map(|mark| (mark, "undefined"));
    for (key, wanted) in FORBIDDEN.into_iter().chain(keywords) {
        let is_present = match &branch[key] {
            Value::Null | Value::Bool(false) => false,
            Value::String(string) => !string.is_empty(),
            Value::Array(list) => !list.is_empty(),
            _ => true,
        };
        if is_present {
            errors.push(FieldError::forbidden(&path.child(key), format!("must be {wanted} to be structural")));
        }
    }
    if branch["properties"].get("metadata").is_some() {
        let metadata_path = path.child("properties").key("metadata");
        errors.push(FieldError::forbidden(&metadata_path, "must not be specified in a nested context"));
    }
}

/// Checks that every field in the junctors of the root is a field of the schema around them. The two paths are those of
/// the schema and of the junctor.
fn complete_junctors(branch: &Value, around: Option<&Value>, at: (&Path, &Path), errors: &mut Vec<FieldError>) {
    let mut below = |inner: &Value, path: Path| complete(inner, around, (at.0, &path), errors);
    below(&branch["not"], at.1.child("not"));
    for key in ["allOf", "anyOf", "oneOf"] {
        for (index, inner) in branch[key].as_array().into_iter().flatten().enumerate() {
            below(inner, at.1.child(key).index(index));
        }
    }
}

fn complete(branch: &Value, around: Option<&Value>, at: (&Path, &Path), errors: &mut Vec<FieldError>) {
    if !branch.is_object() {
        return;
    }
    let Some(schema) = around.filter(|schema| schema.is_object()) else {
        return errors.push(FieldError::required(at.0, format!("because it is defined in {}", at.1)));
    };
    complete_junctors(branch, around, at, errors);
    complete(&branch["items"], schema.get("items"), (&at.0.child("items"), &at.1.child("items")), errors);
    for (name, property) in branch["properties"].as_object().into_iter().flatten() {
        let paths = [at.0, at.1].map(|path| path.child("properties").key(name));
        complete(property, schema["properties"].get(name), (&paths[0], &paths[1]), errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn errors(schema: Value) -> String {
        let found = validate(&schema, &schema, &Path::root("schema"), false);
        found.structure.iter().chain(&found.keywords).map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    fn field(schema: Value) -> Value {
        json!({ "type": "object", "properties": { "f": schema } })
    }

    #[test]
    fn an_unsupported_keyword_is_reported_once() {
        let messages = errors(field(json!({ "type": "string", "$schema": "a" })));
        assert_eq!(messages, "schema: Invalid value: \"\": OpenAPIV3Schema 'schema' is not supported");
        let messages = errors(field(json!({ "type": "string", "$schema": "a", "id": "b" })));
        assert_eq!(messages, "schema.properties[f].id: Forbidden: id is not supported");
        let messages = errors(json!({ "x-kubernetes-preserve-unknown-fields": false }));
        let path = "schema.x-kubernetes-preserve-unknown-fields";
        assert_eq!(messages, format!("{path}: Invalid value: false: must be true or undefined"));
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
            field(json!({ "x-kubernetes-int-or-string": true, "default": {} })),
        ] {
            assert_eq!(errors(good.clone()), "", "{good}");
        }
    }

    #[test]
    fn a_schema_that_is_not_structural_has_errors() {
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
            (
                json!({ "type": "object", "anyOf": [{ "properties": { "a": { "minimum": 1 } } }] }),
                "schema.properties[a]: Required value: because it is defined in schema.anyOf[0].properties[a]",
            ),
            (field(json!({ "type": "strin" })), "Unsupported value: \"strin\""),
            (
                field(json!({ "type": "array", "items": { "type": "string" }, "uniqueItems": true })),
                "uniqueItems cannot be set to true",
            ),
            (field(json!({ "type": "string", "pattern": "(" })), "must be a valid regular expression"),
            (
                field(json!({ "type": "integer", "default": "x" })),
                "schema.properties[f].default: Invalid value: \"string\":  in body must be of type integer: \"string\"",
            ),
            (
                field(json!({ "type": "object", "properties": { "a": { "type": "string" } }, "default": { "b": 1 } })),
                "must not have unknown fields",
            ),
            (
                field(json!({ "type": "object", "additionalProperties": false, "default": { "b": 1 } })),
                "schema.properties[f].default: Invalid value: \"b\": .b in body is a forbidden property",
            ),
            (
                field(json!({ "type": "string", "maxLength": -1, "default": "" })),
                "schema.properties[f].default: Too long: value is too long",
            ),
            (
                field(json!({ "type": "array", "items": { "type": "string" }, "maxItems": -1, "default": [] })),
                "schema.properties[f].default: Too many: 0: has too many items",
            ),
            (
                field(json!({ "type": "number", "multipleOf": 0, "default": 2.5 })),
                "schema.properties[f].default: Invalid value: 0: factor MultipleOf declared for  must be positive: 0",
            ),
            (
                field(json!({ "type": "object", "x-kubernetes-embedded-resource": true,
                    "x-kubernetes-preserve-unknown-fields": true, "default": { "apiVersion": "a/b/c", "kind": "K" } })),
                "schema.properties[f].default.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
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
