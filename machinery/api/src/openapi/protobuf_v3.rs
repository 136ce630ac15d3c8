//! A version 3 document as protobuf, the form that client-go prefers for it.
//!
//! The messages are those of gnostic's package `openapi.v3`: one function each, which writes the keys that documents of
//! Kubernetes have.

use corten_meta::Value;

use super::protobuf::{any, bytes, extensions, flag, flags, integers, list, nested, numbers, pairs, strings, texts};

/// Encodes a version 3 document.
pub fn encode_v3(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    texts(document, &[("openapi", 1)], &mut out);
    nested(2, &mut out, |out| texts(&document["info"], &[("title", 1), ("description", 2), ("version", 6)], out));
    nested(4, &mut out, |out| pairs(1, &document["paths"], out, path_item));
    let components = &document["components"];
    nested(5, &mut out, |out| {
        message(1, components.get("schemas"), out, |schemas, out| pairs(1, schemas, out, schema_or_reference));
        message(7, components.get("securitySchemes"), out, |schemes, out| pairs(1, schemes, out, security_scheme));
    });
    for requirement in list(&document["security"]) {
        nested(6, &mut out, |out| pairs(1, requirement, out, |scopes, out| strings(1, scopes, out)));
    }
    extensions(9, document, &mut out);
    out
}

fn security_scheme(scheme: &Value, out: &mut Vec<u8>) {
    nested(1, out, |out| texts(scheme, &[("type", 1), ("description", 2), ("name", 3), ("in", 4), ("scheme", 5)], out));
}

fn path_item(item: &Value, out: &mut Vec<u8>) {
    const OPERATIONS: [(&str, u32); 7] =
        [("get", 4), ("put", 5), ("post", 6), ("delete", 7), ("options", 8), ("head", 9), ("patch", 10)];
    texts(item, &[("summary", 2), ("description", 3)], out);
    for (verb, number) in OPERATIONS {
        message(number, item.get(verb), out, operation);
    }
    parameters(13, &item["parameters"], out);
    extensions(14, item, out);
}

fn operation(operation: &Value, out: &mut Vec<u8>) {
    strings(1, &operation["tags"], out);
    texts(operation, &[("summary", 2), ("description", 3), ("operationId", 5)], out);
    parameters(6, &operation["parameters"], out);
    message(7, operation.get("requestBody"), out, |body, out| {
        nested(1, out, |out| {
            texts(body, &[("description", 1)], out);
            message(2, body.get("content"), out, content);
            flags(body, &[("required", 3)], out);
        });
    });
    message(8, operation.get("responses"), out, |responses, out| {
        message(1, responses.get("default"), out, response);
        let mut codes = responses.clone();
        codes.as_object_mut().map(|codes| codes.remove("default"));
        pairs(2, &codes, out, response);
    });
    flags(operation, &[("deprecated", 10)], out);
    extensions(13, operation, out);
}

fn response(response: &Value, out: &mut Vec<u8>) {
    nested(1, out, |out| {
        texts(response, &[("description", 1)], out);
        message(3, response.get("content"), out, content);
    });
}

/// Writes the content of each media type.
fn content(content: &Value, out: &mut Vec<u8>) {
    pairs(1, content, out, |media_type, out| message(1, media_type.get("schema"), out, schema_or_reference));
}

fn parameters(number: u32, parameters: &Value, out: &mut Vec<u8>) {
    for parameter in list(parameters) {
        nested(number, out, |out| {
            nested(1, out, |out| {
                texts(parameter, &[("name", 1), ("in", 2), ("description", 3)], out);
                flags(parameter, &[("required", 4)], out);
                message(10, parameter.get("schema"), out, schema_or_reference);
            });
        });
    }
}

fn schema_or_reference(of: &Value, out: &mut Vec<u8>) {
    if of.get("$ref").is_some() {
        nested(2, out, |out| texts(of, &[("$ref", 1)], out));
    } else {
        nested(1, out, |out| schema(of, out));
    }
}

