//! Encoding of values as messages, by the table: for clients that accept only protobuf.
//!
//! Fields that are not in the table are left out, as a typed client does.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use corten_meta::Value;

use super::table::{Field, Messages, Shape, Type};

/// The wire types.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;

pub fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn tag(out: &mut Vec<u8>, number: u64, wire: u64) {
    varint(out, number << 3 | wire);
}

pub fn bytes(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    tag(out, number, BYTES);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

pub fn number(out: &mut Vec<u8>, field: u64, value: i64) {
    tag(out, field, VARINT);
    varint(out, value as u64);
}

/// Writes a field that is a message itself.
pub fn nested(out: &mut Vec<u8>, number: u64, write: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    write(&mut inner);
    bytes(out, number, &inner);
}

/// Writes one message; a type that is not in the table has no fields.
pub fn message(out: &mut Vec<u8>, messages: &Messages, name: &str, value: &Value) {
    for field in messages.get(name).into_iter().flatten() {
        if field.name.is_empty() {
            inlined(out, messages, field, value);
            continue;
        }
        let Some(found) = value.get(&field.name).filter(|found| !found.is_null()) else {
            if field.shape == Shape::Plain {
                zero(out, messages, field);
            }
            continue;
        };
        match (field.shape, found) {
            (Shape::Repeated, Value::Array(list)) => list.iter().for_each(|one| element(out, messages, field, one)),
            (Shape::Map, Value::Object(map)) => {
                for (key, one) in map {
                    nested(out, field.number, |out| {
                        bytes(out, 1, key.as_bytes());
                        element(out, messages, &Field { number: 2, ..field.clone() }, one);
                    });
                }
            }
            (Shape::Plain | Shape::Optional, one) => element(out, messages, field, one),
            _ => {}
        }
    }
}

/// Writes a field that is the message itself, or one of the types that it stands for. A schema in
/// `additionalProperties` implies that they are allowed.
fn inlined(out: &mut Vec<u8>, messages: &Messages, field: &Field, value: &Value) {
    match (field.shape, &field.kind, value) {
        (Shape::Repeated, _, Value::Array(list)) => list.iter().for_each(|one| element(out, messages, field, one)),
        (Shape::Repeated, ..) => {}
        (Shape::Optional, _, other) if !other.is_object() => {}
        (_, Type::Bool, given) => number(out, field.number, i64::from(given != false)),
        _ => element(out, messages, field, value),
    }
}

/// Writes the zero of a field that Go holds by value: it is always written.
fn zero(out: &mut Vec<u8>, messages: &Messages, field: &Field) {
    let at = field.number;
    match &field.kind {
        Type::Bytes => {}
        Type::String | Type::Time | Type::MicroTime | Type::Json | Type::Strings => bytes(out, at, &[]),
        Type::Quantity => element(out, messages, field, &Value::from("0")),
        Type::Int | Type::Bool | Type::Double | Type::IntOrString | Type::Message(_) => {
            element(out, messages, field, &Value::Null);
        }
    }
}

fn element(out: &mut Vec<u8>, messages: &Messages, field: &Field, value: &Value) {
    let at = field.number;
    let text = || value.as_str().unwrap_or_default();
    match &field.kind {
        Type::String => bytes(out, at, text().as_bytes()),
        Type::Int => number(out, at, integer(value)),
        Type::Bool => number(out, at, i64::from(value == true)),
        Type::Double => {
            tag(out, at, FIXED64);
            out.extend_from_slice(&value.as_f64().unwrap_or_default().to_le_bytes());
        }
        Type::Bytes => bytes(out, at, &STANDARD.decode(text()).unwrap_or_default()),
        Type::Quantity => nested(out, at, |out| bytes(out, 1, quantity(value).as_bytes())),
        Type::IntOrString => nested(out, at, |out| {
            number(out, 1, i64::from(value.is_string()));
            number(out, 2, integer(value));
            bytes(out, 3, text().as_bytes());
        }),
        Type::Time | Type::MicroTime => {
            let Ok(time) = text().parse::<jiff::Timestamp>() else { return bytes(out, at, &[]) };
            nested(out, at, |out| {
                number(out, 1, time.as_second());
                number(out, 2, i64::from(time.subsec_nanosecond()));
            });
        }
        Type::Json => nested(out, at, |out| bytes(out, 1, corten_meta::field::shown(value).as_bytes())),
        Type::Strings => nested(out, at, |out| {
            let list = value.as_array().into_iter().flatten().filter_map(Value::as_str);
            list.for_each(|one| bytes(out, 1, one.as_bytes()));
        }),
        Type::Message(name) => nested(out, at, |out| message(out, messages, name, value)),
    }
}

fn integer(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_f64().map(|float| float as i64)).unwrap_or_default()
}

