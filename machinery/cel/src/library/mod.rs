//! The functions of expressions, one file a library. Each has a table of its overloads; adding a function is adding
//! a line there. Costs that are not 1 are in `estimate`.

pub mod authorizer;
pub mod format_text;
pub mod formats;
mod ip;
mod json_patch;
mod lists;
mod optional;
mod quantity;
pub mod regex;
mod regex_error;
mod semver;
mod sets;
mod standard;
mod strings;
pub mod time;
mod url;

use crate::declare::Line;
use crate::error::Error;
use crate::value::{Text, Value};

/// Every line of every library. Libraries of one function are tried in this order.
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

/// Whether a literal argument can be good: those of conversions and patterns are looked at before there is a value.
pub fn is_good_literal(function: &str, text: &str) -> bool {
    match function {
        "duration" => time::parse_duration(text).is_some(),
        "timestamp" => corten_meta::time::parse(text).is_ok(),
        "matches" => regex::compile(text).is_ok(),
        _ => true,
    }
}

/// The arguments of a call have other types than its overload says; happens only where items of lists do.
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

/// A value of a library's own type.
pub(crate) fn own<'v, T: 'static>(args: &'v [Value<'_>], index: usize) -> Result<&'v T, Error> {
    match args.get(index) {
        Some(Value::Opaque(opaque)) => opaque.as_any().downcast_ref().ok_or_else(no_overload),
        _ => Err(no_overload()),
    }
}
