//! `string.format`: a string with placeholders for values, as `printf` has them. The output is upstream's: numbers with
//! a point are grouped, powers of ten are superscripts, and elements of lists and maps are literals.

use corten_meta::go::float;
use corten_meta::quote::quote;

use super::time::{format_duration, format_timestamp};
use super::{no_overload, text};
use crate::ast::{Expr, ExprKind, Literal};
use crate::declare::Line;
use crate::error::Error;
use crate::meter::Meter;
use crate::types::{Type, bare_name};
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, Error>;

/// A precision that no double exceeds.
const MAX_PRECISION: usize = 1000;
/// The default number of digits after the point.
const PRECISION: usize = 6;

pub const TABLE: &[Line] = &[("string_format", "string::format(list(dyn)) -> string", format_text)];

fn format_text<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let [_, Value::List(values)] = args else { return Err(no_overload()) };
    let mut out = String::new();
    walk(text(args, 0)?, values.len(), &mut |piece| match piece {
        Piece::Text(text) => {
            out.push_str(text);
            Ok(())
        }
        Piece::Place(index, verb, precision) => {
            let Some(value) = values.get(index) else { return Err(out_of_range(index)) };
            placeholder(meter, &mut out, verb, precision, &value?).map_err(|error| during(&error))
        }
    })?;
    Ok(Value::string(out))
}

/// A piece of a format string: a literal, or a placeholder with its verb and precision.
enum Piece<'t> {
    Text(&'t str),
    Place(usize, char, Option<usize>),
}

/// Walks over a format string with so many values. Returns the number of placeholders.
fn walk<'t>(
    text: &'t str,
    found_type: usize,
    visit: &mut dyn FnMut(Piece<'t>) -> Result<(), Error>,
) -> Result<usize, Error> {
    let mut rest = text;
    let mut places = 0;
    while let Some(at) = rest.find('%') {
        visit(Piece::Text(&rest[..at]))?;
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            visit(Piece::Text("%"))?;
            rest = after;
            continue;
        }
        if rest.is_empty() {
            return Err(Error::failed("unexpected end of string".to_owned()));
        }
        if places >= found_type {
            return Err(out_of_range(places));
        }
        let (precision, after) = precision(rest)?;
        let verb = char::from(after.as_bytes().first().copied().unwrap_or_default());
        if !"sdfebxXo".contains(verb) {
            return Err(invalid_clause(&format!("unrecognized formatting clause \"{verb}\"")));
        }
        visit(Piece::Place(places, verb, precision))?;
        places += 1;
        rest = &after[1..];
    }
    visit(Piece::Text(rest))?;
    Ok(places)
}

fn out_of_range(index: usize) -> Error {
    Error::failed(format!("index {index} out of range"))
}

fn invalid_clause(reason: &str) -> Error {
    Error::failed(format!("could not parse formatting clause: {reason}"))
}

fn during(reason: &Error) -> Error {
    Error::failed(format!("error during formatting: {reason}"))
}

/// Reads the `.3` before a verb.
fn precision(text: &str) -> Result<(Option<usize>, &str), Error> {
    let Some(rest) = text.strip_prefix('.') else { return Ok((None, text)) };
    let Some(end) = rest.find(|c: char| !c.is_ascii_digit()) else {
        return Err(invalid_clause("error while parsing precision: could not find end of precision specifier"));
    };
    let digits: usize = rest[..end].parse().map_err(|_| {
        let digits = quote(&rest[..end]);
        let reason = if end == 0 { "invalid syntax" } else { "value out of range" };
        let reason = format!("error while converting precision to integer: strconv.Atoi: parsing {digits}: {reason}");
        invalid_clause(&format!("error while parsing precision: {reason}"))
    })?;
    if digits > MAX_PRECISION {
        return Err(invalid_clause(&format!(
            "error while parsing precision: precision is greater than {MAX_PRECISION}"
        )));
    }
    Ok((Some(digits), &rest[end..]))
}

/// Returns the error about a value of a type that a verb does not take.
fn unfit(verb: char, found_type: &str) -> Error {
    let takes = match verb {
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'b' => "only integers and bools can be formatted as binary",
        'o' => "octal clause can only be used on integers",
        'x' | 'X' => "only integers, byte buffers, and strings can be formatted as hex",
        _ => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, \
             and timestamps"
        }
    };
    Error::failed(format!("{takes}, was given {found_type}"))
}

