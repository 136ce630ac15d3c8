//! The well-known messages of protobuf: wrappers of scalars, times, and JSON.
//!
//! An expression constructs them by name, but never sees one: the result is at once the value that the message
//! represents.

mod packed;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use jiff::Timestamp;

use crate::declare::read_type;
use crate::error::Error;
use crate::types::Type;
use crate::value::{Key, Map, Value, format_duration, format_timestamp, to_base64};

/// The name of the only enum constant, which is zero.
pub const NULL_VALUE: &str = "google.protobuf.NullValue.NULL_VALUE";

pub const PACKAGE: &str = "google.protobuf.";
/// The largest integer that JSON represents exactly; a larger one becomes a string.
const MAX_SAFE: i64 = (1 << 53) - 1;
const NANOS: i64 = 1_000_000_000;

/// The types that count as messages without fields.
pub const SCALARS: [&str; 10] =
    ["bool", "bytes", "double", "duration", "int", "list", "null_type", "string", "timestamp", "uint"];

/// A message: its type as a value, and its fields.
#[derive(Debug)]
pub struct Message {
    pub of: Type,
    pub fields: BTreeMap<String, Type>,
}

/// The name of a message, its type, and its fields with their types.
type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const TABLE: &[Row] = &[
    ("Any", "any", &[("type_url", "string"), ("value", "bytes")]),
    ("BoolValue", "wrapper(bool)", &[("value", "bool")]),
    ("BytesValue", "wrapper(bytes)", &[("value", "bytes")]),
    ("DoubleValue", "wrapper(double)", &[("value", "double")]),
    ("FloatValue", "wrapper(double)", &[("value", "double")]),
    ("Int32Value", "wrapper(int)", &[("value", "int")]),
    ("Int64Value", "wrapper(int)", &[("value", "int")]),
    ("StringValue", "wrapper(string)", &[("value", "string")]),
    ("UInt32Value", "wrapper(uint)", &[("value", "uint")]),
    ("UInt64Value", "wrapper(uint)", &[("value", "uint")]),
    ("Duration", "duration", &[("seconds", "int"), ("nanos", "int")]),
    ("Timestamp", "timestamp", &[("seconds", "int"), ("nanos", "int")]),
    ("Empty", "message", &[]),
    ("Struct", "map(string, dyn)", &[("fields", "map(string, dyn)")]),
    ("Struct.FieldsEntry", "message", &[("key", "string"), ("value", "dyn")]),
    ("ListValue", "list(dyn)", &[("values", "list(dyn)")]),
    (
        "Value",
        "dyn",
        &[
            ("null_value", "int"),
            ("number_value", "double"),
            ("string_value", "string"),
            ("bool_value", "bool"),
            ("struct_value", "map(string, dyn)"),
            ("list_value", "list(dyn)"),
        ],
    ),
];

static MESSAGES: LazyLock<BTreeMap<String, Message>> = LazyLock::new(|| {
    let read = |mut text: &str| read_type(&mut text).unwrap_or(Type::Dyn);
    let message = |(name, of, fields): &Row| {
        let name = format!("{PACKAGE}{name}");
        let of = if *of == "message" { Type::named(&name) } else { read(of) };
        let fields = fields.iter().map(|(field, of)| ((*field).to_owned(), read(of))).collect();
        (name, Message { of, fields })
    };
    TABLE.iter().map(message).collect()
});

/// Returns the message of a name.
pub fn named(name: &str) -> Option<&'static Message> {
    MESSAGES.get(name)
}

/// Returns the message whose name is that of a type.
pub fn of_type(of: &Type) -> Option<&'static str> {
    match of {
        Type::Timestamp => Some("google.protobuf.Timestamp"),
        Type::Duration => Some("google.protobuf.Duration"),
        Type::Null => Some("google.protobuf.NullValue"),
        _ => None,
    }
}

type Fields<'a> = BTreeMap<Arc<str>, Value<'a>>;

