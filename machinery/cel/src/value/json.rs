//! Conversions between JSON and values.

use std::sync::Arc;

use corten_meta::quote::quote;
use corten_meta::time;
use serde_json::Value as Json;

use super::time::{format_duration, format_timestamp, parse_duration};
use super::{List, Map, Value};
use crate::error::Error;
use crate::schema::{Decl, Shape};

/// Converts JSON to a value by its declaration. Lists and maps are converted when they are iterated.
pub fn from_json<'a>(json: &'a Json, decl: &'a Decl) -> Result<Value<'a>, Error> {
    if json.is_null() {
        return match decl.shape {
            Shape::Dyn => Ok(Value::Null),
            _ if decl.nullable => Ok(Value::Null),
            _ => Err(Error::failed("invalid data, got null for schema with nullable=false")),
        };
    }
    let mismatch = |wanted: &str| Err(Error::failed(format!("invalid data, expected {wanted}, got {}", go_type(json))));
    match &decl.shape {
        Shape::Dyn => Ok(dynamic(json, decl)),
        Shape::IntOrString => match json {
            Json::String(text) => Ok(Value::borrowed(text)),
            _ => json.as_i64().map(Value::Int).map_or_else(
                || Err(Error::failed("invalid data, expected XIntOrString value to be either a string or integer")),
                Ok,
            ),
        },
        Shape::Bool => json.as_bool().map_or_else(|| mismatch("bool"), |b| Ok(Value::Bool(b))),
        Shape::Int => as_int(json).map_or_else(|| mismatch("int"), |n| Ok(Value::Int(n))),
        Shape::Double => json.as_f64().map_or_else(|| mismatch("float"), |n| Ok(Value::Double(n))),
        Shape::String => json.as_str().map_or_else(|| mismatch("string"), |text| Ok(Value::borrowed(text))),
        Shape::Bytes | Shape::Timestamp | Shape::Date | Shape::Duration => match json.as_str() {
            Some(text) => formatted(text, &decl.shape),
            None => mismatch("string"),
        },
        Shape::List { .. } => match json.as_array() {
            Some(items) => Ok(Value::List(List::Json { items, decl })),
            None => Err(Error::failed("invalid data, expected an array for the provided schema with type=array")),
        },
        Shape::Map { .. } | Shape::Object { .. } => match json.as_object() {
            Some(fields) => Ok(Value::Map(Map::Json { fields, decl })),
            None => Err(Error::failed("invalid data, expected a map for the provided schema with type=object")),
        },
    }
}

fn as_int(json: &Json) -> Option<i64> {
    json.as_i64().or_else(|| json.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e18).map(|n| n as i64))
}

fn dynamic<'a>(json: &'a Json, decl: &'a Decl) -> Value<'a> {
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => match n.as_i64() {
            Some(n) => Value::Int(n),
            None => Value::Double(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::borrowed(text),
        Json::Array(items) => Value::List(List::Json { items, decl }),
        Json::Object(fields) => Value::Map(Map::Json { fields, decl }),
    }
}

/// Converts a string with a format.
fn formatted<'a>(text: &'a str, shape: &Shape) -> Result<Value<'a>, Error> {
    match shape {
        Shape::Duration => parse_duration(text)
            .map(Value::Duration)
            .ok_or_else(|| Error::failed(format!("Invalid duration {text}: time: invalid duration {}", quote(text)))),
        Shape::Date => {
            let day = text
                .parse::<jiff::civil::Date>()
                .ok()
                .and_then(|day| day.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp()));
            day.map(Value::Timestamp).ok_or_else(|| {
                Error::failed(format!("Invalid date formatted string {text}: cannot parse {}", quote(text)))
            })
        }
        Shape::Timestamp => time::parse(text).map(Value::Timestamp).map_err(|_| {
            Error::failed(format!("Invalid date-time formatted string {text}: cannot parse {}", quote(text)))
        }),
        _ => base64(text)
            .map(|bytes| Value::Bytes(bytes.into()))
            .ok_or_else(|| Error::failed(format!("Invalid byte formatted string {text}: illegal base64 data"))),
    }
}

