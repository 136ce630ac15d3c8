//! Decoding of the wire format: varints, lengths, and messages by the table.
//!
//! Bad input is an error, never a panic: every length is checked, and nesting is bounded.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use corten_meta::Value;
use serde_json::{Map, json};

use super::table::{Field, Messages, Shape, Type};

/// The deepest nesting of messages; deeper ones are attacks.
const MAX_DEPTH: usize = 64;

/// An error of a body.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Envelope,
    #[error("empty data")]
    Empty,
    #[error("empty body")]
    EmptyBody,
    #[error("unexpected EOF")]
    Truncated,
    #[error("proto: integer overflow")]
    Overflow,
    #[error("proto: negative length found during unmarshaling")]
    NegativeLength,
    #[error("proto: {0}: illegal tag {1} (wire type {2})")]
    Tag(String, i32, u64),
    #[error("proto: {0}: wiretype end group for non-group")]
    EndGroup(String),
    #[error("proto: illegal wireType {0}")]
    UnknownWire(u64),
    #[error("proto: wrong wireType = {0} for field {1}")]
    WrongWire(u64, String),
    #[error("illegal tag or wire type")]
    WireType,
    #[error("messages are nested too deeply")]
    TooDeep,
    #[error("invalid JSON in an embedded object")]
    Json,
    #[error("no protobuf form is known of {0}")]
    UnknownType(String),
    /// An error of the object, when its version and kind are known.
    #[error("{error}")]
    Object { api_version: String, kind: String, error: Box<Error> },
}

/// The wrapper of every body.
pub struct Envelope<'a> {
    pub api_version: String,
    pub kind: String,
    pub raw: &'a [u8],
}

/// The content of one field on the wire.
enum Raw<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A group, which is obsolete and skipped.
    Group,
}

impl<'a> Raw<'a> {
    fn bytes(self) -> Result<&'a [u8], Error> {
        match self {
            Raw::Bytes(bytes) => Ok(bytes),
            Raw::Number(_) | Raw::Group => Err(Error::WireType),
        }
    }

    fn number(&self) -> u64 {
        match self {
            Raw::Number(number) => *number,
            Raw::Bytes(_) | Raw::Group => 0,
        }
    }
}

/// Reads the fields of a message one after the other.
struct Reader<'a> {
    rest: &'a [u8],
    /// The message's name in errors.
    of: &'a str,
    /// The wire type of the last field.
    wire: u64,
}

impl<'a> Reader<'a> {
    fn new(of: &'a str, rest: &'a [u8]) -> Reader<'a> {
        Reader { rest, of, wire: 0 }
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.rest.split_first().ok_or(Error::Truncated)?;
            self.rest = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::Overflow)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Error> {
        if length > i64::MAX as u64 {
            return Err(Error::NegativeLength);
        }
        let length = usize::try_from(length).map_err(|_| Error::Truncated)?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn next(&mut self) -> Result<Option<(u64, Raw<'a>)>, Error> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = (tag >> 3) as i32;
        self.wire = tag & 7;
        if self.wire == 4 {
            return Err(Error::EndGroup(self.of.to_owned()));
        }
        if number <= 0 {
            return Err(Error::Tag(self.of.to_owned(), number, self.wire));
        }
        Ok(Some((tag >> 3, self.content(tag & 7)?)))
    }

    fn content(&mut self, wire: u64) -> Result<Raw<'a>, Error> {
        Ok(match wire {
            0 => Raw::Number(self.varint()?),
            1 => Raw::Number(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| Error::Truncated)?)),
            2 => {
                let length = self.varint()?;
                Raw::Bytes(self.take(length)?)
            }
            3 => {
                self.skip_group()?;
                Raw::Group
            }
            5 => Raw::Number(u64::from(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| Error::Truncated)?))),
            other => return Err(Error::UnknownWire(other)),
        })
    }

    /// Skips a group, with the groups in it.
    fn skip_group(&mut self) -> Result<(), Error> {
        let mut depth = 1u64;
        while depth > 0 {
            match self.varint()? & 7 {
                3 => depth += 1,
                4 => depth -= 1,
                wire => {
                    self.content(wire)?;
                }
            }
        }
        Ok(())
    }
}

