//! The differences between two answers. Values that each server chooses on its own are masked.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::answer::Answer;

/// Fields whose values a server chooses.
const CHOSEN: &[&str] = &[
    "uid",
    "resourceVersion",
    "continue",
    "creationTimestamp",
    "deletionTimestamp",
    "clusterIP",
    "clusterIPs",
    "nodePort",
    "healthCheckNodePort",
    "time",
    "remainingItemCount",
];

/// The headers that are compared.
const HEADERS: &[&str] = &["content-type", "warning", "cache-control", "retry-after"];

/// Uids, times, versions, the server's own address and names of volumes that it makes, within texts.
static IN_TEXTS: LazyLock<[(Regex, &str); 5]> = LazyLock::new(|| {
    let regex = |pattern: &str| Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
    [
        (regex(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uid>"),
        (regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"), "<time>"),
        (regex(r#"(resourceVersion: "|resource version: |current: )\d+"#), "$1<version>"),
        (regex(r"\d+\.\d+\.\d+\.\d+:\d+"), "<address>"),
        (regex(r"kube-api-access-[a-z0-9]{5}"), "kube-api-access-<generated>"),
    ]
});

/// The names that one server made up.
#[derive(Default)]
pub struct Mask {
    generated: Vec<String>,
}

impl Mask {
    /// Learns the names that an answer shows to be generated.
    pub fn learn(&mut self, answer: &Value) {
        let metadata = &answer["metadata"];
        let start = metadata["generateName"].as_str().filter(|start| !start.is_empty());
        let name = metadata["name"].as_str();
        if let Some((start, name)) = start.zip(name)
            && name.starts_with(start)
            && name != start
            && !self.generated.iter().any(|known| known == name)
        {
            self.generated.push(name.to_owned());
        }
    }

    fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (number, name) in self.generated.iter().enumerate() {
            text = text.replace(name, &format!("<generated-{number}>"));
        }
        for (pattern, stand_in) in IN_TEXTS.iter() {
            text = pattern.replace_all(&text, *stand_in).into_owned();
        }
        text
    }

    fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => {
                let masked = fields.into_iter().map(|(name, value)| {
                    let is_chosen =
                        CHOSEN.contains(&name.as_str()) && !value.is_null() && value != "" && !value.is_object();
                    let value = if is_chosen { Value::String("<chosen>".into()) } else { self.value(value) };
                    (self.text(&name), value)
                });
                masked.collect()
            }
            other => other,
        }
    }
}

/// The differences of two answers, one a line.
pub fn between(ours: &Answer, our_mask: &Mask, theirs: &Answer, their_mask: &Mask) -> Vec<String> {
    let mut found = Vec::new();
    if ours.status != theirs.status {
        found.push(format!("status: {} and {}", ours.status, theirs.status));
    }
    for header in HEADERS {
        let (mine, other) = (ours.header(header), theirs.header(header));
        if mine != other {
            found.push(format!("header {header}: {mine:?} and {other:?}"));
        }
    }
    match (ours.json(), theirs.json()) {
        (Some(mine), Some(other)) => values(&mut found, "", &our_mask.value(mine), &their_mask.value(other)),
        _ => {
            let mine = our_mask.text(&String::from_utf8_lossy(&ours.body));
            let other = their_mask.text(&String::from_utf8_lossy(&theirs.body));
            texts(&mut found, &mine, &other);
        }
    }
    found
}

/// Bodies that are lines of JSON, as those of watches, are compared line by line, and so are other texts.
fn texts(found: &mut Vec<String>, ours: &str, theirs: &str) {
    if ours == theirs {
        return;
    }
    let (mine, other): (Vec<&str>, Vec<&str>) = (ours.lines().collect(), theirs.lines().collect());
    for number in 0..mine.len().max(other.len()) {
        let (a, b) = (mine.get(number).copied().unwrap_or_default(), other.get(number).copied().unwrap_or_default());
        match (serde_json::from_str::<Value>(a), serde_json::from_str::<Value>(b)) {
            (Ok(a), Ok(b)) => {
                let mask = Mask::default();
                values(found, &format!("line {}", number + 1), &mask.value(a), &mask.value(b));
            }
            _ if a != b => found.push(format!("line {}: {} and {}", number + 1, short(a), short(b))),
            _ => {}
        }
    }
}

fn values(found: &mut Vec<String>, path: &str, ours: &Value, theirs: &Value) {
    match (ours, theirs) {
        (Value::Object(mine), Value::Object(other)) => {
            let names: BTreeSet<&String> = mine.keys().chain(other.keys()).collect();
            for name in names {
                let (a, b) = (mine.get(name), other.get(name));
                match a.zip(b) {
                    Some((a, b)) => values(found, &format!("{path}.{name}"), a, b),
                    None => found.push(format!("{path}.{name}: {} and {}", shown(a), shown(b))),
                }
            }
        }
        (Value::Array(mine), Value::Array(other)) if mine.len() == other.len() => {
            for (index, (a, b)) in mine.iter().zip(other).enumerate() {
                values(found, &format!("{path}[{index}]"), a, b);
            }
        }
        (mine, other) if mine != other => {
            found.push(format!("{path}: {} and {}", shown(Some(mine)), shown(Some(other))));
        }
        _ => {}
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), |value| short(&value.to_string()))
}

fn short(text: &str) -> String {
    let start: String = text.chars().take(300).collect();
    if start.len() < text.len() { format!("{start}…") } else { start }
}
