//! The codec of objects: decodes JSON and YAML, encodes canonical JSON.
//!
//! The store holds the canonical form: `apiVersion`, `kind`, `metadata` first, every other key sorted, no
//! `metadata.resourceVersion`. Two equal objects have equal bytes. Decoding is strict about JSON and lenient about
//! fields: the schema reports unknown fields, this module reports duplicate ones.

use crate::Error;
use crate::numbers::{Numbers, spelled};
use crate::quote::quote;
use crate::yaml;
use bytes::Bytes;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io::Write;

/// A decoded document and its strict decoding errors.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    pub value: Value,
    /// The paths of duplicate fields, as upstream's strict decoder writes them: `spec.containers[0].name`.
    pub duplicates: Vec<String>,
    /// Whether the document has numbers that are not plain integers. [`numbers`] returns their spelling.
    pub has_floats: bool,
}

/// The number of strict errors at which upstream stops collecting.
pub const MAX_COMPLAINTS: usize = 100;

/// The largest encoding buffer that is kept for the next object.
const KEPT_SCRATCH: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Encodes an object canonically. The result has no spare capacity, because it may live as long as the object: the
/// object is encoded into a buffer that the thread reuses, and copied out of it once.
pub fn encode_object(value: &Value) -> Bytes {
    SCRATCH.with_borrow_mut(|out| {
        out.clear();
        match value {
            Value::Object(map) => write_top(out, map),
            other => write_value(out, other),
        }
        let bytes = Bytes::copy_from_slice(&escaped(out));
        if out.capacity() > KEPT_SCRATCH {
            *out = Vec::new();
        }
        bytes
    })
}

/// Encodes any value with sorted keys, as its maps keep them, and Go's number format.
pub fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_value(out, item);
            }
            out.push(b']');
        }
        Value::Object(map) => {
            out.push(b'{');
            let mut first = true;
            for (key, item) in map {
                write_field(out, &mut first, key, |out| write_value(out, item));
            }
            out.push(b'}');
        }
    }
}

fn write_top(out: &mut Vec<u8>, map: &Map<String, Value>) {
    out.push(b'{');
    let mut first = true;
    for key in ["apiVersion", "kind"] {
        if let Some(value) = map.get(key) {
            write_field(out, &mut first, key, |out| write_value(out, value));
        }
    }
    match map.get("metadata") {
        Some(Value::Object(metadata)) => {
            write_field(out, &mut first, "metadata", |out| write_metadata(out, metadata));
        }
        Some(other) => write_field(out, &mut first, "metadata", |out| write_value(out, other)),
        None => {}
    }
    for (key, value) in map {
        if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
            write_field(out, &mut first, key, |out| write_value(out, value));
        }
    }
    out.push(b'}');
}

fn write_metadata(out: &mut Vec<u8>, metadata: &Map<String, Value>) {
    out.push(b'{');
    let mut first = true;
    for (key, value) in metadata {
        if !matches!(key.as_str(), "resourceVersion" | "selfLink") {
            write_field(out, &mut first, key, |out| write_value(out, value));
        }
    }
    out.push(b'}');
}

fn write_field(out: &mut Vec<u8>, first: &mut bool, key: &str, write: impl FnOnce(&mut Vec<u8>)) {
    if !std::mem::take(first) {
        out.push(b',');
    }
    write_string(out, key);
    out.push(b':');
    write(out);
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("writing a string to memory cannot fail");
}

/// Escapes JSON as Go does: `<`, `>`, `&`, U+2028 and U+2029, which occur in strings only. Controllers keep raw JSON,
/// such as the data of a ControllerRevision, and compare it byte by byte.
pub fn escaped(json: &[u8]) -> Cow<'_, [u8]> {
    let lines = |at: usize| matches!(json.get(at..at + 3), Some([0xe2, 0x80, 0xa8 | 0xa9]));
    let found = |at: &usize| json[*at] != 0xe2 || lines(*at);
    let markup = memchr::memchr3_iter(b'<', b'>', b'&', json);
    let mut places: Vec<usize> = markup.chain(memchr::memchr_iter(0xe2, json)).filter(found).collect();
    if places.is_empty() {
        return Cow::Borrowed(json);
    }
    places.sort_unstable();
    let mut out = Vec::with_capacity(json.len() + 5 * places.len());
    let mut copied = 0;
    for at in places {
        out.extend_from_slice(&json[copied..at]);
        let (character, length) = match json[at] {
            0xe2 => (0x2000 + u32::from(json[at + 2] & 0x3f), 3),
            ascii => (ascii.into(), 1),
        };
        write!(out, "\\u{character:04x}").expect("writing to memory cannot fail");
        copied = at + length;
    }
    out.extend_from_slice(&json[copied..]);
    Cow::Owned(out)
}

/// Normalizes the numbers of a value to their form after encoding and decoding: a float without a fraction becomes an
/// integer.
pub fn settle_numbers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let mut written = Vec::new();
            write_number(&mut written, number);
            if let Ok(read) = serde_json::from_slice(&written) {
                *value = read;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle_numbers),
        Value::Object(map) => map.values_mut().for_each(settle_numbers),
        _ => {}
    }
}

