//! The step from nodes to values: resolves plain scalars, merges, aliases, and keys that JSON does not have.

use super::parser::{Anchored, Content, MAX_DEPTH, Node};
use super::{Failed, Read};
use crate::go;
use crate::quote::quote;
use crate::{Map, Value};
use std::collections::BTreeMap;

const TAGS: &str = "tag:yaml.org,2002:";

/// A value of YAML, which has more values than JSON.
#[derive(Debug, Clone, PartialEq)]
enum Item {
    Scalar(Scalar),
    Sequence(Vec<Item>),
    Mapping(BTreeMap<Scalar, Item>),
}

/// A scalar. Floats are kept by their bits, so that they can be keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(u64),
    Text(String),
}

/// Returns the value of a document.
pub fn read(node: &Node) -> Result<Read, Failed> {
    let mut reader = Reader::default();
    let item = reader.item(node)?;
    Ok(Read { value: json(item)?, complaints: reader.complaints })
}

#[derive(Default)]
struct Reader {
    complaints: Vec<String>,
    depth: usize,
    /// The number of aliases around the current node.
    within_aliases: usize,
    read: usize,
    read_by_alias: usize,
}

impl Reader {
    fn item(&mut self, node: &Node) -> Result<Item, Failed> {
        self.count()?;
        match &node.content {
            Content::Scalar { text, tag, implicit } => scalar(text, tag, *implicit).map(Item::Scalar),
            Content::Alias(name, target) => self.alias(name, target, Reader::item),
            Content::Sequence(items) => {
                self.enter()?;
                let items = items.iter().map(|item| self.item(item)).collect::<Result<_, _>>()?;
                self.depth -= 1;
                Ok(Item::Sequence(items))
            }
            Content::Mapping(_) => {
                let mut out = BTreeMap::new();
                self.mapping(node, &mut out)?;
                Ok(Item::Mapping(out))
            }
        }
    }

    fn enter(&mut self) -> Result<(), Failed> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(Failed::of(format!("exceeded max depth of {MAX_DEPTH}"))) } else { Ok(()) }
    }

    /// Checks the share of nodes that aliases make: up to 99 % in small documents, up to 10 % in large ones.
    fn count(&mut self) -> Result<(), Failed> {
        const SMALL: f64 = 400_000.0;
        const LARGE: f64 = 4_000_000.0;
        self.read += 1;
        self.read_by_alias += usize::from(self.within_aliases > 0);
        let read = self.read as f64;
        let aliased = self.read_by_alias as f64;
        let allowed = 0.99 - 0.89 * ((read - SMALL) / (LARGE - SMALL)).clamp(0.0, 1.0);
        if self.read_by_alias > 100 && self.read > 1000 && aliased / read > allowed {
            return Err(Failed::of("document contains excessive aliasing".to_owned()));
        }
        Ok(())
    }

    fn alias<T>(
        &mut self,
        name: &str,
        target: &Anchored,
        then: impl FnOnce(&mut Reader, &Node) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        let Anchored::Node(node) = target else {
            return Err(Failed::of(format!("anchor '{name}' value contains itself")));
        };
        self.within_aliases += 1;
        let out = then(self, node);
        self.within_aliases -= 1;
        out
    }

    /// Adds the entries of a map to another. The last of equal keys wins.
    fn mapping(&mut self, node: &Node, out: &mut BTreeMap<Scalar, Item>) -> Result<(), Failed> {
        let Content::Mapping(entries) = &node.content else { return Err(no_map()) };
        self.enter()?;
        for (key, value) in entries {
            if is_merge(key) {
                self.merge(value, out)?;
                continue;
            }
            let key = match self.item(key)? {
                Item::Scalar(key) => key,
                other => return Err(Failed::of(format!("invalid map key: {}", shown(&other)))),
            };
            let item = self.item(value)?;
            if out.contains_key(&key) {
                self.complaints.push(format!("line {}: key {} already set in map", value.line + 1, shown_scalar(&key)));
            }
            out.insert(key, item);
        }
        self.depth -= 1;
        Ok(())
    }

    /// Adds the map behind `<<`, or several, of which the first wins.
    fn merge(&mut self, node: &Node, out: &mut BTreeMap<Scalar, Item>) -> Result<(), Failed> {
        let mut one = |reader: &mut Reader, node: &Node| {
            reader.count()?;
            match &node.content {
                Content::Alias(name, target) => reader.alias(name, target, |reader, node| {
                    reader.count()?;
                    reader.mapping(node, out)
                }),
                _ => reader.mapping(node, out),
            }
        };
        match &node.content {
            Content::Sequence(nodes) => nodes.iter().rev().try_for_each(|node| one(self, node)),
            _ => one(self, node),
        }
    }
}