fn schema(of: &Value, out: &mut Vec<u8>) {
    flags(of, &[("nullable", 1), ("readOnly", 3), ("writeOnly", 4)], out);
    any(7, of.get("example"), out);
    flags(of, &[("deprecated", 8)], out);
    texts(of, &[("title", 9)], out);
    numbers(of, &[("multipleOf", 10), ("maximum", 11)], out);
    flags(of, &[("exclusiveMaximum", 12)], out);
    numbers(of, &[("minimum", 13)], out);
    flags(of, &[("exclusiveMinimum", 14)], out);
    integers(of, &[("maxLength", 15), ("minLength", 16)], out);
    texts(of, &[("pattern", 17)], out);
    integers(of, &[("maxItems", 18), ("minItems", 19)], out);
    flags(of, &[("uniqueItems", 20)], out);
    integers(of, &[("maxProperties", 21), ("minProperties", 22)], out);
    strings(23, &of["required"], out);
    list(&of["enum"]).iter().for_each(|value| any(24, Some(value), out));
    texts(of, &[("type", 25)], out);
    for (key, number) in [("allOf", 26), ("oneOf", 27), ("anyOf", 28)] {
        list(&of[key]).iter().for_each(|inner| nested(number, out, |out| schema_or_reference(inner, out)));
    }
    message(29, of.get("not"), out, schema);
    message(30, of.get("items"), out, |inner, out| nested(1, out, |out| schema_or_reference(inner, out)));
    message(31, of.get("properties"), out, |properties, out| pairs(1, properties, out, schema_or_reference));
    message(32, of.get("additionalProperties"), out, |inner, out| match inner {
        Value::Bool(allowed) => flag(2, *allowed, out),
        inner => nested(1, out, |out| schema_or_reference(inner, out)),
    });
    message(33, of.get("default"), out, default);
    texts(of, &[("description", 34), ("format", 35)], out);
    extensions(36, of, out);
}

/// Writes a default; one that is no scalar is empty, because the message has no field for it.
fn default(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Number(_) => numbers(&serde_json::json!({ "number": value }), &[("number", 1)], out),
        Value::Bool(value) => flag(2, *value, out),
        Value::String(text) => bytes(3, text.as_bytes(), out),
        _ => {}
    }
}

/// Writes a message in a field, if there is one.
fn message(number: u32, value: Option<&Value>, out: &mut Vec<u8>, write: impl FnOnce(&Value, &mut Vec<u8>)) {
    if let Some(value) = value {
        nested(number, out, |out| write(value, out));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::protobuf::tests::at;
    use super::*;

    #[test]
    fn a_document_is_found_again_in_its_messages() {
        let reference = json!({"$ref": "#/components/schemas/Pod"});
        let document = json!({
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": "v1"},
            "paths": {"/api/v1/pods": {
                "get": {
                    "operationId": "listPods",
                    "requestBody": {"content": {"*/*": {"schema": reference}}},
                    "responses": {"200": {"content": {"application/json": {"schema": reference}}, "description": "OK"}},
                    "x-kubernetes-action": "list",
                },
                "parameters": [{"in": "query", "name": "watch", "schema": {"type": "boolean", "uniqueItems": true}}],
            }},
            "components": {
                "schemas": {"Pod": {
                    "type": "object",
                    "properties": {
                        "a": {"additionalProperties": {"type": "string", "default": ""}, "default": {}},
                        "b": {"items": {"allOf": [reference], "default": 1.5}},
                    },
                }},
                "securitySchemes": {"BearerToken": {"type": "apiKey", "in": "header", "name": "authorization"}},
            },
        });
        let encoded = encode_v3(&document);
        let text = |path: &[u64]| String::from_utf8(at(&encoded, path)).unwrap();
        let shown = "#/components/schemas/Pod";
        let get: &[u64] = &[4, 1, 2, 4];
        let (pod, get) = (|path: &[u64]| [&[5, 1, 1, 2, 1], path].concat(), |path: &[u64]| [get, path].concat());
        for (path, wanted) in [
            (vec![1], "3.0.0"),
            (vec![2, 6], "v1"),
            (vec![4, 1, 1], "/api/v1/pods"),
            (vec![4, 1, 2, 13, 1, 10, 1, 25], "boolean"),
            (get(&[5]), "listPods"),
            (get(&[7, 1, 2, 1, 2, 1, 2, 1]), shown),
            (get(&[8, 2, 1]), "200"),
            (get(&[8, 2, 2, 1, 3, 1, 1]), "application/json"),
            (get(&[8, 2, 2, 1, 3, 1, 2, 1, 2, 1]), shown),
            (get(&[13, 1]), "x-kubernetes-action"),
            (pod(&[25]), "object"),
            (pod(&[31, 1, 1]), "a"),
            (pod(&[31, 1, 2, 1, 32, 1, 1, 25]), "string"),
            (vec![5, 7, 1, 2, 1, 3], "authorization"),
        ] {
            assert_eq!(text(&path), wanted, "{path:?}");
        }
        // A default that is an object is present and empty.
        assert_eq!(at(&encoded, &pod(&[31, 1, 2, 1, 33])), Vec::<u8>::new());
        let items = encode_v3(&json!({"components": {"schemas": {"P": {"items": {"default": 1.5}}}}}));
        assert_eq!(at(&items, &[5, 1, 1, 2, 1, 30, 1, 1, 33, 1]), 1.5f64.to_le_bytes());
    }
}