/// Writes a number as Go does: a float has no exponent unless it is very large or very small. A number too large for an
/// integer is a float.
fn write_number(out: &mut Vec<u8>, number: &Number) {
    let float = number.as_f64().filter(|_| number.as_i64().is_none());
    let written = match float {
        None => write!(out, "{number}"),
        Some(0.0) => write!(out, "0"),
        Some(float) if (1e-6..1e21).contains(&float.abs()) => write!(out, "{float}"),
        Some(float) if float.abs() < 1.0 => write!(out, "{float:e}"),
        Some(float) => write!(out, "{}", format!("{float:e}").replace('e', "e+")),
    };
    written.expect("writing a number to memory cannot fail");
}

/// Decodes one JSON document. The last of duplicate fields wins; with `strict` their paths are reported too. Nesting is
/// limited to 128 levels.
pub fn decode_json(bytes: &[u8], strict: bool) -> Result<Decoded, Error> {
    let bytes = &*with_replacements(bytes);
    // The second pass is needed only to report the paths of duplicates or to read the spelling of numbers.
    let mut strictness = Strictness::default();
    let mut decoded = strictness.read(bytes);
    let follows = strict && strictness.has_duplicates;
    if follows || strictness.has_negative_zero || decoded.is_err() {
        strictness = Strictness { follows, ..Strictness::default() };
        decoded = strictness.read_spelled(bytes);
    }
    let value = decoded.map_err(|e| Error::Json(e.to_string()))?;
    Ok(Decoded { value, duplicates: strictness.duplicates, has_floats: strictness.has_floats })
}

/// Returns the spelling of the numbers that are not plain integers in a document that was decoded before.
pub fn numbers(bytes: &[u8]) -> Numbers {
    let document = with_replacements(bytes);
    let mut strictness = Strictness { follows: true, ..Strictness::default() };
    let _ = strictness.read_spelled(&document);
    strictness.numbers
}

/// Replaces bytes that are not UTF-8 and unpaired surrogate escapes by U+FFFD, as Go does.
fn with_replacements(bytes: &[u8]) -> Cow<'_, [u8]> {
    let has_escape = bytes.contains(&b'\\') && bytes.windows(2).any(|pair| pair == b"\\u");
    if !has_escape && std::str::from_utf8(bytes).is_ok() {
        return Cow::Borrowed(bytes);
    }
    let text = characters(bytes);
    let mut out = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let length = match (half(escape), escape.get(6..).and_then(half)) {
            // A surrogate pair is one character.
            (Some(0xd800..0xdc00), Some(0xdc00..)) => 12,
            (Some(_), _) => 6,
            (None, _) => 1 + escape[1..].chars().next().map_or(0, char::len_utf8),
        };
        out.push_str(if length == 6 { "\\ufffd" } else { &escape[..length] });
        rest = &escape[length..];
    }
    out.push_str(rest);
    Cow::Owned(out.into_bytes())
}

/// Returns bytes as a string, with U+FFFD for every byte that is not UTF-8, as Go does.
pub fn characters(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Cow::Owned(text)
}

/// Returns the code of an escape that is half of a surrogate pair.
fn half(escape: &str) -> Option<u32> {
    let digits = escape.strip_prefix("\\u")?.get(..4)?;
    u32::from_str_radix(digits, 16).ok().filter(|code| (0xd800..0xe000).contains(code))
}

/// Decodes one YAML document. JSON is YAML, so it also reads JSON. A duplicate key is an error.
pub fn decode_yaml(bytes: &[u8]) -> Result<Value, Error> {
    let decoded = decode_yaml_leniently(bytes)?;
    match decoded.duplicates.into_iter().next() {
        Some(duplicate) => Err(Error::Yaml(duplicate)),
        None => Ok(decoded.value),
    }
}

/// Decodes one YAML document as a server does: the last of duplicate keys wins, and the duplicates are reported in
/// go-yaml's words. Most documents that clients send as YAML are JSON; these take the JSON decoder, which is cheaper
/// and uses less stack, so they may nest deeper.
pub fn decode_yaml_leniently(bytes: &[u8]) -> Result<Decoded, Error> {
    if bytes.trim_ascii_start().starts_with(b"{")
        && !differs_in_yaml(bytes)
        && let Ok(decoded) = decode_json(bytes, true)
        && decoded.duplicates.is_empty()
        && !decoded.has_floats
    {
        return Ok(decoded);
    }
    yaml::read(bytes).map(into_decoded).map_err(|e| Error::Yaml(e.to_string()))
}

/// Reports whether YAML reads a document differently than JSON: it has an escaped slash, surrogate escapes, control
/// characters or Unicode line separators.
fn differs_in_yaml(bytes: &[u8]) -> bool {
    let is_escape = |three: &[u8]| three.starts_with(b"\\/") || three.eq_ignore_ascii_case(b"\\ud");
    let is_special =
        |character| matches!(character, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}');
    let is_plain = std::str::from_utf8(bytes).is_ok_and(|text| !text.contains(is_special));
    !is_plain || bytes.contains(&b'\\') && bytes.windows(3).any(is_escape)
}

