//! The variables of a query: `$(namespace)`, `$(names)` and `$(selector)`.
//!
//! Invariant: values stand in quoted strings of PromQL, escaped, so that no name or selector changes the query.

use corten_meta::labels::{Operator, Requirement, Selector};

/// The number of names up to which a query lists them; a query for more asks for all, and the answer is filtered.
const MAX_NAMES: usize = 500;
/// The characters that mean something in a regular expression.
const SPECIAL: &str = r"\.+*?()|[]{}^$";

/// The values of a query's variables.
pub struct Variables<'a> {
    pub namespace: &'a str,
    pub names: &'a [String],
    pub selector: &'a Selector,
}

/// Returns the query with its variables replaced.
pub fn expand(query: &str, variables: &Variables<'_>) -> Result<String, String> {
    let mut expanded = String::with_capacity(query.len());
    let mut rest = query;
    while let Some((before, after)) = rest.split_once("$(") {
        expanded.push_str(before);
        let (name, after) = after.split_once(')').ok_or_else(|| format!("the query has no ) after {before:?}$("))?;
        match name {
            "namespace" => expanded.push_str(&quoted(variables.namespace)),
            "names" => expanded.push_str(&alternatives(variables.names)),
            "selector" => expanded.push_str(&matchers(variables.selector)?),
            other => return Err(format!("the query has an unknown variable $({other})")),
        }
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// Escapes a value for a string in double quotes.
fn quoted(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' | '"' => escaped.extend(['\\', character]),
            '\n' => escaped.push_str("\\n"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Returns a regular expression, for a string in double quotes, that matches these values.
fn alternatives(values: &[String]) -> String {
    if values.len() > MAX_NAMES {
        return ".+".to_owned();
    }
    let literal = |value: &String| {
        let mut literal = String::with_capacity(value.len());
        for character in value.chars() {
            if SPECIAL.contains(character) {
                literal.push('\\');
            }
            literal.push(character);
        }
        quoted(&literal)
    };
    values.iter().map(literal).collect::<Vec<_>>().join("|")
}

/// Returns the label matchers of a selector.
fn matchers(selector: &Selector) -> Result<String, String> {
    let all: Vec<String> = selector.requirements().iter().map(matcher).collect::<Result<_, _>>()?;
    Ok(all.join(","))
}

fn matcher(requirement: &Requirement) -> Result<String, String> {
    let key = requirement.key();
    let is_first = |character: char| character.is_ascii_alphabetic() || character == '_';
    let is_name = key.starts_with(is_first) && key.chars().all(|one| one.is_ascii_alphanumeric() || one == '_');
    if !is_name {
        return Err(format!("{key} is no name of a label of Prometheus"));
    }
    let values = requirement.values();
    let first = values.first().map(|value| quoted(value)).unwrap_or_default();
    Ok(match requirement.operator() {
        Operator::Equals | Operator::DoubleEquals => format!("{key}=\"{first}\""),
        Operator::NotEquals => format!("{key}!=\"{first}\""),
        Operator::In => format!("{key}=~\"{}\"", alternatives(values)),
        Operator::NotIn => format!("{key}!~\"{}\"", alternatives(values)),
        Operator::Exists => format!("{key}!=\"\""),
        Operator::DoesNotExist => format!("{key}=\"\""),
        Operator::GreaterThan | Operator::LessThan => {
            return Err(format!("a metric's selector compares {key}, which Prometheus cannot"));
        }
    })
}