/// Formats a quantity, which may also be a number in JSON.
fn quantity(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: &str, value: &Value) {
        let body = super::super::encode(value, schema);
        assert_eq!(super::super::object(&body, schema).unwrap(), *value);
    }

    #[test]
    fn encoded_objects_are_decoded_as_the_same() {
        let metadata = json!({ "name": "a", "labels": { "x": "y" }, "creationTimestamp": "2026-01-02T03:04:05Z",
            "generation": 3, "resourceVersion": "7",
            "managedFields": [{ "manager": "m", "fieldsType": "FieldsV1", "fieldsV1": { "f:data": {} } }] });
        check(
            "io.k8s.api.core.v1.ConfigMap",
            &json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "k": "v" },
                     "binaryData": { "b": "AAH/" }, "immutable": false }),
        );
        let container = json!({ "name": "c", "image": "i", "resources": { "limits": { "cpu": "100m" } },
            "livenessProbe": { "httpGet": { "port": "http", "path": "/" }, "periodSeconds": -1 },
            "ports": [{ "containerPort": 80 }] });
        check(
            "io.k8s.api.core.v1.Pod",
            &json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" },
                     "spec": { "containers": [container], "volumes": [{ "name": "v", "emptyDir": {} }] } }),
        );
        check(
            "io.k8s.api.coordination.v1.Lease",
            &json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
                     "spec": { "renewTime": "2026-01-02T03:04:05.123456Z", "leaseDurationSeconds": 0 } }),
        );
    }

    #[test]
    fn a_value_of_several_possible_types_keeps_its_own() {
        let text = json!({ "type": "string" });
        for one in [
            json!({ "items": text }),
            json!({ "items": [text, text] }),
            json!({ "additionalProperties": text }),
            json!({ "additionalProperties": {} }),
            json!({ "additionalProperties": true }),
            json!({ "additionalProperties": false }),
            json!({ "dependencies": { "a": ["b", "c"], "d": text } }),
        ] {
            let version = json!({ "name": "v1", "schema": { "openAPIV3Schema": one } });
            check(
                "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
                &json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                         "metadata": { "name": "d" }, "spec": { "versions": [version] } }),
            );
        }
    }

    /// As upstream's client writes it: with empty metadata, and with an empty group, uid and time.
    #[test]
    fn fields_held_by_value_are_always_written() {
        let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "details": { "name": "n", "kind": "pods" }, "code": 404 });
        let body = super::super::encode(&status, "io.k8s.apimachinery.pkg.apis.meta.v1.Status");
        let wanted =
            b"\n\x06\n\0\x12\0\x1a\0\x12\x07Failure\x1a\0\"\0*\x0f\n\x01n\x12\0\x1a\x04pods(\x002\x000\x94\x03";
        assert!(body.windows(wanted.len()).any(|part| part == wanted), "{:?}", body.escape_ascii().to_string());
    }

    /// Compares upstream's golden objects of every type, where they are available: they are decoded, and encoded as the
    /// same bytes.
    #[test]
    fn golden_objects_are_decoded_and_encoded() {
        let Ok(directory) = std::env::var("KUBERNETES_FACTS") else {
            eprintln!("skipped: KUBERNETES_FACTS does not name a directory with wire/");
            return;
        };
        for kind in corten_api::kinds() {
            let group = if kind.group.is_empty() { "core" } else { &kind.group };
            let base = format!("{directory}/wire/{group}.{}.{}", kind.version, kind.kind);
            let Ok(golden) = std::fs::read(format!("{base}.pb")) else { continue };
            let value = super::super::object(&golden, &kind.schema).unwrap();
            let bytes = super::super::encode(&value, &kind.schema);
            let again = super::super::object(&bytes, &kind.schema).unwrap();
            assert_eq!(again, value, "{base}");
            assert_eq!(bytes.escape_ascii().to_string(), golden.escape_ascii().to_string(), "{base}");
        }
    }
}