fn placeholder(
    meter: &mut Meter,
    out: &mut String,
    verb: char,
    precision: Option<usize>,
    value: &Value<'_>,
) -> Result<(), Error> {
    match (verb, value) {
        ('s', value) => show(meter, out, value)?,
        ('d', Value::Int(n)) => out.push_str(&n.to_string()),
        ('d', Value::Uint(n)) => out.push_str(&n.to_string()),
        ('f' | 'e', value) => {
            let number = double(value).ok_or_else(|| unfit(verb, &value.type_name()))?;
            let precision = precision.unwrap_or(PRECISION);
            out.push_str(&if verb == 'f' { grouped(number, precision) } else { scientific(number, precision) });
        }
        ('b', Value::Int(n)) => out.push_str(&signed(*n, |n| format!("{n:b}"))),
        ('b', Value::Uint(n)) => out.push_str(&format!("{n:b}")),
        ('b', Value::Bool(b)) => out.push(if *b { '1' } else { '0' }),
        ('o', Value::Int(n)) => out.push_str(&signed(*n, |n| format!("{n:o}"))),
        ('o', Value::Uint(n)) => out.push_str(&format!("{n:o}")),
        ('x' | 'X', value) => {
            let text = match value {
                Value::Int(n) => signed(*n, |n| format!("{n:x}")),
                Value::Uint(n) => format!("{n:x}"),
                Value::String(text) => text.bytes().map(|b| format!("{b:02x}")).collect(),
                Value::Bytes(bytes) => bytes.iter().map(|b| format!("{b:02x}")).collect(),
                other => return Err(unfit(verb, &other.type_name())),
            };
            out.push_str(&if verb == 'X' { text.to_uppercase() } else { text });
        }
        (verb, other) => return Err(unfit(verb, &other.type_name())),
    }
    meter.work(1 + out.len() as u64 / 64)
}

