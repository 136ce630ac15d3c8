//! The version 2 document as protobuf, the only form that client-go requests.
//!
//! kubectl reads it to check a `List` and to explain in the older form. The messages are those of gnostic's package
//! `openapi.v2`: one function each, which writes the keys that documents of Kubernetes have. Extensions (`x-…`) are
//! YAML.

use corten_meta::Value;

/// Encodes a version 2 document.
pub fn encode_v2(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    texts(document, &[("swagger", 1)], &mut out);
    nested(2, &mut out, |out| texts(&document["info"], &[("title", 1), ("version", 2), ("description", 3)], out));
    nested(8, &mut out, |out| pairs(2, &document["paths"], out, path_item));
    nested(9, &mut out, |out| pairs(1, &document["definitions"], out, schema));
    for requirement in list(&document["security"]) {
        nested(12, &mut out, |out| pairs(1, requirement, out, |scopes, out| strings(1, scopes, out)));
    }
    nested(13, &mut out, |out| {
        pairs(1, &document["securityDefinitions"], out, |definition, out| {
            nested(2, out, |out| texts(definition, &[("type", 1), ("name", 2), ("in", 3), ("description", 4)], out));
        });
    });
    out
}

fn path_item(item: &Value, out: &mut Vec<u8>) {
    const OPERATIONS: [(&str, u32); 7] =
        [("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("options", 6), ("head", 7), ("patch", 8)];
    for (verb, number) in OPERATIONS {
        if let Some(found) = item.get(verb) {
            nested(number, out, |out| operation(found, out));
        }
    }
    parameters(9, &item["parameters"], out);
    extensions(10, item, out);
}

fn operation(operation: &Value, out: &mut Vec<u8>) {
    strings(1, &operation["tags"], out);
    texts(operation, &[("summary", 2), ("description", 3), ("operationId", 5)], out);
    strings(6, &operation["produces"], out);
    strings(7, &operation["consumes"], out);
    parameters(8, &operation["parameters"], out);
    nested(9, out, |out| {
        pairs(1, &operation["responses"], out, |answer, out| nested(1, out, |out| response(answer, out)));
    });
    strings(10, &operation["schemes"], out);
    extensions(13, operation, out);
}

fn response(response: &Value, out: &mut Vec<u8>) {
    texts(response, &[("description", 1)], out);
    if let Some(found) = response.get("schema") {
        nested(2, out, |out| nested(1, out, |out| schema(found, out)));
    }
}

fn parameters(number: u32, parameters: &Value, out: &mut Vec<u8>) {
    for found in list(parameters) {
        nested(number, out, |out| nested(1, out, |out| parameter(found, out)));
    }
}

/// Writes a parameter: a body has a schema; the others have primitive types, and path and query number their fields
/// differently.
fn parameter(parameter: &Value, out: &mut Vec<u8>) {
    match parameter["in"].as_str().unwrap_or_default() {
        "body" => nested(1, out, |out| {
            texts(parameter, &[("description", 1), ("name", 2), ("in", 3)], out);
            flags(parameter, &[("required", 4)], out);
            nested(5, out, |out| schema(&parameter["schema"], out));
        }),
        place => nested(2, out, |out| {
            let (choice, type_of) = match place {
                "header" => (1, 5),
                "path" => (4, 5),
                _ => (3, 6),
            };
            nested(choice, out, |out| {
                flags(parameter, &[("required", 1)], out);
                texts(parameter, &[("in", 2), ("description", 3), ("name", 4)], out);
                texts(parameter, &[("type", type_of), ("format", type_of + 1)], out);
                flags(parameter, &[("uniqueItems", type_of + 14)], out);
            });
        }),
    }
}

fn schema(of: &Value, out: &mut Vec<u8>) {
    texts(of, &[("$ref", 1), ("format", 2), ("title", 3), ("description", 4), ("pattern", 13)], out);
    any(5, of.get("default"), out);
    numbers(of, &[("multipleOf", 6), ("maximum", 7), ("minimum", 9)], out);
    flags(of, &[("exclusiveMaximum", 8), ("exclusiveMinimum", 10), ("uniqueItems", 16), ("readOnly", 27)], out);
    integers(of, &[("maxLength", 11), ("minLength", 12), ("maxItems", 14), ("minItems", 15)], out);
    integers(of, &[("maxProperties", 17), ("minProperties", 18)], out);
    strings(19, &of["required"], out);
    for value in list(&of["enum"]) {
        any(20, Some(value), out);
    }
    match of.get("additionalProperties") {
        Some(Value::Bool(allowed)) => nested(21, out, |out| flag(2, *allowed, out)),
        Some(inner) => nested(21, out, |out| nested(1, out, |out| schema(inner, out))),
        None => {}
    }
    if let Some(name) = of["type"].as_str() {
        nested(22, out, |out| bytes(1, name.as_bytes(), out));
    }
    if let Some(inner) = of.get("items") {
        nested(23, out, |out| nested(1, out, |out| schema(inner, out)));
    }
    for inner in list(&of["allOf"]) {
        nested(24, out, |out| schema(inner, out));
    }
    if let Some(properties) = of.get("properties") {
        nested(25, out, |out| pairs(1, properties, out, schema));
    }
    extensions(31, of, out);
}

/// Writes the keys that begin with `x-`, each as a pair of its name and its value.
pub(super) fn extensions(number: u32, of: &Value, out: &mut Vec<u8>) {
    for (name, value) in of.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-")) {
        nested(number, out, |out| {
            bytes(1, name.as_bytes(), out);
            any(2, Some(value), out);
        });
    }
}

/// Writes a value of any type, as YAML.
pub(super) fn any(number: u32, value: Option<&Value>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        let text = corten_meta::codec::encode_yaml(value);
        nested(number, out, |out| bytes(2, text.as_bytes(), out));
    }
}