/// Decodes the envelope: the type, and the object's bytes.
pub fn envelope(bytes: &[u8]) -> Result<Envelope<'_>, Error> {
    let mut envelope = Envelope { api_version: String::new(), kind: String::new(), raw: &[] };
    let mut reader = Reader::new("Unknown", bytes);
    while let Some((number, raw)) = reader.next()? {
        if matches!(number, 1 | 2) && reader.wire != 2 {
            let field = if number == 1 { "TypeMeta" } else { "Raw" };
            return Err(Error::WrongWire(reader.wire, field.to_owned()));
        }
        match number {
            1 => {
                let mut inner = Reader::new("TypeMeta", raw.bytes()?);
                while let Some((number, raw)) = inner.next()? {
                    match number {
                        1 => envelope.api_version = text(raw.bytes()?),
                        2 => envelope.kind = text(raw.bytes()?),
                        _ => {}
                    }
                }
            }
            2 => envelope.raw = raw.bytes()?,
            _ => {}
        }
    }
    Ok(envelope)
}

/// Decodes a string. Upstream accepts any bytes, and shows invalid ones as U+FFFD.
fn text(bytes: &[u8]) -> String {
    corten_meta::codec::characters(bytes).into_owned()
}

/// Decodes one message into a JSON object.
pub fn message(messages: &Messages, name: &str, bytes: &[u8], depth: usize) -> Result<Value, Error> {
    if depth > MAX_DEPTH {
        return Err(Error::TooDeep);
    }
    let fields = messages.get(name).ok_or_else(|| Error::UnknownType(name.to_owned()))?;
    let mut object = Map::new();
    // The value of a message that stands for one of several types, if it is not an object.
    let mut decoded = None;
    let mut reader = Reader::new(name.rsplit('.').next().unwrap_or(name), bytes);
    while let Some((number, raw)) = reader.next()? {
        let Some(field) = fields.iter().find(|f| f.number == number) else { continue };
        if reader.wire != wire(field) && !(field.shape == Shape::Repeated && reader.wire == 2) {
            return Err(Error::WrongWire(reader.wire, go_name(&field.name)));
        }
        if field.name.is_empty() {
            match (field.shape, value(messages, field, raw, depth)?) {
                (Shape::Repeated, element) => match &mut decoded {
                    Some(Value::Array(list)) => list.push(element),
                    _ => decoded = Some(json!([element])),
                },
                (_, Value::Object(inlined)) => {
                    object.extend(inlined);
                    decoded = None;
                }
                (_, other) => decoded = Some(other),
            }
            continue;
        }
        match field.shape {
            Shape::Repeated => {
                let element = value(messages, field, raw, depth)?;
                let list = object.entry(field.name.clone()).or_insert_with(|| json!([]));
                if let Some(list) = list.as_array_mut() {
                    list.push(element);
                }
            }
            Shape::Map => {
                let (key, element) = entry(messages, field, raw.bytes()?, depth)?;
                object.entry(field.name.clone()).or_insert_with(|| json!({}))[key] = element;
            }
            Shape::Optional => {
                object.insert(field.name.clone(), value(messages, field, raw, depth)?);
            }
            Shape::Plain => {
                let element = value(messages, field, raw, depth)?;
                // JSON that was sent is kept, also if it is empty.
                if !is_zero(&element) || (field.kind == Type::Json && !element.is_null()) {
                    object.insert(field.name.clone(), element);
                }
            }
        }
    }
    Ok(decoded.unwrap_or(Value::Object(object)))
}

/// Returns the wire type of a field.
fn wire(field: &Field) -> u64 {
    match field.kind {
        _ if field.shape == Shape::Map => 2,
        Type::Int | Type::Bool => 0,
        Type::Double => 1,
        _ => 2,
    }
}