fn double(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Double(n) => Some(*n),
        Value::String(text) => match &**text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn signed(number: i64, write: impl Fn(u64) -> String) -> String {
    let digits = write(number.unsigned_abs());
    if number < 0 { format!("-{digits}") } else { digits }
}

/// Formats a number with so many digits after the point, and a comma after each thousand.
fn grouped(number: f64, precision: usize) -> String {
    if !number.is_finite() {
        return not_finite(number).to_owned();
    }
    let text = format!("{:.precision$}", number.abs());
    let (integer_part, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = if number.is_sign_negative() { "-".to_owned() } else { String::new() };
    for (at, digit) in integer_part.chars().enumerate() {
        if at > 0 && (integer_part.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

/// Formats a number as a product with a power of ten. The precision is its least width.
fn scientific(number: f64, width: usize) -> String {
    const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    if !number.is_finite() {
        return format!("{:>width$}", not_finite(number));
    }
    let text = format!("{number:.PRECISION$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let power: String =
        format!("{:02}", exponent.abs()).chars().filter_map(|digit| RAISED.get(digit.to_digit(10)? as usize)).collect();
    let text = format!("{digits}×10{}{power}", if exponent < 0 { "⁻" } else { "" });
    format!("{text:>width$}")
}

fn not_finite(number: f64) -> &'static str {
    match number {
        n if n.is_nan() => "NaN",
        n if n > 0.0 => "∞",
        _ => "-∞",
    }
}

/// Formats a value as `%s` does.
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
        Value::Double(n) if n.is_infinite() => out.push_str(if *n > 0.0 { "+Inf" } else { "-Inf" }),
        Value::Double(n) if n.is_nan() => out.push_str("NaN"),
        Value::Double(n) => out.push_str(&float(*n)),
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
                show_inside(meter, out, &item?)?;
            }
            out.push(']');
        }
        Value::Map(map) => {
            let mut entries = Vec::new();
            for (key, value) in map.entries()? {
                if !matches!(key, Value::String(_) | Value::Bool(_) | Value::Int(_) | Value::Uint(_)) {
                    let of = key.type_name();
                    return Err(Error::failed(format!("no formatting function for map key of type {of}")));
                }
                let mut name = String::new();
                let mut shown = String::new();
                show_inside(meter, &mut name, &key)?;
                show_inside(meter, &mut shown, &value)?;
                entries.push((name, shown));
            }
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            let entries: Vec<String> = entries.into_iter().map(|(name, shown)| format!("{name}:{shown}")).collect();
            out.push_str(&format!("{{{}}}", entries.join(", ")));
        }
        other => return Err(unfit('s', &other.type_name())),
    }
    Ok(())
}

/// Formats a value inside of a list or a map, as a literal.
fn show_inside(meter: &mut Meter, out: &mut String, value: &Value<'_>) -> Result<(), Error> {
    let mut shown = String::new();
    match value {
        Value::Double(n) if n.is_finite() => shown = format!("{n:.PRECISION$}"),
        Value::Opaque(_) | Value::Optional(_) | Value::Authorization(_) | Value::Message(_) => {
            return Err(Error::failed(format!("no formatting function for {}", value.type_name())));
        }
        value => show(meter, &mut shown, value)?,
    }
    match value {
        Value::String(_) => out.push_str(&quote(&shown)),
        Value::Double(n) if !n.is_finite() => out.push_str(&quote(&shown)),
        Value::Bytes(_) => out.push_str(&format!("b{}", quote(&shown))),
        Value::Timestamp(_) => out.push_str(&format!("timestamp({})", quote(&shown))),
        Value::Duration(_) => out.push_str(&format!("duration({})", quote(&shown))),
        _ => out.push_str(&shown),
    }
    Ok(())
}

/// Returns the error of a literal format string and its values: a syntax error, a placeholder without a value or a
/// value without a placeholder, or a value of a type that its verb does not take. The expression is the one at fault,
/// if not the entire call.
pub fn check<'x>(
    text: &str,
    found_type: &[&'x Expr],
    type_of: &dyn Fn(&Expr) -> Type,
) -> Result<(), (Option<&'x Expr>, String)> {
    let mut culprit = None;
    let walked = walk(text, found_type.len(), &mut |piece| {
        let Piece::Place(index, verb, _) = piece else { return Ok(()) };
        match found_type.get(index).and_then(|arg| misfit(verb, arg, type_of)) {
            None => Ok(()),
            Some(bad) => {
                culprit = Some(bad);
                Err(during(&unfit(verb, &bare_name(&type_of(bad)))))
            }
        }
    });
    match walked {
        Err(error) => Err((culprit, error.to_string())),
        Ok(places) if places < found_type.len() => {
            let got = found_type.len();
            Err((None, format!("too many arguments supplied to string.format (expected {places}, got {got})")))
        }
        Ok(_) => Ok(()),
    }
}

/// Returns the expression that a verb does not take: the value, or one inside of it.
fn misfit<'x>(verb: char, arg: &'x Expr, type_of: &dyn Fn(&Expr) -> Type) -> Option<&'x Expr> {
    let fits = match (verb, type_of(arg).plain()) {
        (_, Type::Dyn) => true,
        ('d' | 'o', of) => matches!(of, Type::Int | Type::Uint),
        ('f' | 'e', of) => matches!(of, Type::Double | Type::String),
        ('b', of) => matches!(of, Type::Int | Type::Uint | Type::Bool),
        ('x' | 'X', of) => matches!(of, Type::Int | Type::Uint | Type::String | Type::Bytes),
        (_, of) => !matches!(of, Type::Any | Type::Error | Type::Struct(_) | Type::Opaque(..)),
    };
    if !fits {
        return Some(arg);
    }
    match &arg.kind {
        ExprKind::List(items) if verb == 's' => items.iter().find_map(|item| misfit(verb, &item.value, type_of)),
        ExprKind::Map(entries) if verb == 's' => {
            entries.iter().flat_map(|entry| [&entry.key, &entry.value]).find_map(|inner| misfit(verb, inner, type_of))
        }
        _ => None,
    }
}

/// Returns the format string and the values of a call, if both are literals.
pub fn literals<'x>(target: Option<&'x Expr>, args: &'x [Expr]) -> Option<(&'x str, Vec<&'x Expr>)> {
    let ExprKind::Literal(Literal::String(text)) = &target?.kind else { return None };
    let [Expr { kind: ExprKind::List(items), .. }] = args else { return None };
    Some((text, items.iter().map(|item| &item.value).collect()))
}