fn into_decoded(read: yaml::Read) -> Decoded {
    let duplicates =
        (!read.complaints.is_empty()).then(|| format!("yaml: unmarshal errors:\n  {}", read.complaints.join("\n  ")));
    Decoded { value: read.value, duplicates: duplicates.into_iter().collect(), has_floats: false }
}

/// Decodes every document of a YAML stream, leaving out the empty ones.
pub fn decode_yaml_documents(bytes: &[u8]) -> Result<Vec<Value>, Error> {
    let documents = yaml::read_all(bytes).map_err(|e| Error::Yaml(e.to_string()))?;
    Ok(documents.into_iter().map(|read| read.value).filter(|document| !document.is_null()).collect())
}

/// Encodes a value as YAML.
pub fn encode_yaml(value: &Value) -> String {
    yaml::write(value)
}

/// Returns the strict decoding errors of a document that was decoded before, in the order of the document: the
/// duplicate fields and those of the paths `unknown` that the document has.
pub fn strict_complaints(bytes: &[u8], unknown: &[String]) -> Vec<String> {
    let document = with_replacements(bytes);
    let unknown = unknown.iter().map(String::as_str).collect();
    let mut strictness = Strictness { follows: true, unknown, ..Strictness::default() };
    // The document was decoded before, so it decodes again.
    let _ = strictness.read_spelled(&document);
    strictness.complaints
}

/// The state of the strict decoder: its position and its findings.
#[derive(Default)]
struct Strictness<'u> {
    /// Whether the decoder tracks paths. Otherwise it finds only whether there are duplicates.
    follows: bool,
    has_duplicates: bool,
    path: String,
    duplicates: Vec<String>,
    unknown: BTreeSet<&'u str>,
    /// The unknown fields that were reported.
    reported: BTreeSet<String>,
    complaints: Vec<String>,
    has_floats: bool,
    has_negative_zero: bool,
    /// The spelling of the floats that are still to come, if it was looked up.
    spellings: VecDeque<&'u str>,
    numbers: Numbers,
}

impl<'u> Strictness<'u> {
    /// Reads a document with the spelling of its numbers.
    fn read_spelled(&mut self, bytes: &'u [u8]) -> Result<Value, serde_json::Error> {
        let (document, spellings) = spelled(bytes);
        self.spellings = spellings.into();
        self.read(&document)
    }

    /// Returns a number that is not a plain integer. A negative zero is an integer.
    fn float(&mut self, value: f64) -> Option<Value> {
        self.has_floats = true;
        self.has_negative_zero |= value == 0.0 && value.is_sign_negative();
        let text = self.spellings.pop_front();
        if let Some(text) = text.filter(|_| self.follows) {
            self.numbers.insert(&self.path, text);
        }
        if text == Some("-0") {
            return Some(Value::from(0));
        }
        Number::from_f64(value).map(Value::Number)
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Value, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        let value = Seed(self).deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    }

    fn report(&mut self, field: &str) {
        let path = if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) };
        if self.complaints.len() < MAX_COMPLAINTS && !self.duplicates.contains(&path) && !self.is_unknown(&path) {
            self.complaints.push(format!("duplicate field {}", quote(&path)));
            self.duplicates.push(path);
        }
    }

    /// Reports the field at the current path if it is unknown.
    fn enter(&mut self) {
        let is_new = self.unknown.contains(self.path.as_str()) && !self.reported.contains(&self.path);
        if self.complaints.len() < MAX_COMPLAINTS && is_new {
            self.complaints.push(format!("unknown field {}", quote(&self.path)));
            self.reported.insert(self.path.clone());
        }
    }

    /// Reports whether a path is an unknown field or inside one. Upstream does not descend into unknown fields.
    fn is_unknown(&self, path: &str) -> bool {
        let ends = path.match_indices(['.', '[']).map(|(at, _)| at).chain([path.len()]);
        ends.map(|end| &path[..end]).any(|place| self.unknown.contains(place))
    }
}

struct Seed<'s, 'u>(&'s mut Strictness<'u>);

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Value;
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        self.0.float(value).ok_or_else(|| E::custom("number out of range"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        let length = self.0.path.len();
        loop {
            if self.0.follows {
                self.0.path.push_str(&format!("[{}]", items.len()));
            }
            let next = seq.next_element_seed(Seed(self.0))?;
            self.0.path.truncate(length);
            match next {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let length = self.0.path.len();
        while let Some(key) = access.next_key::<String>()? {
            if self.0.follows {
                if map.contains_key(&key) {
                    self.0.report(&key);
                }
                if length > 0 {
                    self.0.path.push('.');
                }
                self.0.path.push_str(&key);
                self.0.enter();
            }
            let value = access.next_value_seed(Seed(self.0)).map_err(A::Error::custom)?;
            self.0.path.truncate(length);
            self.0.has_duplicates |= map.insert(key, value).is_some();
        }
        Ok(Value::Object(map))
    }
}
