//! Structural schemas: what a schema must be so that objects can be pruned and defaulted by it. In upstream's words.
//! Pure. What else a schema may say is judged in `marks`.

use corten_cel::library::regex::compile;
use corten_meta::{FieldError, Path, Value};

use super::{defaults, marks};

/// What the root of a schema may say when its status is a part of its own, which would lose the rest.
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

/// Where a schema stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// What is wrong with a schema.
pub struct Judgement {
    /// What keeps it from being structural; rules of such a schema are not looked at.
    pub structure: Vec<FieldError>,
    /// What else it says that it may not.
    pub marks: Vec<FieldError>,
    pub is_structural: bool,
}

/// Everything that keeps a schema from being one that objects are held to. As it was given, it may say what is empty.
pub fn validate(schema: &Value, given: &Value, path: &Path, has_status: bool) -> Judgement {
    let mut errors = Vec::new();
    if has_status {
        beside_status(given, path, &mut errors);
    }
    if schema["nullable"] == true {
        errors.push(FieldError::forbidden(&path.child("nullable"), "nullable cannot be true at the root"));
    }
    let mut structure = Vec::new();
    // A schema that says what no structure can hold is not looked at further.
    if is_beyond_structure(schema) {
        let mut marks = Vec::new();
        marks::validate(given, path, &mut marks);
        // All that is beyond it is told there, but one.
        if errors.is_empty() && marks.is_empty() {
            errors.push(FieldError::invalid(path, "", "OpenAPIV3Schema 'schema' is not supported"));
        }
        return Judgement { structure: errors, marks, is_structural: false };
    }
    invariants(schema, Level::Root, path, &mut structure);
    complete_junctors(schema, Some(schema), (path, path), &mut structure);
    structure.sort_by_cached_key(ToString::to_string);
    if structure.is_empty() {
        defaults::validate(schema, path, &mut structure);
    }
    errors.append(&mut structure);
    let mut marks = Vec::new();
    marks::validate(given, path, &mut marks);
    let is_structural = errors.is_empty();
    Judgement { structure: errors, marks, is_structural }
}

/// Whether a schema or one below it has what structural schemas do not know.
fn is_beyond_structure(schema: &Value) -> bool {
    const UNKNOWN: [&str; 7] =
        ["id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions"];
    let is_said = |key: &str, value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(map) => !map.is_empty() || key == "additionalItems",
        _ => true,
    };
    let one = ["items", "additionalProperties", "not"].into_iter().map(|key| &schema[key]);
    let many = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
    let properties = schema["properties"].as_object().into_iter().flat_map(serde_json::Map::values);
    schema.is_object()
        && (UNKNOWN.iter().any(|key| is_said(key, &schema[*key]))
            || schema["items"].as_array().is_some_and(|schemas| !schemas.is_empty())
            || schema["x-kubernetes-preserve-unknown-fields"] == false
            || one.chain(many).chain(properties).any(is_beyond_structure))
}

/// What is empty is said too, unless it cannot be told from what is not said.
fn beside_status(schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    // The first in upstream's order is told.
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

/// Whether these are the two ways to write a value that is a number or a text.
fn is_number_or_text(branches: &Value) -> bool {
    *branches == serde_json::json!([{ "type": "integer" }, { "type": "string" }])
}

/// `anyOf`, `allOf`, `oneOf` and `not` only narrow what the schema around them says.
fn junctors(schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let pattern = text(schema, "pattern");
    if let Err(error) = compile(pattern) {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(&path.child("pattern"), pattern, detail));
    }
    for key in ["anyOf", "allOf", "oneOf"] {
        if key == "anyOf" && is_number_or_text(&schema[key]) {
            continue;
        }
        for (index, branch) in schema[key].as_array().into_iter().flatten().enumerate() {
            nested(branch, &path.child(key).index(index), errors);
        }
    }
    nested(&schema["not"], &path.child("not"), errors);
}

/// What a schema below a junctor may not say.
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
    let marks = ["x-kubernetes-list-type", "x-kubernetes-map-type"].map(|mark| (mark, "undefined"));
    for (key, wanted) in FORBIDDEN.into_iter().chain(marks) {
        let said = match &branch[key] {
            Value::Null | Value::Bool(false) => false,
            Value::String(text) => !text.is_empty(),
            Value::Array(list) => !list.is_empty(),
            _ => true,
        };
        if said {
            errors.push(FieldError::forbidden(&path.child(key), format!("must be {wanted} to be structural")));
        }
    }
    if branch["properties"].get("metadata").is_some() {
        let place = path.child("properties").key("metadata");
        errors.push(FieldError::forbidden(&place, "must not be specified in a nested context"));
    }
}

/// Every field that the junctors of the root speak of is a field of the schema around them. The two paths are the
/// schema's and the junctor's.
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
        found.structure.iter().chain(&found.marks).map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    fn field(schema: Value) -> Value {
        json!({ "type": "object", "properties": { "f": schema } })
    }

    #[test]
    fn what_no_structure_holds_is_told_once() {
        let told = errors(field(json!({ "type": "string", "$schema": "a" })));
        assert_eq!(told, "schema: Invalid value: \"\": OpenAPIV3Schema 'schema' is not supported");
        let told = errors(field(json!({ "type": "string", "$schema": "a", "id": "b" })));
        assert_eq!(told, "schema.properties[f].id: Forbidden: id is not supported");
        let told = errors(json!({ "x-kubernetes-preserve-unknown-fields": false }));
        let place = "schema.x-kubernetes-preserve-unknown-fields";
        assert_eq!(told, format!("{place}: Invalid value: false: must be true or undefined"));
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
