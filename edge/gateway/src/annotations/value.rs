//! Values of annotations by their type. Every parser has a limit, and none keeps a character that could end a line, a
//! header or a string.

use corten_routing::Network;

use super::MAX_VALUE;

/// The type of an annotation's value, with its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Number {
        min: u64,
        max: u64,
    },
    /// A size such as `8m`; bytes without a unit.
    Size,
    /// Addresses and networks, separated by commas.
    Networks,
    /// Host names, separated by commas.
    Hosts,
    Host,
    /// A path that begins with a slash.
    Path,
    /// A path with groups such as `$1`.
    Target,
    /// A URL of HTTP, which may have variables.
    Url,
    /// Names of headers, separated by commas.
    Headers,
    Header,
    /// Methods of HTTP, separated by commas.
    Methods,
    /// Origins, separated by commas.
    Origins,
    /// The name of a cookie.
    Cookie,
    /// One of some words.
    Choice(&'static [&'static str]),
    /// Some of some words, separated by spaces.
    Words(&'static [&'static str]),
    /// Statuses of errors, separated by commas.
    Statuses,
    /// A regular expression.
    Regex,
    /// Text that a header or quoted string can hold.
    Text,
    /// The name of an object, or its namespace and name.
    Object,
    /// A variable of nginx.
    Variable,
    /// A string and the one that replaces it, with a space between; or `off`.
    Pair,
    /// Anything: the value is not read.
    Any,
}

impl Kind {
    /// Returns the description of the type for the manual.
    pub fn describe(self) -> String {
        match self {
            Kind::Bool => "`true` or `false`".to_owned(),
            Kind::Number { min, max } => format!("{min} to {max}"),
            Kind::Size => "size (`8m`)".to_owned(),
            Kind::Networks => "networks".to_owned(),
            Kind::Hosts => "host names".to_owned(),
            Kind::Host => "host name".to_owned(),
            Kind::Path => "path".to_owned(),
            Kind::Target => "path with `$1`".to_owned(),
            Kind::Url => "URL".to_owned(),
            Kind::Headers => "header names".to_owned(),
            Kind::Header => "header name".to_owned(),
            Kind::Methods => "methods".to_owned(),
            Kind::Origins => "origins".to_owned(),
            Kind::Cookie => "cookie name".to_owned(),
            Kind::Choice(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
            Kind::Words(_) => "words".to_owned(),
            Kind::Statuses => "statuses (`404,503`)".to_owned(),
            Kind::Regex => "regular expression".to_owned(),
            Kind::Text => "text".to_owned(),
            Kind::Object => "name, or namespace/name".to_owned(),
            Kind::Variable => "variable".to_owned(),
            Kind::Pair => "two strings".to_owned(),
            Kind::Any => "any".to_owned(),
        }
    }
}

/// A parsed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<String>),
    Statuses(Vec<u16>),
}

/// The most entries of a list.
const MAX_ENTRIES: usize = 256;

/// Parses a value by its type.
pub fn parse(kind: Kind, text: &str) -> Result<Value, String> {
    let text = text.trim();
    if text.len() > MAX_VALUE {
        return Err(format!("the value is longer than {MAX_VALUE} bytes"));
    }
    match kind {
        Kind::Bool => match text {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            _ => Err("the value is neither true nor false".to_owned()),
        },
        Kind::Number { min, max } => number(text, min, max).map(Value::Number),
        Kind::Size => size(text).map(Value::Number),
        Kind::Statuses => statuses(text).map(Value::Statuses),
        Kind::Networks => list(text, ',', "network", |one| one.parse::<Network>().is_ok()),
        Kind::Hosts => list(text, ',', "host name", is_host),
        Kind::Headers => list(text, ',', "header name", is_token),
        Kind::Methods => {
            list(text, ',', "method", |one| one.len() <= 16 && one.bytes().all(|b| b.is_ascii_uppercase()))
        }
        Kind::Origins => list(text, ',', "origin", is_origin),
        Kind::Words(words) => list(text, ' ', "known word", |one| words.contains(&one)),
        Kind::Choice(words) => one(text, &words.join(", "), |text| words.contains(&text)),
        Kind::Host => one(text, "a host name", is_host),
        Kind::Header => one(text, "the name of a header", is_token),
        Kind::Cookie => one(text, "the name of a cookie", |text| is_token(text) && text.len() <= 64),
        Kind::Path => one(text, "a path", |text| is_path(text) && !text.contains('$')),
        Kind::Target => one(text, "a path", is_target),
        Kind::Url => one(text, "a URL", |text| is_printable(text) && !text.contains(['"', '<', '>', '\\', '`'])),
        Kind::Regex => one(text, "a regular expression that is supported", is_regex),
        Kind::Text => one(text, "plain text", |text| {
            text.len() <= 256 && !text.chars().any(|character| character.is_control() || "\"\\".contains(character))
        }),
        Kind::Object => one(text, "the name of an object", is_object),
        Kind::Variable => one(text, "a variable", |text| {
            text.starts_with('$') && text.bytes().skip(1).all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        }),
        Kind::Pair => one(text, "two strings", |text| text == "off" || pair(text).is_some()),
        Kind::Any => Ok(Value::Text(String::new())),
    }
}

