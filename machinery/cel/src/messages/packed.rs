//! Decodes a packed message (`google.protobuf.Any`) of the well-known types.
//!
//! Bytes of other messages decode to nothing; lengths are checked, and nesting is bounded.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::{PACKAGE, named, time};
use crate::value::{Key, Map, Value};

/// The maximal nesting. Only attackers make deeper values.
const MAX_DEPTH: usize = 32;

/// Returns the value of a message, by its type name and its bytes.
pub fn unpacked<'a>(url: &str, bytes: &[u8]) -> Option<Value<'a>> {
    let name = url.rsplit('/').next()?;
    named(name)?;
    match name.strip_prefix(PACKAGE)? {
        "Any" | "Struct.FieldsEntry" => None,
        "Empty" => fields(bytes).map(|_| Value::Message(Rc::new((name.into(), BTreeMap::new())))),
        message => read(message, bytes, 0),
    }
}

/// A field in its wire format.
#[derive(Clone, Copy)]
enum Raw<'b> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'b [u8]),
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take<'b>(bytes: &mut &'b [u8], length: u64) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    Some(taken)
}

/// Returns the fields of a message with their numbers.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Raw<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let raw = match tag & 7 {
            0 => Raw::Varint(varint(&mut bytes)?),
            1 => Raw::Fixed64(u64::from_le_bytes(take(&mut bytes, 8)?.try_into().ok()?)),
            2 => {
                let length = varint(&mut bytes)?;
                Raw::Bytes(take(&mut bytes, length)?)
            }
            5 => Raw::Fixed32(u32::from_le_bytes(take(&mut bytes, 4)?.try_into().ok()?)),
            _ => return None,
        };
        if tag >> 3 == 0 {
            return None;
        }
        fields.push((tag >> 3, raw));
    }
    Some(fields)
}

fn read<'a>(message: &str, bytes: &[u8], depth: usize) -> Option<Value<'a>> {
    if depth > MAX_DEPTH {
        return None;
    }
    let fields = fields(bytes)?;
    let number = |of: u64| {
        let found = fields.iter().rev().find_map(|(number, raw)| match raw {
            Raw::Varint(value) if *number == of => Some(*value),
            _ => None,
        });
        found.unwrap_or_default()
    };
    // A field of an unexpected wire type is unknown, and the last one counts.
    let last = fields.iter().rev().find_map(|(number, raw)| match (number, raw) {
        (1, Raw::Bytes(bytes)) => Some(*bytes),
        _ => None,
    });
    Some(match message {
        "BoolValue" => Value::Bool(number(1) != 0),
        "BytesValue" => Value::Bytes(last.unwrap_or_default().into()),
        "StringValue" => Value::string(std::str::from_utf8(last.unwrap_or_default()).ok()?),
        "DoubleValue" | "FloatValue" => Value::Double(double(message, &fields)),
        "Int32Value" => Value::Int(i64::from(number(1) as i32)),
        "Int64Value" => Value::Int(number(1) as i64),
        "UInt32Value" => Value::Uint(u64::from(number(1) as u32)),
        "UInt64Value" => Value::Uint(number(1)),
        "Duration" | "Timestamp" => time(message, number(1) as i64, i64::from(number(2) as i32)).ok()?,
        "ListValue" => {
            let items = fields.iter().filter_map(|(number, raw)| match (number, raw) {
                (1, Raw::Bytes(item)) => Some(read("Value", item, depth + 1)),
                _ => None,
            });
            Value::list(items.collect::<Option<_>>()?)
        }
        "Struct" => {
            let mut made = BTreeMap::new();
            for (number, raw) in &fields {
                if let (1, Raw::Bytes(entry)) = (number, raw) {
                    let (name, value) = entry_of(entry, depth)?;
                    made.insert(Key::String(name.into()), (Value::string(name), value));
                }
            }
            Value::Map(Map::Owned(Rc::new(made)))
        }
        _ => any_value(&fields, depth)?,
    })
}

fn double(message: &str, fields: &[(u64, Raw<'_>)]) -> f64 {
    let found = fields.iter().rev().find_map(|(number, raw)| match (message, number, raw) {
        ("DoubleValue", 1, Raw::Fixed64(bits)) => Some(f64::from_bits(*bits)),
        ("FloatValue", 1, Raw::Fixed32(bits)) => Some(f64::from(f32::from_bits(*bits))),
        _ => None,
    });
    found.unwrap_or_default()
}

/// Returns a field of a struct: its name is field 1, its value field 2.
fn entry_of<'a>(bytes: &[u8], depth: usize) -> Option<(&str, Value<'a>)> {
    let mut name = "";
    let mut value = Value::Null;
    for (number, raw) in fields(bytes)? {
        match (number, raw) {
            (1, Raw::Bytes(bytes)) => name = std::str::from_utf8(bytes).ok()?,
            (2, Raw::Bytes(bytes)) => value = read("Value", bytes, depth + 1)?,
            _ => {}
        }
    }
    Some((name, value))
}

/// Returns the value of a `Value` message: the last of its fields.
fn any_value<'a>(fields: &[(u64, Raw<'_>)], depth: usize) -> Option<Value<'a>> {
    let mut value = Value::Null;
    for (number, raw) in fields {
        value = match (number, *raw) {
            (1, Raw::Varint(_)) => Value::Null,
            (2, Raw::Fixed64(bits)) => Value::Double(f64::from_bits(bits)),
            (3, Raw::Bytes(text)) => Value::string(std::str::from_utf8(text).ok()?),
            (4, Raw::Varint(value)) => Value::Bool(value != 0),
            (5, Raw::Bytes(bytes)) => read("Struct", bytes, depth + 1)?,
            (6, Raw::Bytes(bytes)) => read("ListValue", bytes, depth + 1)?,
            _ => value,
        };
    }
    Some(value)
}
