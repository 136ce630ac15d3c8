//! Converts the result of a strategic merge into a value of its type.
//!
//! Upstream restores the struct from the merged map without JSON in between. That converts numbers, and has its own
//! error messages: they name the value, not its path. Pure.

use corten_meta::{Quantity, Value};

use super::strict_decoding::{go_scalar, illegal_base64, json_kind};
use super::{FieldType, Type, check_fields, schema};

/// Converts the values, and returns the first error, in the order of the struct's fields.
pub fn restore(type_name: &str, value: &mut Value) -> Result<(), String> {
    schema().type_(type_name).map_or(Ok(()), |t| restore_type(t, value))
}

fn restore_type(t: &Type, value: &mut Value) -> Result<(), String> {
    if t.scalar.is_some() && !t.is_empty_struct() {
        // It has a custom decoder.
        return check_fields(&t.name, value).type_errors.into_iter().next().map_or(Ok(()), Err);
    }
    match value {
        Value::Null => Ok(()),
        Value::Object(fields) => {
            for field in t.declared() {
                if let Some(inner) = fields.get_mut(&field.name) {
                    restore_value(&field.kind, field.type_name.as_deref(), inner)?;
                }
            }
            Ok(())
        }
        other => Err(format!("cannot restore struct from: {}", word(other))),
    }
}

fn restore_value(kind: &FieldType, name: Option<&str>, value: &mut Value) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    match (kind, &mut *value) {
        (FieldType::Ref(id), _) => restore_type(schema().get(*id), value),
        (FieldType::List(items), Value::Array(list)) => {
            let name = name.and_then(|name| name.strip_prefix("[]"));
            list.iter_mut().try_for_each(|item| restore_value(items, name, item))
        }
        (FieldType::List(_), other) => Err(format!("cannot restore slice from {}", word(other))),
        (FieldType::Map(values), Value::Object(map)) => {
            let name = name.and_then(|name| Some(name.strip_prefix("map[")?.split_once(']')?.1));
            map.values_mut().try_for_each(|item| restore_value(values, name, item))
        }
        (FieldType::Map(_), other) => Err(format!("cannot restore map from {}", word(other))),
        (FieldType::Bytes, Value::String(text)) => match illegal_base64(text) {
            Some(at) => Err(format!("error decoding from json: illegal base64 data at input byte {at}")),
            None => Ok(()),
        },
        (FieldType::Bytes, Value::Array(items)) => match items.iter().find(|item| !item.is_i64() && !item.is_null()) {
            Some(Value::Number(_)) => Err("cannot convert float64 to uint8".to_owned()),
            Some(_) => Err("unrecognized type: uint8".to_owned()),
            None => {
                super::defaults::write_bytes(value);
                Ok(())
            }
        },
        (FieldType::Bytes, other) => Err(format!("cannot restore slice from {}", word(other))),
        (FieldType::Quantity | FieldType::IntOrString | FieldType::Time | FieldType::MicroTime, value) => {
            decode_itself(kind, value)
        }
        (FieldType::Object | FieldType::Any, _) => Ok(()),
        (kind, value) => restore_scalar(kind, name, value),
    }
}

fn restore_scalar(kind: &FieldType, name: Option<&str>, value: &mut Value) -> Result<(), String> {
    let scalar = go_scalar(kind);
    let found = word(value);
    let wanted = name.filter(|name| name.contains(char::is_uppercase)).unwrap_or(scalar);
    match (kind, &*value) {
        (FieldType::String, Value::String(_)) | (FieldType::Boolean, Value::Bool(_)) => Ok(()),
        (FieldType::Number(_), Value::Number(_)) => Ok(()),
        (FieldType::String, Value::Number(number)) if number.is_i64() => {
            Err(format!("cannot convert {found} to {wanted}"))
        }
        (FieldType::Integer(_), Value::Number(number)) => {
            let integer = number.as_i64().or_else(|| number.as_f64().filter(|n| n.trunc() == *n).map(|n| n as i64));
            let integer = integer.ok_or_else(|| format!("cannot convert {found} to {wanted}"))?;
            // A number that is too big is truncated, as Go does.
            *value = if scalar == "int64" { integer.into() } else { (integer as i32).into() };
            Ok(())
        }
        _ => Err(format!("unrecognized type: {scalar}")),
    }
}

