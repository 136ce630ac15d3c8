//! The library of regular expressions, in Go's dialect: classes such as `\d` are ASCII. Matching takes linear time.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use regex::{Regex, RegexBuilder};

use super::{int, text};
use crate::declare::Line;
use crate::error::Error;
use crate::meter::Meter;
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, Error>;

pub const TABLE: &[Line] = &[
    ("string_find_string", "string::find(string) -> string", |_, a| {
        let pattern = compiled(text(a, 1)?)?;
        let text = text(a, 0)?;
        Ok(Value::string(pattern.find(text).map(|found| found.as_str()).unwrap_or_default()))
    }),
    ("string_find_all_string", "string::findAll(string) -> list(string)", find_all),
    ("string_find_all_string_int", "string::findAll(string, int) -> list(string)", find_all),
];

fn find_all<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let pattern = compiled(text(args, 1)?)?;
    let text = text(args, 0)?;
    let limit = if args.len() > 2 { int(args, 2)? } else { -1 };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    meter.work(text.len() as u64)?;
    Ok(Value::list(pattern.find_iter(text).take(limit).map(|found| Value::string(found.as_str())).collect()))
}

fn compiled(pattern: &str) -> Result<Regex, Error> {
    compile(pattern).map_err(|error| Error::failed(format!("Illegal regex: {error}")))
}

/// Compiles a pattern of Go's dialect. Compiled patterns are kept: expressions have few, and use them often.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    const MAX_KEPT: usize = 1000;
    /// The limit of a compiled pattern's size.
    const MAX_BYTES: usize = 2 << 20;
    static KEPT: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);
    if let Some(found) = KEPT.lock().unwrap_or_else(PoisonError::into_inner).get(pattern) {
        return Ok(found.clone());
    }
    let made = RegexBuilder::new(&translate(pattern)).size_limit(MAX_BYTES).dfa_size_limit(MAX_BYTES).build();
    let made = made.map_err(|error| explain(&error.to_string(), pattern))?;
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() >= MAX_KEPT {
        kept.clear();
    }
    kept.insert(pattern.to_owned(), made.clone());
    Ok(made)
}

/// Returns the error of a pattern: the last line of the crate's error, which shows the translated pattern before it.
fn explain(error: &str, pattern: &str) -> String {
    let line = error.lines().last().unwrap_or_default();
    format!("error parsing regexp: {}: `{pattern}`", line.trim_start_matches("error: "))
}

/// Translates a pattern from Go's dialect to that of the `regex` crate.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut characters = pattern.chars().peekable();
    let mut in_class = false;
    let mut class_start = false;
    while let Some(c) = characters.next() {
        let at_start = std::mem::take(&mut class_start);
        match c {
            '\\' => match characters.next() {
                Some(escaped) => escape(&mut out, escaped, in_class),
                None => out.push('\\'),
            },
            '[' if !in_class => {
                in_class = true;
                class_start = true;
                out.push('[');
                if characters.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
            }
            '[' if characters.peek() == Some(&':') => {
                // A named class such as `[:alpha:]` is copied as it is.
                out.push('[');
                for inner in characters.by_ref() {
                    out.push(inner);
                    if inner == ']' {
                        break;
                    }
                }
            }
            ']' if in_class && at_start => out.push_str("\\]"),
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            // These signs are operations on classes in the crate's dialect.
            '[' | '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

fn escape(out: &mut String, escaped: char, in_class: bool) {
    let class = match escaped {
        'd' | 'D' => "0-9",
        'w' | 'W' => "0-9A-Za-z_",
        's' | 'S' => "\\t\\n\\f\\r ",
        'b' if !in_class => return out.push_str("(?-u:\\b)"),
        other => {
            out.push('\\');
            return out.push(other);
        }
    };
    match (escaped.is_ascii_uppercase(), in_class) {
        (true, _) => out.push_str(&format!("[^{class}]")),
        (false, true) => out.push_str(class),
        (false, false) => out.push_str(&format!("[{class}]")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dialect_is_that_of_go() {
        for (pattern, text, matches) in [
            (r"^\d+$", "42", true),
            (r"^\d+$", "٤٢", false),
            (r"^[\w-]+$", "a_b-9", true),
            (r"^[^\s]+$", "a b", false),
            (r"[[]", "[", true),
            (r"[]a]", "]", true),
            (r"^[[:alpha:]]+$", "abc", true),
            (r"\bfoo\b", "a foo b", true),
            (r"^[a&b]+$", "a&b", true),
            (r"^\D+$", "ab1", false),
        ] {
            assert_eq!(compile(pattern).unwrap().is_match(text), matches, "{pattern} on {text}");
        }
        assert!(compile("(").is_err());
        assert!(compile(r"(\w{1000}){1000}").is_err());
    }
}