/// Returns the value of a message. The messages of patches and empty messages stay messages.
pub fn make<'a>(name: &Arc<str>, fields: Fields<'a>) -> Result<Value<'a>, Error> {
    let field_error = |field: &str, error: String| {
        Error::failed(format!("field type conversion error for {name}.{field} value type: {error}"))
    };
    let known = name.strip_prefix(PACKAGE).filter(|_| named(name).is_some());
    match (known.unwrap_or_default(), fields.first_key_value()) {
        ("", _) if &**name != "JSONPatch" && name.split('.').next() != Some("Object") => {
            Err(Error::failed(format!("unknown type '{name}'")))
        }
        ("" | "Empty" | "Struct.FieldsEntry", _) => Ok(Value::Message(Rc::new((Arc::clone(name), fields)))),
        ("Any", _) => unpacked(&fields).map_err(|(field, error)| match field {
            "" => Error::failed(error),
            field => field_error(field, error),
        }),
        (message @ ("Duration" | "Timestamp"), _) => {
            let part = |part: &str, bits: u32| match fields.get(part) {
                None => Ok(0),
                Some(value) => integer(value, bits).map_err(|error| field_error(part, error)),
            };
            time(message, part("seconds", 64)?, part("nanos", 32)?)
        }
        ("Struct", None) => Ok(Value::Map(Map::Owned(Rc::default()))),
        ("ListValue", None) => Ok(Value::list(Vec::new())),
        ("Value", None) => Ok(Value::Null),
        ("Struct", Some((_, value @ Value::Map(_)))) | ("ListValue", Some((_, value @ Value::List(_)))) => json(value)
            .map_err(|error| field_error(if matches!(value, Value::Map(_)) { "fields" } else { "values" }, error)),
        ("Struct" | "ListValue", Some((field, value))) => {
            Err(Error::failed(format!("unsupported field type for {name}.{field}: {}", value.type_name())))
        }
        ("Value", Some((field, value))) => plain(field, value).map_err(|error| field_error(field, error)),
        (message, None) => Ok(zero(message)),
        (message, Some((field, value))) => wrapped(message, value).map_err(|error| field_error(field, error)),
    }
}

/// Returns a duration or timestamp of so many seconds.
pub fn time<'a>(message: &str, seconds: i64, nanos: i64) -> Result<Value<'a>, Error> {
    if message == "Duration" {
        return Ok(Value::Duration(seconds.saturating_mul(NANOS).saturating_add(nanos)));
    }
    let seconds = seconds.saturating_add(nanos.div_euclid(NANOS));
    let nanos = nanos.rem_euclid(NANOS);
    let at = Timestamp::new(seconds, i32::try_from(nanos).unwrap_or_default());
    at.map(Value::Timestamp).map_err(|_| Error::failed("timestamp overflow"))
}

/// Returns the value of an empty wrapper.
fn zero<'a>(message: &str) -> Value<'a> {
    match message {
        "BoolValue" => Value::Bool(false),
        "BytesValue" => Value::Bytes([].into()),
        "StringValue" => Value::string(""),
        "DoubleValue" | "FloatValue" => Value::Double(0.0),
        "UInt32Value" | "UInt64Value" => Value::Uint(0),
        _ => Value::Int(0),
    }
}

fn wrapped<'a>(message: &str, value: &Value<'a>) -> Result<Value<'a>, String> {
    match (message, value) {
        (_, Value::Optional(Some(held))) => wrapped(message, held),
        ("BoolValue", Value::Bool(_)) | ("BytesValue", Value::Bytes(_)) | ("StringValue", Value::String(_)) => {
            Ok(value.clone())
        }
        ("DoubleValue", Value::Double(_)) => Ok(value.clone()),
        ("FloatValue", Value::Double(n)) => Ok(Value::Double(f64::from(*n as f32))),
        ("Int32Value", value) => integer(value, 32).map(Value::Int),
        ("Int64Value", value) => integer(value, 64).map(Value::Int),
        ("UInt32Value", Value::Uint(n)) if u32::try_from(*n).is_err() => Err("unsigned integer overflow".to_owned()),
        ("UInt32Value" | "UInt64Value", Value::Uint(_)) => Ok(value.clone()),
        (_, value) => {
            let wanted = match message {
                "BoolValue" => "bool",
                "BytesValue" => "[]uint8",
                "StringValue" => "string",
                "DoubleValue" => "float64",
                "FloatValue" => "float32",
                "UInt32Value" => "uint32",
                _ => "uint64",
            };
            Err(unlike(value, wanted))
        }
    }
}

/// Returns an integer of so many bits.
fn integer(value: &Value<'_>, bits: u32) -> Result<i64, String> {
    match value {
        Value::Int(n) if bits == 32 && i32::try_from(*n).is_err() => Err("integer overflow".to_owned()),
        Value::Int(n) => Ok(*n),
        other => Err(unlike(other, if bits == 32 { "int32" } else { "int64" })),
    }
}