fn is_merge(key: &Node) -> bool {
    matches!(&key.content, Content::Scalar { text, tag, implicit }
        if text == "<<" && (*implicit || tag.strip_prefix(TAGS) == Some("merge")))
}

fn no_map() -> Failed {
    Failed::of("map merge requires map or sequence of maps as the value".to_owned())
}

/// Resolves a scalar by its tag or else by its content.
fn scalar(text: &str, tag: &str, implicit: bool) -> Result<Scalar, Failed> {
    let as_text = || Scalar::Text(text.to_owned());
    let wanted = match tag.strip_prefix(TAGS) {
        None if tag.is_empty() => return Ok(if implicit { resolved(text) } else { as_text() }),
        Some("binary") => {
            let broken = || Failed::of("!!binary value contains invalid base64 data".to_owned());
            return base64(text).map(Scalar::Text).ok_or_else(broken);
        }
        Some(name @ ("bool" | "int" | "float" | "null" | "timestamp")) => name,
        _ => return Ok(as_text()),
    };
    let found = if wanted == "timestamp" && is_timestamp(text) { as_text() } else { resolved(text) };
    let name = match &found {
        Scalar::Null => "null",
        Scalar::Bool(_) => "bool",
        Scalar::Int(number) if wanted == "float" => return Ok(Scalar::Float((*number as f64).to_bits())),
        Scalar::Int(_) | Scalar::Uint(_) => "int",
        Scalar::Float(_) => "float",
        Scalar::Text(_) if wanted == "timestamp" && is_timestamp(text) => "timestamp",
        Scalar::Text(_) => "str",
    };
    if name == wanted {
        return Ok(found);
    }
    Err(Failed::of(format!("cannot decode !!{name} `{text}` as a !!{wanted}")))
}

/// Resolves a plain scalar.
fn resolved(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Scalar::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Scalar::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Scalar::Float(f64::NAN.to_bits()),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Scalar::Float(f64::INFINITY.to_bits()),
        "-.inf" | "-.Inf" | "-.INF" => return Scalar::Float(f64::NEG_INFINITY.to_bits()),
        _ => {}
    }
    let float = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    let number = match text.as_bytes()[0] {
        b'.' => float(text).map(|number| Scalar::Float(number.to_bits())),
        b'+' | b'-' | b'0'..=b'9' => {
            let plain = text.replace('_', "");
            let float = || float(&plain).filter(|_| is_float(&plain)).map(|number| Scalar::Float(number.to_bits()));
            integer(&plain).or_else(float)
        }
        _ => None,
    };
    number.unwrap_or_else(|| Scalar::Text(text.to_owned()))
}

/// Reports whether a plain scalar is a string, also for readers of dates and of numbers in base 60.
pub fn is_text(text: &str) -> bool {
    !is_timestamp(text) && !is_in_base_60(text) && matches!(resolved(text), Scalar::Text(_))
}

/// Reports whether a scalar is a number such as `190:20:30.15`.
fn is_in_base_60(text: &str) -> bool {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let Some((first, rest)) = text.strip_prefix(['+', '-']).unwrap_or(text).split_once(':') else { return false };
    let (rest, part) = rest.split_once('.').unwrap_or((rest, ""));
    let is_sixtieth = |text: &str| match text.as_bytes() {
        [digit] | [b'0'..=b'5', digit] => digit.is_ascii_digit(),
        _ => false,
    };
    first.starts_with(|digit: char| digit.is_ascii_digit())
        && is_number(first)
        && is_number(part)
        && rest.split(':').all(is_sixtieth)
}

/// Reads an integer in the base of its prefix: `0x1f`, `0b1`, `0o17`, `017`.
fn integer(text: &str) -> Option<Scalar> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = unsigned.to_ascii_lowercase();
    let (digits, base) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', b'o', ..] => (&lower[2..], 8),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (&lower[..], 10),
    };
    if !digits.starts_with(|digit: char| digit.is_digit(base)) {
        return None;
    }
    let size = u64::from_str_radix(digits, base).ok()?;
    if text.starts_with('-') {
        return 0i64.checked_sub_unsigned(size).map(Scalar::Int);
    }
    match i64::try_from(size) {
        Ok(number) => Some(Scalar::Int(number)),
        Err(_) => (!text.starts_with('+')).then_some(Scalar::Uint(size)),
    }
}

/// Reports whether a scalar is a float: digits with an optional point and exponent.
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (digits, exponent) = text.split_once(['e', 'E']).map_or((text, "0"), |(digits, exponent)| (digits, exponent));
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let has_digits = !whole.is_empty() || !part.is_empty();
    has_digits && are_digits(whole) && are_digits(part) && !exponent.is_empty() && are_digits(exponent)
}

