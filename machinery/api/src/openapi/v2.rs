//! Version 2 of OpenAPI, made from the documents of version 3.
//!
//! The older form has one document, no `oneOf` and no `allOf`, allows a description beside a reference, publishes no
//! defaults, and has a body as a parameter.

use corten_meta::Value;
use serde_json::{Map, json};

/// The media types in the order in which operations list them.
const MEDIA: [&str; 9] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// Converts all documents to one.
pub(super) fn convert(documents: impl Iterator<Item = Value>, info: Value, security: Value) -> Value {
    let mut paths = Map::new();
    let mut definitions = Map::new();
    for document in documents {
        for (path, item) in document["paths"].as_object().into_iter().flatten() {
            paths.insert(path.clone(), convert_path(item));
        }
        for (name, schema) in document.pointer("/components/schemas").and_then(Value::as_object).into_iter().flatten() {
            definitions.insert(name.clone(), convert_schema(schema));
        }
    }
    super::schemas::list_every_group(&mut definitions, false);
    json!({
        "swagger": "2.0",
        "info": info,
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": security,
        "security": [{"BearerToken": []}],
    })
}

fn convert_path(item: &Value) -> Value {
    let mut out = Map::new();
    for (key, value) in item.as_object().into_iter().flatten() {
        let converted = if key == "parameters" { convert_parameters(value) } else { convert_operation(value) };
        out.insert(key.clone(), converted);
    }
    Value::Object(out)
}

fn convert_parameters(parameters: &Value) -> Value {
    let one = |parameter: &Value| {
        let mut out = parameter.as_object().cloned().unwrap_or_default();
        if let Some(Value::Object(schema)) = out.remove("schema") {
            out.extend(schema);
        }
        Value::Object(out)
    };
    parameters.as_array().into_iter().flatten().map(one).collect()
}

fn convert_operation(operation: &Value) -> Value {
    let mut out = operation.as_object().cloned().unwrap_or_default();
    let media = |content: &Value| -> Value {
        let mut all: Vec<String> = content.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
        all.sort_by_key(|name| MEDIA.iter().position(|known| known == name));
        all.into()
    };
    let first_schema =
        |content: &Value| content.as_object().and_then(|c| c.values().next()).map(|c| convert_schema(&c["schema"]));
    let mut parameters = convert_parameters(&operation["parameters"]).as_array().cloned().unwrap_or_default();
    // A read-only operation is published as consuming what it produces, unless it is a proxy.
    let produces = media(&operation["responses"]["200"]["content"]);
    let is_resource = operation.get("x-kubernetes-action").is_some();
    let is_for_clients = !operation["responses"]["200"].to_string().contains("\"type\":\"string\"");
    let mut consumes = match (is_resource, is_for_clients) {
        (true, _) => json!(["*/*"]),
        (false, true) => produces.clone(),
        (false, false) => Value::Null,
    };
    if let Some(body) = out.remove("requestBody") {
        let mut parameter = json!({"in": "body", "name": "body", "schema": first_schema(&body["content"])});
        if body["required"] == true {
            parameter["required"] = true.into();
        }
        parameters.insert(0, parameter);
        consumes = media(&body["content"]);
    }
    let mut responses = Map::new();
    for (code, response) in operation["responses"].as_object().into_iter().flatten() {
        let mut converted = json!({"description": response["description"]});
        if let Some(schema) = first_schema(&response["content"]) {
            converted["schema"] = schema;
        }
        responses.insert(code.clone(), converted);
    }
    if !consumes.is_null() {
        out.insert("consumes".to_string(), consumes);
    }
    out.insert("produces".to_string(), produces);
    out.insert("schemes".to_string(), json!(["https"]));
    out.insert("responses".to_string(), responses.into());
    if parameters.is_empty() {
        out.remove("parameters");
    } else {
        out.insert("parameters".to_string(), parameters.into());
    }
    Value::Object(out)
}

fn convert_schema(schema: &Value) -> Value {
    let Some(object) = schema.as_object() else { return schema.clone() };
    let mut out = Map::new();
    for (key, value) in object {
        match key.as_str() {
            "default" => {}
            "$ref" => {
                let name = value.as_str().unwrap_or_default().replace("#/components/schemas/", "#/definitions/");
                out.insert(key.clone(), name.into());
            }
            "allOf" => out.extend(convert_schema(&value[0]).as_object().cloned().unwrap_or_default()),
            // A quantity and an int-or-string are strings to old clients.
            "oneOf" => {
                out.insert("type".to_string(), "string".into());
            }
            "properties" => {
                let fields: Map<String, Value> =
                    value.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), convert_schema(v))).collect();
                out.insert(key.clone(), fields.into());
            }
            "items" | "additionalProperties" => {
                out.insert(key.clone(), convert_schema(value));
            }
            _ => {
                out.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(out)
}
