//! The library of strings: the extension of cel-go in the version of Kubernetes. Indexes are counted in characters.

use super::{int, no_overload, text};
use crate::declare::Line;
use crate::error::Error;
use crate::meter::Meter;
use crate::value::{List, Value};

type Outcome<'a> = Result<Value<'a>, Error>;

pub const TABLE: &[Line] = &[
    ("string_char_at_int", "string::charAt(int) -> string", char_at),
    ("string_index_of_string", "string::indexOf(string) -> int", index_of),
    ("string_index_of_string_int", "string::indexOf(string, int) -> int", index_of),
    ("string_last_index_of_string", "string::lastIndexOf(string) -> int", last_index_of),
    ("string_last_index_of_string_int", "string::lastIndexOf(string, int) -> int", last_index_of),
    ("string_lower_ascii", "string::lowerAscii() -> string", |_, a| {
        Ok(Value::string(text(a, 0)?.to_ascii_lowercase()))
    }),
    ("string_upper_ascii", "string::upperAscii() -> string", |_, a| {
        Ok(Value::string(text(a, 0)?.to_ascii_uppercase()))
    }),
    ("string_replace_string_string", "string::replace(string, string) -> string", replace),
    ("string_replace_string_string_int", "string::replace(string, string, int) -> string", replace),
    ("string_split_string", "string::split(string) -> list(string)", split),
    ("string_split_string_int", "string::split(string, int) -> list(string)", split),
    ("string_substring_int", "string::substring(int) -> string", substring),
    ("string_substring_int_int", "string::substring(int, int) -> string", substring),
    ("string_trim", "string::trim() -> string", |_, a| Ok(Value::string(text(a, 0)?.trim()))),
    ("strings_quote", "strings.quote(string) -> string", quote),
    ("list_join", "list(string)::join() -> string", join),
    ("list_join_string", "list(string)::join(string) -> string", join),
];

fn out_of_range(index: i64) -> Error {
    Error::failed(format!("index out of range: {index}"))
}

/// Returns the byte offset of the character of this index; the end of the string counts.
fn byte_offset(text: &str, index: i64) -> Option<usize> {
    let index = usize::try_from(index).ok()?;
    text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(index)
}

fn char_at<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let text = text(args, 0)?;
    let index = int(args, 1)?;
    let at = byte_offset(text, index).ok_or_else(|| out_of_range(index))?;
    Ok(Value::string(text[at..].chars().next().map(String::from).unwrap_or_default()))
}

/// Returns the index of the character that begins at a byte.
fn number(text: &str, at: usize) -> i64 {
    text[..at].chars().count() as i64
}

fn index_of<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, part) = (text(args, 0)?, text(args, 1)?);
    let offset = if args.len() > 2 { int(args, 2)? } else { 0 };
    if part.is_empty() {
        return Ok(Value::Int(offset));
    }
    if offset < 0 {
        return Err(out_of_range(offset));
    }
    let Some(from) = byte_offset(text, offset) else { return Ok(Value::Int(-1)) };
    Ok(Value::Int(text[from..].find(&**part).map_or(-1, |at| number(text, from + at))))
}

fn last_index_of<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, part) = (text(args, 0)?, text(args, 1)?);
    if args.len() < 3 {
        let found = if part.is_empty() { Some(text.len()) } else { text.rfind(&**part) };
        return Ok(Value::Int(found.map_or(-1, |at| number(text, at))));
    }
    let offset = int(args, 2)?;
    if part.is_empty() {
        return Ok(Value::Int(offset));
    }
    if offset < 0 {
        return Err(out_of_range(offset));
    }
    let length = text.chars().count() as i64;
    let Some(last) = byte_offset(text, offset).filter(|_| offset < length) else { return Ok(Value::Int(-1)) };
    let mut end = (last + part.len()).min(text.len());
    while !text.is_char_boundary(end) {
        end += 1;
    }
    let found = text[..end].rfind(&**part).filter(|at| *at <= last);
    Ok(Value::Int(found.map_or(-1, |at| number(text, at))))
}

fn replace<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, from, to) = (text(args, 0)?, text(args, 1)?, text(args, 2)?);
    let limit = if args.len() > 3 { usize::try_from(int(args, 3)?).unwrap_or(usize::MAX) } else { usize::MAX };
    let count = if from.is_empty() { text.chars().count() + 1 } else { text.matches(&**from).count() }.min(limit);
    // The result can be far longer than its inputs.
    meter.work((text.len() as u64).saturating_add((count as u64).saturating_mul(to.len() as u64)) / 8)?;
    Ok(Value::string(text.replacen(&**from, to, limit)))
}

fn split<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, separator) = (text(args, 0)?, text(args, 1)?);
    let limit = if args.len() > 2 { int(args, 2)? } else { -1 };
    meter.work(text.len() as u64)?;
    let limit = match limit {
        0 => return Ok(Value::list(Vec::new())),
        limit => usize::try_from(limit).unwrap_or(usize::MAX),
    };
    let parts: Vec<Value<'a>> = if separator.is_empty() {
        characters(text, limit).into_iter().map(Value::string).collect()
    } else {
        text.splitn(limit, &**separator).map(Value::string).collect()
    };
    Ok(Value::list(parts))
}

/// Splits a string into characters; the last part takes the rest.
fn characters(text: &str, limit: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if parts.len() + 1 == limit {
            break;
        }
        let (first, after) = rest.split_at(c.len_utf8());
        parts.push(first);
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}

fn substring<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let text = text(args, 0)?;
    let start = int(args, 1)?;
    if args.len() < 3 {
        let from = byte_offset(text, start).ok_or_else(|| out_of_range(start))?;
        return Ok(Value::string(&text[from..]));
    }
    let end = int(args, 2)?;
    if start > end {
        return Err(Error::failed(format!("invalid substring range. start: {start}, end: {end}")));
    }
    let from = byte_offset(text, start).ok_or_else(|| out_of_range(start))?;
    let to = byte_offset(text, end).ok_or_else(|| out_of_range(end))?;
    Ok(Value::string(&text[from..to]))
}

fn quote<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let mut quoted = String::from("\"");
    for c in text(args, 0)?.chars() {
        match c {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    Ok(Value::string(quoted))
}

fn join<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let Some(Value::List(list)) = args.first() else { return Err(no_overload()) };
    let separator = if args.len() > 1 { text(args, 1)? } else { &crate::value::Text::Borrowed("") };
    join_list(meter, list, separator)
}

fn join_list<'a>(meter: &mut Meter, list: &List<'a>, separator: &str) -> Outcome<'a> {
    let mut joined = String::new();
    for (index, item) in list.iter().enumerate() {
        let item = item?;
        let Some(part) = item.as_str() else {
            return Err(Error::failed(format!("join: invalid input: {item:?}")));
        };
        meter.work(1 + (part.len() + separator.len()) as u64 / 8)?;
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(part);
    }
    Ok(Value::string(joined))
}