/// Writes an object as repeated pairs of name and value.
pub(super) fn pairs(number: u32, object: &Value, out: &mut Vec<u8>, mut write: impl FnMut(&Value, &mut Vec<u8>)) {
    for (name, value) in object.as_object().into_iter().flatten() {
        nested(number, out, |out| {
            bytes(1, name.as_bytes(), out);
            nested(2, out, |out| write(value, out));
        });
    }
}

pub(super) fn texts(of: &Value, fields: &[(&str, u32)], out: &mut Vec<u8>) {
    for (key, number) in fields {
        if let Some(text) = of[*key].as_str() {
            bytes(*number, text.as_bytes(), out);
        }
    }
}

pub(super) fn strings(number: u32, values: &Value, out: &mut Vec<u8>) {
    list(values).iter().filter_map(Value::as_str).for_each(|text| bytes(number, text.as_bytes(), out));
}

pub(super) fn flags(of: &Value, fields: &[(&str, u32)], out: &mut Vec<u8>) {
    for (key, number) in fields {
        if of[*key] == true {
            flag(*number, true, out);
        }
    }
}

pub(super) fn flag(number: u32, value: bool, out: &mut Vec<u8>) {
    varint(u64::from(number) << 3, out);
    out.push(u8::from(value));
}

pub(super) fn integers(of: &Value, fields: &[(&str, u32)], out: &mut Vec<u8>) {
    for (key, number) in fields {
        if let Some(value) = of[*key].as_u64() {
            varint(u64::from(*number) << 3, out);
            varint(value, out);
        }
    }
}

pub(super) fn numbers(of: &Value, fields: &[(&str, u32)], out: &mut Vec<u8>) {
    for (key, number) in fields {
        if let Some(value) = of[*key].as_f64() {
            varint(u64::from(*number) << 3 | 1, out);
            out.extend(value.to_le_bytes());
        }
    }
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Writes a message in a field: its length is known only afterwards.
pub(super) fn nested(number: u32, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    write(&mut inner);
    bytes(number, &inner, out);
}

pub(super) fn bytes(number: u32, value: &[u8], out: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | 2, out);
    varint(value.len() as u64, out);
    out.extend(value);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the fields of a message by number, with their bytes; skips numeric fields.
    fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
        fn read(message: &mut &[u8]) -> u64 {
            let mut value = 0;
            let mut shift = 0;
            loop {
                let byte = message[0];
                *message = &message[1..];
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        }
        let mut found = Vec::new();
        while !message.is_empty() {
            let tag = read(&mut message);
            let length = match tag & 7 {
                0 => {
                    let value = read(&mut message);
                    found.push((tag >> 3, vec![value as u8]));
                    continue;
                }
                1 => 8,
                _ => read(&mut message) as usize,
            };
            found.push((tag >> 3, message[..length].to_vec()));
            message = &message[length..];
        }
        found
    }

    /// Returns the first value at a path of field numbers.
    pub fn at(message: &[u8], path: &[u64]) -> Vec<u8> {
        path.iter().fold(message.to_vec(), |message, number| {
            fields(&message).into_iter().find(|(found, _)| found == number).map(|(_, value)| value).unwrap()
        })
    }

    #[test]
    fn a_document_is_found_again_in_its_messages() {
        let gvk = json!([{"group": "", "kind": "Pod", "version": "v1"}]);
        let document = json!({
            "swagger": "2.0",
            "info": {"title": "Kubernetes", "version": "unversioned"},
            "paths": {"/api/v1/pods": {"get": {
                "operationId": "listPods",
                "parameters": [{"in": "query", "name": "watch", "type": "boolean", "uniqueItems": true}],
                "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Pod"}}},
            }}},
            "definitions": {"Pod": {
                "type": "object",
                "required": ["spec"],
                "properties": {"spec": {"additionalProperties": {"type": "string"}, "minimum": 1.5}},
                "x-kubernetes-group-version-kind": gvk,
            }},
            "security": [{"BearerToken": []}],
            "securityDefinitions": {"BearerToken": {"type": "apiKey", "in": "header", "name": "authorization"}},
        });
        let encoded = encode_v2(&document);
        let text = |path: &[u64]| String::from_utf8(at(&encoded, path)).unwrap();
        assert_eq!(text(&[1]), "2.0");
        assert_eq!(text(&[2, 1]), "Kubernetes");
        assert_eq!(text(&[8, 2, 1]), "/api/v1/pods");
        assert_eq!(text(&[8, 2, 2, 2, 5]), "listPods");
        assert_eq!(text(&[8, 2, 2, 2, 8, 1, 2, 3, 6]), "boolean");
        assert_eq!(at(&encoded, &[8, 2, 2, 2, 8, 1, 2, 3, 20]), [1]);
        assert_eq!(text(&[8, 2, 2, 2, 9, 1, 2, 1, 2, 1, 1]), "#/definitions/Pod");
        assert_eq!(text(&[9, 1, 1]), "Pod");
        assert_eq!(text(&[9, 1, 2, 22, 1]), "object");
        assert_eq!(text(&[9, 1, 2, 19]), "spec");
        assert_eq!(text(&[9, 1, 2, 25, 1, 2, 21, 1, 22, 1]), "string");
        assert_eq!(at(&encoded, &[9, 1, 2, 25, 1, 2, 9]), 1.5f64.to_le_bytes());
        assert_eq!(text(&[9, 1, 2, 31, 2, 2]), "- group: \"\"\n  kind: Pod\n  version: v1\n");
        assert_eq!(text(&[12, 1, 1]), "BearerToken");
        assert_eq!(text(&[13, 1, 2, 2, 2]), "authorization");
    }
}
