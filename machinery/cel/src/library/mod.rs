//! The functions of expressions, one file per library. Each has a table of its overloads; a new function is a new line
//! there. Costs other than 1 are in `estimate`.

pub mod authorizer;
pub mod format_text;
pub mod formats;
pub(crate) mod functions;
mod ip;
mod json_patch;
mod lists;
mod optional;
mod quantity;
pub mod regex;
mod semver;
mod sets;
mod standard;
mod strings;
pub mod time;
mod url;

use crate::declare::Line;
use crate::error::Error;
use crate::value::{Text, Value};

/// Returns the lines of all libraries. The overloads of one function are tried in this order.
pub fn tables() -> impl Iterator<Item = Line> {
    let tables: [&'static [Line]; 15] = [
        standard::TABLE,
        time::TABLE,
        strings::TABLE,
        lists::TABLE,
        sets::TABLE,
        optional::TABLE,
        regex::TABLE,
        url::TABLE,
        ip::TABLE,
        quantity::TABLE,
        semver::TABLE,
        formats::TABLE,
        authorizer::TABLE,
        json_patch::TABLE,
        format_text::TABLE,
    ];
    tables.into_iter().flatten().copied()
}

/// Reports whether a literal argument is valid: those of conversions and patterns are checked before evaluation.
pub fn is_good_literal(function: &str, text: &str) -> bool {
    match function {
        "duration" => time::parse_duration(text).is_some(),
        "timestamp" => corten_meta::time::parse(text).is_ok(),
        "matches" => regex::compile(text).is_ok(),
        _ => true,
    }
}

/// Makes the error for arguments of other types than the overload's; happens only for items of lists.
pub(crate) fn no_overload() -> Error {
    Error::NoSuchOverload(String::new())
}

pub(crate) fn text<'v, 'a>(args: &'v [Value<'a>], index: usize) -> Result<&'v Text<'a>, Error> {
    match args.get(index) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(no_overload()),
    }
}

pub(crate) fn int(args: &[Value<'_>], index: usize) -> Result<i64, Error> {
    match args.get(index) {
        Some(Value::Int(number)) => Ok(*number),
        _ => Err(no_overload()),
    }
}

/// Returns an argument of a library's own type.
pub(crate) fn own<'v, T: 'static>(args: &'v [Value<'_>], index: usize) -> Result<&'v T, Error> {
    match args.get(index) {
        Some(Value::Opaque(opaque)) => opaque.as_any().downcast_ref().ok_or_else(no_overload),
        _ => Err(no_overload()),
    }
}
