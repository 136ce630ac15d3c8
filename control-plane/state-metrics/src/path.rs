//! Paths into objects.

use serde_json::Value;

use crate::malformed::Malformed;

/// A path from the object, or from an item of `each`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub base: Base,
    steps: Vec<Step>,
}

/// The value that a path begins at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    Object,
    Item,
    /// The item around the item.
    Outer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    /// Items whose field has a value.
    Equal(String, String),
    /// Items whose field is as that of the item of `each`.
    SameAsItem(String),
    /// The entries of a map whose keys have a prefix.
    Prefix(String),
}

/// The values that paths begin at.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    pub object: &'a Value,
    pub item: Option<&'a Value>,
    pub outer: Option<&'a Value>,
}

impl Path {
    pub fn parse(text: &str) -> Result<Path, Malformed> {
        let (base, rest) = if let Some(rest) = text.strip_prefix("^.") {
            (Base::Outer, rest)
        } else if let Some(rest) = text.strip_prefix('.') {
            (Base::Item, rest)
        } else {
            (Base::Object, text)
        };
        let mut steps = Vec::new();
        let mut rest = rest;
        while !rest.is_empty() {
            rest = Step::parse(rest, &mut steps).ok_or_else(|| Malformed(format!("the path {text}")))?;
        }
        Ok(Path { base, steps })
    }

    /// Returns the values of the path.
    pub fn values<'a>(&self, scope: Scope<'a>) -> Vec<&'a Value> {
        let start = match self.base {
            Base::Object => Some(scope.object),
            Base::Item => scope.item,
            Base::Outer => scope.outer,
        };
        let mut values: Vec<&Value> = start.into_iter().collect();
        for step in &self.steps {
            values = values.into_iter().flat_map(|value| step.follow(value, scope)).collect();
        }
        values
    }

    /// Returns the first value that is set.
    pub fn first<'a>(&self, scope: Scope<'a>) -> Option<&'a Value> {
        self.values(scope).into_iter().find(|value| !value.is_null())
    }

    /// Returns the items of a list or map at the path. Entries of a map are made into items.
    pub fn items(&self, scope: Scope<'_>) -> Vec<Value> {
        let prefix = match self.steps.last() {
            Some(Step::Prefix(prefix)) => prefix.as_str(),
            _ => "",
        };
        let mut items = Vec::new();
        for value in self.values(scope) {
            match value {
                Value::Array(list) => items.extend(list.iter().cloned()),
                Value::Object(map) if self.is_map() => {
                    let entries = map.iter().filter_map(|(key, value)| Some((key.strip_prefix(prefix)?, value)));
                    items.extend(entries.map(|(key, value)| serde_json::json!({"key": key, "value": value})));
                }
                Value::Null => {}
                item => items.push(item.clone()),
            }
        }
        items
    }

    /// Reports whether the path ends at a map of strings, not at an item that was selected.
    fn is_map(&self) -> bool {
        !matches!(self.steps.last(), Some(Step::Equal(..) | Step::SameAsItem(_)))
    }
}

impl Step {
    /// Parses the first step of a text, and returns the rest.
    fn parse<'a>(text: &'a str, steps: &mut Vec<Step>) -> Option<&'a str> {
        let (step, rest) = if let Some(selector) = text.strip_prefix('[') {
            let (selector, rest) = selector.split_once(']')?;
            let (field, value) = selector.split_once('=')?;
            let step = match value {
                "^" => Step::SameAsItem(field.to_owned()),
                value => Step::Equal(field.to_owned(), value.to_owned()),
            };
            (step, rest)
        } else if let Some(prefix) = text.strip_prefix('{') {
            let (prefix, rest) = prefix.split_once('}')?;
            (Step::Prefix(prefix.to_owned()), rest)
        } else {
            let end = text.find(['.', '[', '{']).unwrap_or(text.len());
            let (field, rest) = text.split_at(end);
            (Step::Field(field.to_owned()), rest)
        };
        steps.push(step);
        let follows = rest.strip_prefix('.').unwrap_or(rest);
        (follows.len() != rest.len() || rest.is_empty() || rest.starts_with(['[', '{'])).then_some(follows)
    }

    fn follow<'a>(&self, value: &'a Value, scope: Scope<'_>) -> Vec<&'a Value> {
        if let Value::Array(list) = value {
            return list.iter().flat_map(|item| self.follow(item, scope)).collect();
        }
        let selected = match self {
            Step::Field(field) => return value.get(field).into_iter().collect(),
            Step::Equal(field, wanted) => string(value.get(field)) == *wanted,
            Step::SameAsItem(field) => value.get(field) == scope.item.and_then(|item| item.get(field)),
            Step::Prefix(_) => true,
        };
        if selected { vec![value] } else { Vec::new() }
    }
}

/// Returns a scalar as a string; an absent one is empty.
pub fn string(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(set)) => set.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}