/// Decodes a type with a custom JSON decoder, which does not know its path.
fn decode_itself(kind: &FieldType, value: &Value) -> Result<(), String> {
    let mismatch =
        |found: &str, wanted: &str| Err(format!("json: cannot unmarshal {found} into Go value of type {wanted}"));
    match (kind, value) {
        (FieldType::Quantity, Value::String(text)) => {
            Quantity::parse(text).map(|_| ()).map_err(|error| error.to_string())
        }
        (FieldType::Quantity, other) => {
            Quantity::parse(&other.to_string()).map(|_| ()).map_err(|error| error.to_string())
        }
        (FieldType::IntOrString, Value::String(_)) => Ok(()),
        (FieldType::IntOrString, Value::Number(number)) => {
            match number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()) {
                true => Ok(()),
                false => mismatch(&format!("number {number}"), "int32"),
            }
        }
        (FieldType::IntOrString, other) => mismatch(json_kind(other), "int32"),
        (_, Value::String(text)) => {
            let micro = *kind == FieldType::MicroTime;
            corten_meta::go::parse_time(text, micro).map(|_| ())
        }
        (_, other) => mismatch(json_kind(other), "string"),
    }
}

/// Returns Go's word for the kind of a value.
fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "invalid",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";

    #[test]
    fn mismatches_are_reported_in_upstreams_words() {
        let pod = |spec: Value| json!({"spec": {"template": {"spec": spec}}});
        for (value, wanted) in [
            (json!({"spec": {"replicas": "3"}}), "unrecognized type: int32"),
            (json!({"spec": {"replicas": 1.5}}), "cannot convert float64 to int32"),
            (json!({"spec": {"paused": 1}}), "unrecognized type: bool"),
            (json!({"metadata": {"name": 1}}), "cannot convert int64 to string"),
            (json!({"metadata": {"name": {}}}), "unrecognized type: string"),
            (json!({"spec": []}), "cannot restore struct from: slice"),
            (json!({"spec": 5, "metadata": "x"}), "cannot restore struct from: string"),
            (pod(json!({"containers": {}})), "cannot restore slice from map"),
            (json!({"metadata": {"labels": "x"}}), "cannot restore map from string"),
            (pod(json!({"dnsPolicy": 1})), "cannot convert int64 to v1.DNSPolicy"),
            (pod(json!({"dnsPolicy": true})), "unrecognized type: string"),
            (
                json!({"metadata": {"creationTimestamp": 5}}),
                "json: cannot unmarshal number into Go value of type string",
            ),
            (
                json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": true}}}}),
                "json: cannot unmarshal bool into Go value of type int32",
            ),
        ] {
            assert_eq!(restore(DEPLOYMENT, &mut value.clone()), Err(wanted.to_owned()), "{value}");
        }
        let mut secret = json!({"data": {"a": "a b"}});
        let wanted = "error decoding from json: illegal base64 data at input byte 1";
        assert_eq!(restore("io.k8s.api.core.v1.Secret", &mut secret), Err(wanted.to_owned()));
        let mut secret = json!({"data": {"a": [1, 258]}});
        assert_eq!(restore("io.k8s.api.core.v1.Secret", &mut secret), Ok(()));
        assert_eq!(secret, json!({"data": {"a": "AQI="}}));
        let mut secret = json!({"data": {"a": [1.5]}});
        let wanted = "cannot convert float64 to uint8";
        assert_eq!(restore("io.k8s.api.core.v1.Secret", &mut secret), Err(wanted.to_owned()));
    }

    #[test]
    fn numbers_are_converted() {
        for (input, wanted) in [(json!(2.0), 2), (json!(4_294_967_297_i64), 1), (json!(3), 3)] {
            let mut value = json!({"spec": {"replicas": input}});
            assert_eq!(restore(DEPLOYMENT, &mut value), Ok(()));
            assert_eq!(value, json!({"spec": {"replicas": wanted}}));
        }
    }
}