/// Returns the error about a value that is not of the wanted Go type.
fn unlike(value: &Value<'_>, wanted: &str) -> String {
    match value {
        Value::Int(_) => format!("unsupported type conversion from 'int' to {wanted}"),
        Value::Uint(_) => format!("unsupported type conversion from 'uint' to {wanted}"),
        Value::String(_) => format!("unsupported native conversion from string to '{wanted}'"),
        Value::Type(_) => "type conversion not supported for 'type'".to_owned(),
        other => {
            let named = match other {
                Value::Opaque(opaque) => format!("'{}'", opaque.type_name().trim_start_matches("kubernetes.")),
                Value::Bool(_) => "bool".to_owned(),
                Value::Bytes(_) => "Bytes".to_owned(),
                Value::Double(_) => "Double".to_owned(),
                Value::List(_) => "list".to_owned(),
                Value::Map(_) => "map".to_owned(),
                Value::Timestamp(_) => "'Timestamp'".to_owned(),
                Value::Duration(_) => "'Duration'".to_owned(),
                other => format!("'{}'", other.type_name()),
            };
            format!("type conversion error from {named} to '{wanted}'")
        }
    }
}

/// Returns the value of a field of a `Value` message.
fn plain<'a>(field: &str, value: &Value<'a>) -> Result<Value<'a>, String> {
    match (field, value) {
        ("null_value", Value::Int(_)) => Ok(Value::Null),
        (_, Value::Optional(Some(held))) => plain(field, held),
        ("number_value", Value::Double(_)) | ("string_value", Value::String(_)) | ("bool_value", Value::Bool(_)) => {
            Ok(value.clone())
        }
        ("struct_value", Value::Map(_)) | ("list_value", Value::List(_)) => json(value),
        (_, value) => {
            let wanted = match field {
                "null_value" => "protoreflect.EnumNumber",
                "number_value" => "float64",
                "string_value" => "string",
                "bool_value" => "bool",
                "struct_value" => "*structpb.Struct",
                _ => "*structpb.ListValue",
            };
            Err(unlike(value, wanted))
        }
    }
}

/// Converts a value to JSON's types: all numbers are doubles, and a value that JSON does not have becomes a string.
fn json<'a>(value: &Value<'a>) -> Result<Value<'a>, String> {
    let double = |n: i64| if n.abs() <= MAX_SAFE { Value::Double(n as f64) } else { Value::string(n.to_string()) };
    Ok(match value {
        Value::Null | Value::Bool(_) | Value::Double(_) | Value::String(_) => value.clone(),
        Value::Int(n) => double(*n),
        Value::Uint(n) => i64::try_from(*n).map_or_else(|_| Value::string(n.to_string()), double),
        Value::Bytes(bytes) => Value::string(to_base64(bytes)),
        Value::Timestamp(at) => Value::string(format_timestamp(*at)),
        Value::Duration(nanos) => Value::string(format_duration(*nanos)),
        Value::List(list) => {
            let items = list.values().map_err(|error| error.to_string())?;
            Value::list(items.iter().map(json).collect::<Result<_, _>>()?)
        }
        Value::Map(map) => {
            let mut made = BTreeMap::new();
            for (key, value) in map.entries().map_err(|error| error.to_string())? {
                let Some(name) = key.as_str() else { return Err(unlike(&key, "string")) };
                made.insert(Key::String(name.into()), (key.clone(), json(&value)?));
            }
            Value::Map(Map::Owned(Rc::new(made)))
        }
        Value::Optional(Some(held)) => json(held)?,
        Value::Message(message) if message.1.is_empty() => Value::Map(Map::Owned(Rc::default())),
        other => return Err(unlike(other, "*structpb.Value")),
    })
}

/// Returns the value of a packed message, if its type is known.
fn unpacked<'a>(fields: &Fields<'a>) -> Result<Value<'a>, (&'static str, String)> {
    let url = match fields.get("type_url") {
        None => "",
        Some(value) => value.as_str().ok_or_else(|| ("type_url", unlike(value, "string")))?,
    };
    let bytes: &[u8] = match fields.get("value") {
        None => &[],
        Some(Value::Bytes(bytes)) => bytes,
        Some(other) => return Err(("value", unlike(other, "[]uint8"))),
    };
    if let Some(value) = packed::unpacked(url, bytes) {
        return Ok(value);
    }
    let parts = [("type_url", url.as_bytes()), ("value", bytes)];
    let is_there = |(_, content): &(&str, &[u8])| !content.is_empty();
    let shown: Vec<String> =
        parts.into_iter().filter(is_there).map(|(name, content)| format!("{name}:{}", quoted(content))).collect();
    Err(("", format!("unsupported conversion to ref.Val: (*dynamicpb.Message){}", shown.join(" "))))
}

/// Quotes bytes as messages are printed.
fn quoted(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for byte in bytes {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b'"' | b'\\' => out.extend(['\\', char::from(*byte)]),
            b' '..=b'~' => out.push(char::from(*byte)),
            other => out.push_str(&format!("\\x{other:02x}")),
        }
    }
    out + "\""
}
