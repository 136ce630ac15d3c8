//! The library of semantic versions.

use std::any::Any;
use std::cmp::Ordering;

use corten_meta::quote::quote;

use super::{no_overload, own, text};
use crate::declare::Line;
use crate::error::Error;
use crate::value::{Opaque, Value};

pub const TABLE: &[Line] = &[
    ("string_to_semver", "semver(string) -> Semver", |_, a| to_semver(a)),
    ("string_bool_to_semver", "semver(string, bool) -> Semver", |_, a| to_semver(a)),
    ("is_semver_string", "isSemver(string) -> bool", |_, a| Ok(Value::Bool(read(a).is_ok()))),
    ("is_semver_string_bool", "isSemver(string, bool) -> bool", |_, a| Ok(Value::Bool(read(a).is_ok()))),
    ("semver_is_greater_than", "Semver::isGreaterThan(Semver) -> bool", |_, a| Ok(Value::Bool(order(a)?.is_gt()))),
    ("semver_is_less_than", "Semver::isLessThan(Semver) -> bool", |_, a| Ok(Value::Bool(order(a)?.is_lt()))),
    ("semver_compare_to", "Semver::compareTo(Semver) -> int", |_, a| Ok(Value::Int(order(a)? as i64))),
    ("semver_major", "Semver::major() -> int", |_, a| Ok(Value::Int(own::<Semver>(a, 0)?.numbers[0] as i64))),
    ("semver_minor", "Semver::minor() -> int", |_, a| Ok(Value::Int(own::<Semver>(a, 0)?.numbers[1] as i64))),
    ("semver_patch", "Semver::patch() -> int", |_, a| Ok(Value::Int(own::<Semver>(a, 0)?.numbers[2] as i64))),
];

#[derive(Debug, PartialEq, Eq)]
struct Semver {
    numbers: [u64; 3],
    pre: Vec<Part>,
    build: String,
}

/// A part of a pre-release: numbers come before words.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64),
    Word(String),
}

impl Opaque for Semver {
    fn type_name(&self) -> &'static str {
        "kubernetes.Semver"
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Semver>().is_some_and(|other| self.order(other).is_eq())
    }
}

impl Semver {
    /// Compares two versions. Build metadata does not count; a version without pre-release comes after those with one.
    fn order(&self, other: &Semver) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.pre.cmp(&other.pre),
        })
    }

    fn parse(text: &str) -> Result<Semver, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [major, minor, rest] = parts.as_slice() else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let (rest, build) = rest.split_once('+').unwrap_or((rest, ""));
        let (patch, pre) = rest.split_once('-').unwrap_or((rest, ""));
        let numbers = [number(major, "Major")?, number(minor, "Minor")?, number(patch, "Patch")?];
        let has_pre = rest.contains('-');
        let pre = if has_pre { pre.split('.').map(part).collect::<Result<_, _>>()? } else { Vec::new() };
        if text.contains('+') && build.split('.').any(|part| !is_word(part)) {
            return Err(format!("Invalid character(s) found in build meta data {}", quote(build)));
        }
        Ok(Semver { numbers, pre, build: build.to_owned() })
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn number(text: &str, name: &str) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {} number {text}", name.to_lowercase(), text = quote(text)));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{name} number must not contain leading zeroes {}", quote(text)));
    }
    text.parse().map_err(|_| format!("strconv.ParseUint: parsing {}: value out of range", quote(text)))
}

fn part(text: &str) -> Result<Part, String> {
    if text.is_empty() {
        return Err("Prerelease is empty".to_owned());
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        if text.len() > 1 && text.starts_with('0') {
            return Err(format!("Numeric PreRelease version must not contain leading zeroes {}", quote(text)));
        }
        return text.parse().map(Part::Number).map_err(|error| error.to_string());
    }
    if is_word(text) {
        Ok(Part::Word(text.to_owned()))
    } else {
        Err(format!("Invalid character(s) found in prerelease {}", quote(text)))
    }
}

/// Normalizes a version: no `v`, three numbers, no leading zeroes.
fn normalized(text: &str) -> Result<String, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text
        .splitn(3, '.')
        .map(|part| {
            let trimmed = part.trim_start_matches('0');
            let needs_zero = part.len() > 1 && !trimmed.starts_with(|c: char| c.is_ascii_digit());
            match part.len() > 1 {
                true if needs_zero => format!("0{trimmed}"),
                true => trimmed.to_owned(),
                false => part.to_owned(),
            }
        })
        .collect();
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err("short version cannot contain PreRelease/Build meta data".to_owned());
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

fn read(args: &[Value<'_>]) -> Result<Semver, Error> {
    let text = text(args, 0)?;
    let normalize = match args.get(1) {
        None => false,
        Some(Value::Bool(normalize)) => *normalize,
        Some(_) => return Err(no_overload()),
    };
    let parsed = if normalize { normalized(text).and_then(|text| Semver::parse(&text)) } else { Semver::parse(text) };
    parsed.map_err(Error::failed)
}

fn to_semver<'a>(args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    read(args).map(Value::opaque)
}

fn order(args: &[Value<'_>]) -> Result<Ordering, Error> {
    Ok(own::<Semver>(args, 0)?.order(own::<Semver>(args, 1)?))
}
