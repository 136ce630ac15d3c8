//! Field selectors: `metadata.name=web,spec.nodeName!=n1`. Each kind decides which fields it supports.

use crate::Error;
use std::fmt;

/// One term of a field selector.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldRequirement {
    pub field: String,
    /// Whether the operator is `=`; otherwise it is `!=`.
    pub equals: bool,
    pub value: String,
}

/// A conjunction of terms; an empty one matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

impl FieldSelector {
    pub fn everything() -> FieldSelector {
        FieldSelector::default()
    }

    /// Makes a selector of the objects whose `field` is `value`.
    pub fn equals(field: impl Into<String>, value: impl Into<String>) -> FieldSelector {
        FieldSelector {
            requirements: vec![FieldRequirement { field: field.into(), equals: true, value: value.into() }],
        }
    }

    pub fn parse(text: &str) -> Result<FieldSelector, Error> {
        let mut terms = split_terms(text);
        terms.sort_unstable();
        let mut requirements = Vec::new();
        for term in terms.into_iter().filter(|term| !term.is_empty()) {
            let Some((field, equals, value)) = split_term(term) else {
                return Err(Error::Selector(format!("invalid selector: '{text}'; can't understand '{term}'")));
            };
            // An operator without a field and a value selects everything.
            if !(field.is_empty() && value.is_empty()) {
                requirements.push(FieldRequirement { field: field.to_owned(), equals, value: unescape(value)? });
            }
        }
        Ok(FieldSelector { requirements })
    }

    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Returns the value that a field must have, if the selector requires exactly one.
    pub fn requires_exact_match(&self, field: &str) -> Option<&str> {
        self.requirements.iter().find(|r| r.equals && r.field == field).map(|r| r.value.as_str())
    }

    /// Reports whether the selector matches an object. `field` returns the value of a field; an absent field is empty.
    pub fn matches(&self, field: impl Fn(&str) -> Option<String>) -> bool {
        self.requirements.iter().all(|r| (field(&r.field).unwrap_or_default() == r.value) == r.equals)
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let sign = if requirement.equals { "=" } else { "!=" };
            write!(f, "{comma}{}{sign}{}", requirement.field, escape(&requirement.value))?;
        }
        Ok(())
    }
}

impl std::str::FromStr for FieldSelector {
    type Err = Error;
    fn from_str(text: &str) -> Result<FieldSelector, Error> {
        FieldSelector::parse(text)
    }
}

/// Escapes a value for a selector.
pub fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}

fn unescape(value: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                other => {
                    let tail = other.map(String::from).unwrap_or_default();
                    return Err(Error::Selector(format!("invalid field selector: invalid escape sequence: \\{tail}")));
                }
            },
            // Upstream prints the code point, not the character.
            ',' | '=' => {
                let text = format!("invalid field selector: unescaped character in value: {}", c as u32);
                return Err(Error::Selector(text));
            }
            other => out.push(other),
        }
    }
    Ok(out)
}

/// Splits at commas that are not escaped; escapes stay as they are.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (index, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// Splits at the first operator.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.char_indices().find(|(at, c)| *c == '=' || term[*at..].starts_with("!="))?.0;
    let rest = &term[at..];
    if let Some(value) = rest.strip_prefix("!=") {
        return Some((&term[..at], false, value));
    }
    let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?;
    Some((&term[..at], true, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_matches_prints() {
        let selector = FieldSelector::parse("spec.nodeName!=n1,metadata.name==web").unwrap();
        assert_eq!(selector.to_string(), "metadata.name=web,spec.nodeName!=n1");
        let object = |name: &'static str, node: Option<&'static str>| {
            move |field: &str| match field {
                "metadata.name" => Some(name.to_owned()),
                "spec.nodeName" => node.map(str::to_owned),
                _ => None,
            }
        };
        assert!(selector.matches(object("web", None)));
        assert!(!selector.matches(object("web", Some("n1"))));
        assert!(!selector.matches(object("db", None)));
        assert_eq!(selector.requires_exact_match("metadata.name"), Some("web"));
        assert_eq!(selector.requires_exact_match("spec.nodeName"), None);
        assert!(FieldSelector::parse("").unwrap().is_empty());
        assert!(FieldSelector::parse("=,!=,==").unwrap().is_empty());
        assert_eq!(FieldSelector::parse("a=").unwrap(), FieldSelector::equals("a", ""));
    }

    #[test]
    fn escapes_round_trip() {
        for value in ["plain", "a,b=c\\d", "\\", "="] {
            let selector = FieldSelector::equals("f", value);
            assert_eq!(FieldSelector::parse(&selector.to_string()).unwrap(), selector, "{value}");
        }
    }

    #[test]
    fn refuses() {
        for (text, message) in [
            ("abc", "invalid selector: 'abc'; can't understand 'abc'"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
            (r"a=b\x", r"invalid field selector: invalid escape sequence: \x"),
            (r"a=b\", r"invalid field selector: invalid escape sequence: \"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap_err().to_string(), message);
        }
    }
}
