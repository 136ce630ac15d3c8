//! `string.format`: a text with places for values, as `printf` has them.

use corten_meta::go::float;
use corten_meta::quote::quote;

use super::time::{format_duration, format_timestamp};
use super::{no_overload, text};
use crate::declare::Line;
use crate::error::Error;
use crate::meter::Meter;
use crate::value::{List, Value};

type Outcome<'a> = Result<Value<'a>, Error>;

/// More digits than a double can have.
const MAX_PRECISION: usize = 1000;

pub const TABLE: &[Line] = &[("string_format", "string::format(list(dyn)) -> string", format_text)];

fn format_text<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let [_, Value::List(values)] = args else { return Err(no_overload()) };
    let mut out = String::new();
    let mut next = 0;
    let mut rest = &**text(args, 0)?;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let (precision, after) = precision(rest)?;
        let Some(verb) = after.chars().next() else {
            return Err(wrong("unexpected end of string"));
        };
        let value = argument(values, next)?;
        next += 1;
        place(meter, &mut out, verb, precision, &value)?;
        rest = &after[verb.len_utf8()..];
    }
    out.push_str(rest);
    Ok(Value::text(out))
}

fn wrong(why: &str) -> Error {
    Error::failed(format!("could not parse formatting clause: {why}"))
}

fn argument<'a>(values: &List<'a>, index: usize) -> Outcome<'a> {
    values.get(index).unwrap_or_else(|| Err(Error::failed(format!("index {index} out of range"))))
}

/// `.3` before a verb.
fn precision(text: &str) -> Result<(Option<usize>, &str), Error> {
    let Some(rest) = text.strip_prefix('.') else { return Ok((None, text)) };
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let digits: usize = rest[..end]
        .parse()
        .map_err(|_| wrong("error while parsing precision: could not find end of precision specifier"))?;
    if digits > MAX_PRECISION {
        return Err(wrong(&format!("error while parsing precision: precision is greater than {MAX_PRECISION}")));
    }
    Ok((Some(digits), &rest[end..]))
}

fn place(
    meter: &mut Meter,
    out: &mut String,
    verb: char,
    precision: Option<usize>,
    value: &Value<'_>,
) -> Result<(), Error> {
    let unfit = |kinds: &str| {
        let name = value.type_name();
        Err(Error::failed(format!("error during formatting: {kinds} but was given {name}")))
    };
    match (verb, value) {
        ('s', value) => show(meter, out, value)?,
        ('d', Value::Int(n)) => out.push_str(&n.to_string()),
        ('d', Value::Uint(n)) => out.push_str(&n.to_string()),
        ('d', Value::Double(n)) if !n.is_finite() => out.push_str(&not_finite(*n)),
        ('d', _) => return unfit("decimal clause can only be used on integers"),
        ('f', value) => match double(value) {
            Some(n) if !n.is_finite() => out.push_str(&not_finite(n)),
            Some(n) => out.push_str(&format!("{n:.*}", precision.unwrap_or(6))),
            None => return unfit("fixed-point clause can only be used on doubles"),
        },
        ('e', value) => match double(value) {
            Some(n) if !n.is_finite() => out.push_str(&not_finite(n)),
            Some(n) => out.push_str(&scientific(n, precision.unwrap_or(6))),
            None => return unfit("scientific clause can only be used on doubles"),
        },
        ('b', Value::Int(n)) => out.push_str(&signed(*n, |n| format!("{n:b}"))),
        ('b', Value::Uint(n)) => out.push_str(&format!("{n:b}")),
        ('b', Value::Bool(b)) => out.push(if *b { '1' } else { '0' }),
        ('b', _) => return unfit("only integers and bools can be formatted as binary"),
        ('o', Value::Int(n)) => out.push_str(&signed(*n, |n| format!("{n:o}"))),
        ('o', Value::Uint(n)) => out.push_str(&format!("{n:o}")),
        ('o', _) => return unfit("octal clause can only be used on integers"),
        ('x' | 'X', value) => {
            let text = match value {
                Value::Int(n) => signed(*n, |n| format!("{n:x}")),
                Value::Uint(n) => format!("{n:x}"),
                Value::String(text) => text.bytes().map(|b| format!("{b:02x}")).collect(),
                Value::Bytes(bytes) => bytes.iter().map(|b| format!("{b:02x}")).collect(),
                _ => return unfit("only integers, byte buffers, and strings can be formatted as hex"),
            };
            out.push_str(&if verb == 'X' { text.to_uppercase() } else { text });
        }
        (verb, _) => return Err(wrong(&format!("unrecognized formatting clause {}", quote(&verb.to_string())))),
    }
    meter.work(1 + out.len() as u64 / 64)
}

fn double(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Double(n) => Some(*n),
        Value::Int(n) => Some(*n as f64),
        Value::Uint(n) => Some(*n as f64),
        Value::String(text) => match &**text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn not_finite(number: f64) -> String {
    match number {
        n if n.is_nan() => "NaN",
        n if n > 0.0 => "Infinity",
        _ => "-Infinity",
    }
    .to_owned()
}

fn signed(number: i64, write: impl Fn(u64) -> String) -> String {
    let digits = write(number.unsigned_abs());
    if number < 0 { format!("-{digits}") } else { digits }
}

fn scientific(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// A value as `%s` shows it.
fn show(meter: &mut Meter, out: &mut String, value: &Value<'_>) -> Result<(), Error> {
    meter.work(1)?;
    match value {
        Value::String(text) => {
            meter.work(text.len() as u64 / 8)?;
            out.push_str(text);
        }
        Value::Bool(b) => out.push_str(&b.to_string()),
        Value::Null => out.push_str("null"),
        Value::Int(n) => out.push_str(&n.to_string()),
        Value::Uint(n) => out.push_str(&n.to_string()),
        Value::Double(n) if n.is_finite() => out.push_str(&float(*n)),
        Value::Double(n) => out.push_str(&not_finite(*n)),
        Value::Bytes(bytes) => out.push_str(&String::from_utf8_lossy(bytes)),
        Value::Timestamp(at) => out.push_str(&format_timestamp(*at)),
        Value::Duration(nanos) => out.push_str(&format_duration(*nanos)),
        Value::Type(name) => out.push_str(name),
        Value::List(list) => {
            out.push('[');
            for (index, item) in list.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                show(meter, out, &item?)?;
            }
            out.push(']');
        }
        Value::Map(map) => {
            out.push('{');
            for (index, (key, value)) in map.entries()?.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                show(meter, out, key)?;
                out.push_str(": ");
                show(meter, out, value)?;
            }
            out.push('}');
        }
        other => match other {
            Value::Opaque(opaque) if opaque.to_text().is_some() => {
                out.push_str(&opaque.to_text().unwrap_or_default());
            }
            _ => {
                let name = other.type_name();
                return Err(Error::failed(format!(
                    "error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given {name}"
                )));
            }
        },
    }
    Ok(())
}