/// Reports whether a scalar is a date, or a date and a time.
fn is_timestamp(text: &str) -> bool {
    let (date, time) = text.split_once(['T', 't', ' ']).map_or((text, None), |(date, time)| (date, Some(time)));
    let parts: Vec<&str> = date.split('-').collect();
    let [year, month, day] = parts[..] else { return false };
    let date = format!("{year}-{month:0>2}-{day:0>2}");
    let is_date = year.len() == 4 && date.parse::<jiff::civil::Date>().is_ok();
    let Some(time) = time else { return is_date };
    let has_zone = time.ends_with('Z') || time.rfind(['+', '-']).is_some();
    let (clock, _) = time.split_once(['Z', '+', '-']).unwrap_or((time, ""));
    let numbers: Vec<Option<f64>> = clock.split(':').map(|number| number.parse().ok()).collect();
    let is_time = matches!(numbers[..], [Some(h), Some(m), Some(s)] if h < 24.0 && m < 60.0 && s < 60.0);
    is_date && is_time && has_zone != text.contains(' ')
}

/// Decodes base64, which may be broken into lines.
fn base64(text: &str) -> Option<String> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let characters: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    let length = characters.len() - characters.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    if !characters.len().is_multiple_of(4) {
        return None;
    }
    let mut out = Vec::new();
    for four in characters[..length].chunks(4) {
        let mut bits = 0u32;
        for digit in four {
            bits = bits << 6 | u32::try_from(ALPHABET.iter().position(|known| known == digit)?).ok()?;
        }
        let bytes = (bits << (6 * (4 - four.len())) << 8).to_be_bytes();
        out.extend(&bytes[..four.len().checked_sub(1)?]);
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

/// Converts to JSON: keys become strings, and floats without a fraction integers.
fn json(item: Item) -> Result<Value, Failed> {
    Ok(match item {
        Item::Scalar(Scalar::Null) => Value::Null,
        Item::Scalar(Scalar::Bool(value)) => value.into(),
        Item::Scalar(Scalar::Int(number)) => number.into(),
        Item::Scalar(Scalar::Uint(number)) => number.into(),
        Item::Scalar(Scalar::Text(text)) => text.into(),
        Item::Scalar(Scalar::Float(bits)) => {
            let number = f64::from_bits(bits);
            if !number.is_finite() {
                return Err(Failed(format!("json: unsupported value: {}", go::float(number))));
            }
            let whole = (number.fract() == 0.0 && number.abs() < 1e21).then(|| format!("{number}"));
            whole.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_else(|| number.into())
        }
        Item::Sequence(items) => Value::Array(items.into_iter().map(json).collect::<Result<_, _>>()?),
        Item::Mapping(entries) => {
            let mut map = Map::new();
            for (key, item) in entries {
                let name = match key {
                    Scalar::Text(text) => text,
                    Scalar::Bool(_) | Scalar::Int(_) => shown_scalar(&key),
                    Scalar::Float(bits) => float_key(f64::from_bits(bits)),
                    Scalar::Null | Scalar::Uint(_) => {
                        let kind = if key == Scalar::Null { "%!s(<nil>)" } else { "uint64" };
                        let key = shown_scalar(&key);
                        let value = shown(&item);
                        return Err(Failed(format!("unsupported map key of type: {kind}, key: {key}, value: {value}")));
                    }
                };
                map.insert(name, json(item)?);
            }
            Value::Object(map)
        }
    })
}

/// Formats a float as a key: in the fewest digits of a 32-bit float.
fn float_key(number: f64) -> String {
    match number as f32 {
        short if short.is_nan() => ".nan".to_owned(),
        short if short.is_infinite() => if short > 0.0 { ".inf" } else { "-.inf" }.to_owned(),
        short => go::float(format!("{short}").parse().unwrap_or(number)),
    }
}

fn shown_scalar(scalar: &Scalar) -> String {
    match scalar {
        Scalar::Null => "<nil>".to_owned(),
        Scalar::Bool(value) => value.to_string(),
        Scalar::Int(number) => number.to_string(),
        Scalar::Uint(number) => format!("{number:#x}"),
        Scalar::Float(bits) => go::float(f64::from_bits(*bits)),
        Scalar::Text(text) => quote(text),
    }
}

/// Formats a value as Go's `%#v` does.
fn shown(item: &Item) -> String {
    let inner = |item: &Item| match item {
        Item::Scalar(Scalar::Null) => "interface {}(nil)".to_owned(),
        other => shown(other),
    };
    match item {
        Item::Scalar(scalar) => shown_scalar(scalar),
        Item::Sequence(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(inner).collect::<Vec<_>>().join(", "))
        }
        Item::Mapping(entries) => {
            let shown: Vec<String> =
                entries.iter().map(|(key, item)| format!("{}:{}", shown_scalar(key), inner(item))).collect();
            format!("map[interface {{}}]interface {{}}{{{}}}", shown.join(", "))
        }
    }
}