fn one(text: &str, expected: &str, is_valid: impl Fn(&str) -> bool) -> Result<Value, String> {
    match is_valid(text) {
        true => Ok(Value::Text(text.to_owned())),
        false => Err(format!("the value is not {expected}")),
    }
}

fn list(text: &str, separator: char, what: &str, is_valid: impl Fn(&str) -> bool) -> Result<Value, String> {
    let entries: Vec<String> =
        text.split(separator).map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect();
    if entries.is_empty() || entries.len() > MAX_ENTRIES {
        return Err(format!("the value has no entry, or more than {MAX_ENTRIES}"));
    }
    match entries.iter().position(|entry| !is_valid(entry)) {
        None => Ok(Value::List(entries)),
        Some(number) => Err(format!("entry {} is no {what}", number + 1)),
    }
}

fn number(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let number = text.parse::<u64>().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("the value is no number from {min} to {max}"))
}

/// Parses a size as nginx writes it.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let unit = text.get(digits.len()..).unwrap_or_default().to_ascii_lowercase();
    let factor = match unit.as_str() {
        "" | "b" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return Err("the value is no size".to_owned()),
    };
    let size = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    size.ok_or_else(|| "the value is no size".to_owned())
}

fn statuses(text: &str) -> Result<Vec<u16>, String> {
    let parse = |entry: &str| entry.trim().parse::<u16>().ok().filter(|status| (400..600).contains(status));
    let statuses: Option<Vec<u16>> = text.split(',').map(parse).collect();
    let statuses = statuses.filter(|statuses| statuses.len() <= 64);
    statuses.ok_or_else(|| "the value is no list of statuses from 400 to 599".to_owned())
}

fn is_printable(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns the two strings of a value. Regular expressions are none of them.
pub fn pair(text: &str) -> Option<(&str, &str)> {
    let is_plain = |part: &str| is_printable(part) && !part.contains(['"', ';', '\\', '~', '$']);
    let (from, to) = text.split_once(' ')?;
    let to = to.trim_start();
    (is_plain(from) && is_plain(to) && text.len() <= 512).then_some((from, to))
}

/// Reports whether a string is a token of HTTP.
pub fn is_token(text: &str) -> bool {
    let is_character = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.len() <= 256 && text.bytes().all(is_character)
}

pub fn is_host(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_label = |label: &str| {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && name.split('.').all(is_label)
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.len() <= 1024 && is_printable(text) && !text.contains(['\\', '{', '}', '"'])
}

/// Reports whether a string is a path in which a dollar is followed by a digit.
fn is_target(text: &str) -> bool {
    let mut rest = text.split('$').skip(1);
    is_path(text) && rest.all(|part| part.starts_with(|first: char| first.is_ascii_digit()))
}

fn is_origin(text: &str) -> bool {
    if text == "*" {
        return true;
    }
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let (host, port) = rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port)));
    let host = host.strip_prefix("*.").unwrap_or(host);
    matches!(scheme, "http" | "https")
        && is_host(&host.to_ascii_lowercase())
        && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn is_regex(text: &str) -> bool {
    crate::path_regex::compile(text).is_some()
}

/// Reports whether a string names an object, with or without its namespace.
fn is_object(text: &str) -> bool {
    let (namespace, name) = text.split_once('/').map_or((None, text), |(namespace, name)| (Some(namespace), name));
    let is_name = |name: &str| is_host(name) && !name.starts_with("*.");
    is_name(name) && namespace.is_none_or(is_name)
}