/// Returns Go's name for the type of an unexpected value.
fn go_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "<nil>",
        Json::Bool(_) => "bool",
        Json::Number(n) if n.is_f64() => "float64",
        Json::Number(_) => "int64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    }
}

/// Converts a value to JSON if it has a form there.
pub fn to_json(value: &Value<'_>) -> Result<Json, Error> {
    let no_form = || Error::failed(format!("type conversion error from '{}' to JSON", value.type_name()));
    Ok(match value {
        Value::Null => Json::Null,
        Value::Bool(b) => (*b).into(),
        Value::Int(n) => (*n).into(),
        Value::Uint(n) => (*n).into(),
        Value::Double(n) => serde_json::Number::from_f64(*n).map(Json::Number).ok_or_else(no_form)?,
        Value::String(text) => Json::String(text.to_string()),
        Value::Bytes(bytes) => Json::String(to_base64(bytes)),
        Value::Timestamp(at) => Json::String(format_timestamp(*at)),
        Value::Duration(nanos) => Json::String(format_duration(*nanos)),
        Value::List(List::Json { items, .. }) => Json::Array(items.to_vec()),
        Value::List(List::Owned(items)) => Json::Array(items.iter().map(to_json).collect::<Result<_, _>>()?),
        Value::Map(Map::Json { fields, .. }) => Json::Object((*fields).clone()),
        Value::Map(map) => {
            let mut fields = serde_json::Map::new();
            for (key, value) in map.entries()? {
                let key = match key {
                    Value::String(text) => text.to_string(),
                    Value::Int(n) => n.to_string(),
                    Value::Uint(n) => n.to_string(),
                    Value::Bool(b) => b.to_string(),
                    _ => return Err(no_form()),
                };
                fields.insert(key, to_json(&value)?);
            }
            Json::Object(fields)
        }
        Value::Optional(Some(inner)) => to_json(inner)?,
        Value::Message(message) => {
            let field = |(name, value): (&Arc<str>, &Value<'_>)| Ok((name.to_string(), to_json(value)?));
            Json::Object(message.1.iter().map(field).collect::<Result<_, Error>>()?)
        }
        Value::Opaque(opaque) => Json::String(opaque.to_text().ok_or_else(no_form)?),
        Value::Optional(None) | Value::Type(_) | Value::Authorization(_) | Value::Lazy(_) => return Err(no_form()),
    })
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Decodes standard base64 with padding; line ends between the characters are no error.
pub fn base64(text: &str) -> Option<Vec<u8>> {
    let characters: Vec<u8> = text.bytes().filter(|b| !matches!(b, b'\n' | b'\r')).collect();
    if !characters.len().is_multiple_of(4) {
        return None;
    }
    let padding = characters.iter().rev().take_while(|b| **b == b'=').count();
    if padding > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(characters.len() / 4 * 3);
    for (index, group) in characters.chunks(4).enumerate() {
        let last = (index + 1) * 4 == characters.len();
        let digits = if last { 4 - padding } else { 4 };
        let mut bits = 0u32;
        for (at, digit_byte) in group.iter().enumerate() {
            let digit = if at < digits { ALPHABET.iter().position(|a| a == digit_byte)? as u32 } else { 0 };
            bits = bits << 6 | digit;
        }
        out.extend_from_slice(&bits.to_be_bytes()[1..digits]);
    }
    Some(out)
}

pub fn to_base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, b| bits << 8 | u32::from(*b)) << (8 * (3 - group.len()));
        for at in 0..4 {
            let digit = (bits >> (18 - 6 * at)) & 63;
            out.push(if at <= group.len() { ALPHABET[digit as usize] as char } else { '=' });
        }
    }
    out
}