/// Returns the name of the Go struct's field.
fn go_name(name: &str) -> String {
    let mut characters = name.chars();
    match characters.next() {
        Some(_) if name == "metadata" => "ObjectMeta".to_owned(),
        Some(first) => first.to_uppercase().chain(characters).collect(),
        None => String::new(),
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Decodes one entry of a map: key is field 1, value is field 2.
fn entry(messages: &Messages, field: &Field, bytes: &[u8], depth: usize) -> Result<(String, Value), Error> {
    let mut key = String::new();
    let mut element = None;
    let mut reader = Reader::new("", bytes);
    while let Some((number, raw)) = reader.next()? {
        match number {
            1 => key = text(raw.bytes()?),
            2 => element = Some(value(messages, field, raw, depth)?),
            _ => {}
        }
    }
    // An absent value is the zero of its type.
    let element = match element {
        Some(element) => element,
        None => value(messages, field, Raw::Bytes(&[]), depth)?,
    };
    Ok((key, element))
}

fn value(messages: &Messages, field: &Field, raw: Raw<'_>, depth: usize) -> Result<Value, Error> {
    Ok(match &field.kind {
        Type::String => text(raw.bytes()?).into(),
        Type::Int => (raw.number() as i64).into(),
        Type::Bool => (raw.number() != 0).into(),
        Type::Double => f64::from_bits(raw.number()).into(),
        Type::Bytes => STANDARD.encode(raw.bytes()?).into(),
        Type::Quantity => first_string(raw.bytes()?)?.into(),
        Type::IntOrString => int_or_string(raw.bytes()?)?,
        Type::Time => time(raw.bytes()?, corten_meta::time::rfc3339)?,
        Type::MicroTime => time(raw.bytes()?, corten_meta::time::rfc3339_micro)?,
        Type::Json => {
            let mut reader = Reader::new("", raw.bytes()?);
            match reader.next()? {
                Some((1, raw)) => corten_meta::decode_json(raw.bytes()?, false).map_err(|_| Error::Json)?.value,
                _ => Value::Null,
            }
        }
        Type::Strings => {
            let mut list = Vec::new();
            let mut reader = Reader::new("", raw.bytes()?);
            while let Some((_, raw)) = reader.next()? {
                list.push(Value::from(text(raw.bytes()?)));
            }
            list.into()
        }
        Type::Message(name) => message(messages, name, raw.bytes()?, depth + 1)?,
    })
}

fn first_string(bytes: &[u8]) -> Result<String, Error> {
    match Reader::new("", bytes).next()? {
        Some((1, raw)) => Ok(text(raw.bytes()?)),
        _ => Ok(String::new()),
    }
}

fn int_or_string(bytes: &[u8]) -> Result<Value, Error> {
    let mut is_string = false;
    let mut number = 0i64;
    let mut word = String::new();
    let mut reader = Reader::new("", bytes);
    while let Some((field, raw)) = reader.next()? {
        match field {
            1 => is_string = raw.number() == 1,
            2 => number = i64::from(raw.number() as i32),
            3 => word = text(raw.bytes()?),
            _ => {}
        }
    }
    Ok(if is_string { word.into() } else { number.into() })
}

/// Go's zero time, the first moment of the year one, which typed clients send for no time.
const ZERO_TIME: i64 = -62_135_596_800;

/// Decodes seconds and nanoseconds since the epoch; an empty message is no time.
fn time(bytes: &[u8], show: fn(jiff::Timestamp) -> String) -> Result<Value, Error> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let mut seconds = 0i64;
    let mut nanoseconds = 0i32;
    let mut reader = Reader::new("", bytes);
    while let Some((field, raw)) = reader.next()? {
        match field {
            1 => seconds = raw.number() as i64,
            2 => nanoseconds = raw.number() as i32,
            _ => {}
        }
    }
    if (seconds, nanoseconds) == (ZERO_TIME, 0) {
        return Ok(Value::Null);
    }
    jiff::Timestamp::new(seconds, nanoseconds).map(|at| show(at).into()).map_err(|_| Error::WireType)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a length-delimited field.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    #[test]
    fn a_config_map_is_decoded() {
        let metadata = [field(1, b"cm"), field(3, b""), vec![7 << 3, 0], field(8, b"")].concat();
        let entry = [field(1, b"key"), field(2, b"value")].concat();
        let object = [field(1, &metadata), field(2, &entry)].concat();
        let type_meta = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
        let body = [b"k8s\0".to_vec(), field(1, &type_meta), field(2, &object), field(3, b""), field(4, b"")].concat();
        let value = super::super::object(&body, "io.k8s.api.core.v1.ConfigMap").unwrap();
        assert_eq!(
            value,
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "cm" }, "data": { "key": "value" } })
        );
        assert_eq!(super::super::object(b"{}", "io.k8s.api.core.v1.ConfigMap"), Err(Error::Envelope));
    }

    #[test]
    fn empty_json_is_kept() {
        let data = |raw: &[u8]| {
            let type_meta = [field(1, b"apps/v1"), field(2, b"ControllerRevision")].concat();
            let object = field(2, &if raw.is_empty() { Vec::new() } else { field(1, raw) });
            let body = [b"k8s\0".to_vec(), field(1, &type_meta), field(2, &object)].concat();
            let value = super::super::object(&body, "io.k8s.api.apps.v1.ControllerRevision").unwrap();
            value.get("data").cloned()
        };
        for (raw, expected) in [(&b"{}"[..], json!({})), (b"[]", json!([])), (b"0", json!(0)), (b"\"\"", json!(""))] {
            assert_eq!(data(raw), Some(expected));
        }
        assert_eq!(data(b""), None);
    }

    #[test]
    fn errors_are_upstreams() {
        let read = |api_version: &[u8], raw: &[u8]| {
            let type_meta = [field(1, api_version), field(2, b"ConfigMap")].concat();
            let body = [b"k8s\0".to_vec(), field(1, &type_meta), field(2, raw)].concat();
            super::super::object(&body, "io.k8s.api.core.v1.ConfigMap").map_err(|error| error.to_string())
        };
        let wrong = |raw: &[u8]| read(b"v1", raw).expect_err("wrong");
        assert_eq!(wrong(&[1 << 3, 5]), "proto: wrong wireType = 0 for field ObjectMeta");
        assert_eq!(wrong(&field(1, &field(7, b"x"))), "proto: wrong wireType = 2 for field Generation");
        assert_eq!(wrong(&[0, 0]), "proto: ConfigMap: illegal tag 0 (wire type 0)");
        assert_eq!(wrong(&[0x0c]), "proto: ConfigMap: wiretype end group for non-group");
        assert_eq!(wrong(&[0x0a, 9, 1]), "unexpected EOF");
        assert_eq!(
            wrong(&[&[0x0a][..], &[0xff; 9], &[1]].concat()),
            "proto: negative length found during unmarshaling"
        );
        assert_eq!(wrong(&[&[0x0a][..], &[0xff; 10], &[1]].concat()), "proto: integer overflow");
        // An unknown group is skipped, and an invalid apiVersion is dropped.
        assert_eq!(read(b"v1", &[0x9b, 0x06, 0x9c, 0x06]), Ok(json!({ "apiVersion": "v1", "kind": "ConfigMap" })));
        assert_eq!(read(b"a/b/c", &[]), Ok(json!({ "kind": "ConfigMap" })));
        for (body, error) in [(&b""[..], Error::Empty), (b"k8s\0", Error::EmptyBody)] {
            assert_eq!(super::super::object(body, "io.k8s.api.core.v1.ConfigMap"), Err(error));
        }
    }

    #[test]
    fn invalid_bytes_become_replacement_characters() {
        let name = |bytes: &[u8]| {
            let object = field(1, &[field(1, bytes), field(11, &[field(1, bytes), field(2, bytes)].concat())].concat());
            let body = [b"k8s\0".to_vec(), field(2, &object)].concat();
            super::super::object(&body, "io.k8s.api.core.v1.ConfigMap").unwrap()["metadata"].take()
        };
        assert_eq!(name(b"a\xff"), json!({"name": "a\u{fffd}", "labels": {"a\u{fffd}": "a\u{fffd}"}}));
        assert_eq!(name(b"\xe2\x82")["name"], "\u{fffd}\u{fffd}");
    }

    #[test]
    fn only_the_zero_time_is_no_time() {
        let encoded = |seconds: i64| {
            let mut bytes = vec![1 << 3];
            let mut rest = seconds as u64;
            while rest > 0x7f {
                bytes.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push(rest as u8);
            bytes
        };
        for (seconds, expected) in [
            (ZERO_TIME, Value::Null),
            (ZERO_TIME + 2, json!("0001-01-01T00:00:02Z")),
            (-1, json!("1969-12-31T23:59:59Z")),
        ] {
            assert_eq!(time(&encoded(seconds), |at| at.to_string()), Ok(expected));
        }
        assert_eq!(time(b"", |at| at.to_string()), Ok(Value::Null));
    }

    /// Compares upstream's golden objects of every type, where they are available.
    #[test]
    fn golden_objects_equal_their_json() {
        let Ok(directory) = std::env::var("KUBERNETES_FACTS") else {
            eprintln!("skipped: KUBERNETES_FACTS does not name a directory with wire/");
            return;
        };
        let mut compared = 0;
        for kind in corten_api::kinds() {
            let group = if kind.group.is_empty() { "core" } else { &kind.group };
            let base = format!("{directory}/wire/{group}.{}.{}", kind.version, kind.kind);
            let (Ok(pb), Ok(text)) = (std::fs::read(format!("{base}.pb")), std::fs::read(format!("{base}.json")))
            else {
                continue;
            };
            let mut expected: Value = serde_json::from_slice(&text).unwrap();
            let mut decoded = super::super::object(&pb, &kind.schema).unwrap();
            corten_api::prune(&kind.schema, &mut expected);
            corten_api::prune(&kind.schema, &mut decoded);
            let difference = corten_meta::patch::merge_diff(&decoded, &expected);
            assert_eq!(difference, json!({}), "{base}");
            compared += 1;
        }
        assert!(compared > 30, "only {compared} golden objects were found");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let body = [b"k8s\0".as_slice(), &[0x12, bytes.len().min(127) as u8], &bytes].concat();
            let _ = super::super::object(&body, "io.k8s.api.core.v1.Pod");
        }
    }
}
