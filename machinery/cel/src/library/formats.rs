//! The library of named formats: Kubernetes' rules for names, and some of OpenAPI's.

use std::any::Any;

use corten_meta::names;
use corten_meta::quote::quote;

use super::url::Url;
use super::{own, text};
use crate::declare::Line;
use crate::error::Error;
use crate::value::{Opaque, Value};

pub const TABLE: &[Line] = &[
    ("format-validate", "Format::validate(string) -> optional(list(string))", |_, a| {
        let problems = own::<Format>(a, 0)?.problems(text(a, 1)?);
        if problems.is_empty() {
            return Ok(Value::none());
        }
        Ok(Value::some(Value::list(problems.into_iter().map(Value::string).collect())))
    }),
    ("format-named", "format.named(string) -> optional(Format)", |_, a| {
        let name = text(a, 0)?;
        Ok(find(name).map_or_else(Value::none, |format| Value::some(Value::opaque(format))))
    }),
    ("format.dns1123Label", "format.dns1123Label() -> Format", |_, _| named("dns1123Label")),
    ("format.dns1123Subdomain", "format.dns1123Subdomain() -> Format", |_, _| named("dns1123Subdomain")),
    ("format.dns1035Label", "format.dns1035Label() -> Format", |_, _| named("dns1035Label")),
    ("format.qualifiedName", "format.qualifiedName() -> Format", |_, _| named("qualifiedName")),
    ("format.dns1123LabelPrefix", "format.dns1123LabelPrefix() -> Format", |_, _| named("dns1123LabelPrefix")),
    ("format.dns1123SubdomainPrefix", "format.dns1123SubdomainPrefix() -> Format", |_, _| {
        named("dns1123SubdomainPrefix")
    }),
    ("format.dns1035LabelPrefix", "format.dns1035LabelPrefix() -> Format", |_, _| named("dns1035LabelPrefix")),
    ("format.labelValue", "format.labelValue() -> Format", |_, _| named("labelValue")),
    ("format.uri", "format.uri() -> Format", |_, _| named("uri")),
    ("format.uuid", "format.uuid() -> Format", |_, _| named("uuid")),
    ("format.byte", "format.byte() -> Format", |_, _| named("byte")),
    ("format.date", "format.date() -> Format", |_, _| named("date")),
    ("format.datetime", "format.datetime() -> Format", |_, _| named("datetime")),
];

/// The formats, and the length that the pattern of each counts as.
const FORMATS: &[(&str, u64)] = &[
    ("dns1123Label", 30),
    ("dns1123Subdomain", 60),
    ("dns1035Label", 30),
    ("qualifiedName", 60),
    ("dns1123LabelPrefix", 30),
    ("dns1123SubdomainPrefix", 60),
    ("dns1035LabelPrefix", 30),
    ("labelValue", 40),
    ("uri", 1103),
    ("uuid", 70),
    ("byte", 84),
    ("date", 71),
    ("datetime", 71),
];

#[derive(Debug, PartialEq, Eq)]
struct Format(&'static str);

impl Opaque for Format {
    fn type_name(&self) -> &'static str {
        "kubernetes.NamedFormat"
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Format>() == Some(self)
    }
}

fn find(name: &str) -> Option<Format> {
    FORMATS.iter().find(|(known, _)| *known == name).map(|(known, _)| Format(known))
}

fn named<'a>(name: &'static str) -> Result<Value<'a>, Error> {
    Ok(Value::opaque(Format(name)))
}

/// Returns the length that the pattern of a format counts as.
pub fn regex_size(format: Option<&Value<'_>>) -> u64 {
    let Some(Value::Opaque(opaque)) = format else { return 1 };
    let name = opaque.as_any().downcast_ref::<Format>().map_or("", |format| format.0);
    FORMATS.iter().find(|(known, _)| *known == name).map_or(1, |(_, size)| *size)
}

impl Format {
    fn problems(&self, text: &str) -> Vec<String> {
        // A prefix begins a generated name, so it may end with a dash.
        let prefix = || match text.strip_suffix('-') {
            Some(_) => format!("{}a", &text[..text.len() - 1]),
            None => text.to_owned(),
        };
        let unless = |good: bool, problem: &str| if good { Vec::new() } else { vec![problem.to_owned()] };
        match self.0 {
            "dns1123Label" => names::dns1123_label(text),
            "dns1123Subdomain" => names::dns1123_subdomain(text),
            "dns1035Label" => names::dns1035_label(text),
            "qualifiedName" => names::qualified_name(text),
            "dns1123LabelPrefix" => names::dns1123_label(&prefix()),
            "dns1123SubdomainPrefix" => names::dns1123_subdomain(&prefix()),
            "dns1035LabelPrefix" => names::dns1035_label(&prefix()),
            "labelValue" => names::label_value(text),
            "uri" => match Url::parse(text) {
                Ok(_) => Vec::new(),
                Err(why) => vec![format!("parse {}: {why}", quote(text))],
            },
            "uuid" => unless(is_uuid(text), "does not match the UUID format"),
            "byte" => unless(crate::value::base64(text).is_some(), "invalid base64"),
            "date" => unless(text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(), "invalid date"),
            "datetime" => unless(corten_meta::time::parse(text).is_ok(), "invalid datetime"),
            _ => Vec::new(),
        }
    }
}

/// Reports whether a string has hexadecimal digits in groups of 8, 4, 4, 4 and 12, with or without dashes between them.
pub fn is_uuid(text: &str) -> bool {
    let mut rest = text.as_bytes();
    for (index, digits) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 {
            rest = rest.strip_prefix(b"-").unwrap_or(rest);
        }
        match rest.split_at_checked(digits) {
            Some((group, after)) if group.iter().all(u8::is_ascii_hexdigit) => rest = after,
            _ => return false,
        }
    }
    rest.is_empty()
}
