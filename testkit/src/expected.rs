//! Expected answers: the parts of an answer that a test names, compared with the whole answer.
//!
//! - An object has at least the named fields, with values that match. A field whose name ends with `!` matches whole:
//!   nothing else may be in it. `<absent>` is a field that is not there. An empty object or list is just that.
//! - A list has as many items as named, in order. `…` among them stands for any items. `managedFields` may have any
//!   order: it depends on the seconds in which they were written.
//! - In a string, `<uid>`, `<time>`, `<version>` and `<name>` stand for values that the server chooses, the last for
//!   the five characters of a generated name; `…` stands for any part. `<any>` is any value, `<not x>` any but this
//!   one.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

const ANY: &str = "…";
const ABSENT: &str = "<absent>";

const UID: &str = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
const TIME: &str = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)";

/// Fields whose values the server chooses, and the words for them.
const CHOSEN: [(&str, &str); 5] = [
    ("uid", "<uid>"),
    ("creationTimestamp", "<time>"),
    ("deletionTimestamp", "<time>"),
    ("time", "<time>"),
    ("resourceVersion", "<version>"),
];

/// Returns the differences of a value from the expected one, one a line.
pub fn differences(expected: &Value, found: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    compare(&mut lines, "", expected, Some(found), false);
    lines
}

/// Reports whether a string matches the expected one.
pub fn is_match(expected: &str, found: &str) -> bool {
    if let Some(other) = expected.strip_prefix("<not ").and_then(|rest| rest.strip_suffix('>')) {
        return found != other;
    }
    if !expected.contains(['<', '…']) {
        return expected == found;
    }
    let pattern = regex::escape(expected)
        .replace("<uid>", UID)
        .replace("<time>", TIME)
        .replace("<version>", r"\d+")
        .replace("<name>", "[a-z0-9]{5}")
        .replace(ANY, ".*");
    Regex::new(&format!("(?s)^{pattern}$")).is_ok_and(|pattern| pattern.is_match(found))
}

fn compare(lines: &mut Vec<String>, path: &str, expected: &Value, found: Option<&Value>, is_whole: bool) {
    if expected == ABSENT || expected == "<any>" {
        if (expected == ABSENT) != found.is_none() {
            lines.push(unlike(path, expected, found));
        }
        return;
    }
    match (expected, found) {
        (Value::Object(expected), Some(Value::Object(found))) => {
            let is_whole = is_whole || expected.is_empty();
            objects(lines, path, expected, found, is_whole);
        }
        (Value::Array(expected), Some(Value::Array(found)))
            if (is_unordered(path) && fits_in_any_order(expected, found, is_whole))
                || (has_gap(expected) && fits(expected, found, is_whole)) => {}
        (Value::Array(expected), Some(Value::Array(found)))
            if expected.len() == found.len() && !has_gap(expected) && !is_unordered(path) =>
        {
            for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
                compare(lines, &format!("{path}[{index}]"), expected, Some(found), is_whole);
            }
        }
        (Value::String(expected), Some(Value::String(found))) if is_match(expected, found) => {}
        (expected, Some(found)) if expected == found => {}
        (expected, found) => lines.push(unlike(path, expected, found)),
    }
}

fn objects(
    lines: &mut Vec<String>,
    path: &str,
    expected: &Map<String, Value>,
    found: &Map<String, Value>,
    is_whole: bool,
) {
    for (key, value) in expected {
        let name = field(key);
        compare(lines, &format!("{path}.{name}"), value, found.get(name), is_whole || name != key);
    }
    let is_named = |name: &String| expected.keys().any(|key| field(key) == name);
    for (name, value) in found.iter().filter(|(name, _)| is_whole && !is_named(name)) {
        lines.push(unlike(&format!("{path}.{name}"), &Value::String(ABSENT.to_owned()), Some(value)));
    }
}

/// Returns the name of a field without the sign that it matches whole.
fn field(key: &str) -> &str {
    key.strip_suffix('!').unwrap_or(key)
}

fn has_gap(items: &[Value]) -> bool {
    items.iter().any(|item| item == ANY)
}

fn is_unordered(path: &str) -> bool {
    path.ends_with(".managedFields")
}

/// Reports whether each expected item matches another one of those that were found. None is left, unless there is a
/// gap.
fn fits_in_any_order(expected: &[Value], found: &[Value], is_whole: bool) -> bool {
    match expected.iter().position(|item| item != ANY) {
        None => found.is_empty() || has_gap(expected),
        Some(first) => (0..found.len()).any(|at| {
            let rest = [&expected[..first], &expected[first + 1..]].concat();
            let others = [&found[..at], &found[at + 1..]].concat();
            fits_item(&expected[first], &found[at], is_whole) && fits_in_any_order(&rest, &others, is_whole)
        }),
    }
}

/// Reports whether items match those with gaps.
fn fits(expected: &[Value], found: &[Value], is_whole: bool) -> bool {
    match expected.split_first() {
        None => found.is_empty(),
        Some((gap, rest)) if gap == ANY => (0..=found.len()).any(|skipped| fits(rest, &found[skipped..], is_whole)),
        Some((first, rest)) => found
            .split_first()
            .is_some_and(|(item, others)| fits_item(first, item, is_whole) && fits(rest, others, is_whole)),
    }
}

fn fits_item(expected: &Value, found: &Value, is_whole: bool) -> bool {
    let mut lines = Vec::new();
    compare(&mut lines, "", expected, Some(found), is_whole);
    lines.is_empty()
}

fn unlike(path: &str, expected: &Value, found: Option<&Value>) -> String {
    let found = found.map_or_else(|| ABSENT.to_owned(), |found| inline(&masked("", found)));
    format!("{}\n  expected {}\n  found    {found}", path.trim_start_matches('.'), inline(expected))
}

/// Returns the expected value with the same fields, and with the values that were found where they do not match.
pub fn updated(expected: &Value, found: Option<&Value>) -> Value {
    let Some(found) = found else { return Value::String(ABSENT.to_owned()) };
    if differences(expected, found).is_empty() {
        return expected.clone();
    }
    match (expected, found) {
        (Value::Object(expected), Value::Object(object)) if !expected.is_empty() => {
            let update = |(key, value): (&String, &Value)| {
                let name = field(key);
                let mut lines = Vec::new();
                let path = format!(".{name}");
                compare(&mut lines, &path, value, object.get(name), name != key);
                let value = match object.get(name) {
                    _ if lines.is_empty() => value.clone(),
                    Some(found) if name != key || is_unordered(&path) => masked(name, found),
                    found => updated(value, found),
                };
                (key.clone(), value)
            };
            expected.iter().map(update).collect()
        }
        (Value::Array(expected), Value::Array(items)) if expected.len() == items.len() && !has_gap(expected) => {
            expected.iter().zip(items).map(|(expected, item)| updated(expected, Some(item))).collect()
        }
        _ => masked("", found),
    }
}

/// Returns a string with words in the place of values that the server chooses.
pub fn masked_string(text: &str) -> String {
    static WORDS: LazyLock<[(Regex, &str); 2]> = LazyLock::new(|| {
        let regex = |pattern: &str| Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        [(regex(UID), "<uid>"), (regex(TIME), "<time>")]
    });
    WORDS.iter().fold(text.to_owned(), |text, (pattern, word)| pattern.replace_all(&text, *word).into_owned())
}

fn masked(name: &str, value: &Value) -> Value {
    match value {
        Value::String(text) => {
            let word = CHOSEN.iter().find(|(chosen, word)| *chosen == name && is_match(word, text));
            Value::String(word.map_or_else(|| masked_string(text), |(_, word)| (*word).to_owned()))
        }
        Value::Array(items) => items.iter().map(|item| masked("", item)).collect(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), masked(name, value))).collect(),
        other => other.clone(),
    }
}

/// The longest line of an object or list that is written in one.
const WIDTH: usize = 110;

/// Writes a value as YAML: what fits into a line in flow style, the rest in block style.
pub fn yaml(value: &Value) -> String {
    let mut text = String::new();
    write(&mut text, 0, value);
    text
}

fn write(text: &mut String, indent: usize, value: &Value) {
    let space = " ".repeat(indent);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let start = format!("{space}{}:", scalar(name));
                if !write_line(text, &start, value) {
                    text.push_str(&format!("{start}\n"));
                    write(text, if value.is_array() { indent } else { indent + 2 }, value);
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for value in items {
                let start = format!("{space}-");
                if !write_line(text, &start, value) {
                    let mut block = String::new();
                    write(&mut block, indent + 2, value);
                    text.push_str(&format!("{start} {}", &block[indent + 2..]));
                }
            }
        }
        value => text.push_str(&format!("{space}{}\n", inline(value))),
    }
}

/// Writes a value behind the start of its line, if it fits or cannot be written in several lines.
fn write_line(text: &mut String, start: &str, value: &Value) -> bool {
    let line = format!("{start} {}\n", inline(value));
    let is_nested = value.as_object().is_some_and(|fields| !fields.is_empty())
        || value.as_array().is_some_and(|items| !items.is_empty());
    let is_written = line.chars().count() <= WIDTH || !is_nested;
    if is_written {
        text.push_str(&line);
    }
    is_written
}

/// Writes a value in one line.
fn inline(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{}: {}", scalar(name), inline(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

/// Writes a string without quotes if YAML reads it as the same string in every place.
fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|first: char| first.is_alphabetic() || matches!(first, '<' | '…' | '/' | '_'))
        && !text.ends_with([':', ' '])
        && !text.contains(['"', '\\', '\n', '\t', '{', '}', '[', ']', ',', '#'])
        && !text.contains(": ");
    let reads_same = || {
        let read = corten_meta::decode_yaml(format!("[{text}]").as_bytes());
        read.is_ok_and(|read| read == Value::from(vec![text]))
    };
    if is_plain && reads_same() { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn named_parts_are_compared() {
        let found = json!({
            "metadata": {"name": "a", "uid": "4b1f6c1e-0000-4000-8000-000000000001", "resourceVersion": "7"},
            "data": {"k": "1", "l": "2"}, "items": [1, 2, 3], "empty": {},
        });
        for expected in [
            json!({"metadata": {"uid": "<uid>", "resourceVersion": "<version>"}}),
            json!({"data!": {"k": "1", "l": "…"}, "items": [1, "<any>", 3], "status": "<absent>"}),
            json!({"items": ["…", 3], "empty": {}, "metadata": {"resourceVersion": "<not 8>"}}),
        ] {
            assert_eq!(differences(&expected, &found), Vec::<String>::new(), "{expected}");
        }
        for expected in [
            json!({"metadata": {"uid": "<version>"}}),
            json!({"data!": {"k": "1"}}),
            json!({"data": {}}),
            json!({"items": [1, 2]}),
            json!({"items": ["…", 2]}),
            json!({"data": "<absent>"}),
            json!({"status": null}),
            json!({"metadata": {"resourceVersion": "<not 7>"}}),
        ] {
            assert!(!differences(&expected, &found).is_empty(), "{expected}");
            let updated = updated(&expected, Some(&found));
            assert_eq!(differences(&updated, &found), Vec::<String>::new(), "{expected} → {updated}");
        }
        let entries = json!({"managedFields": [{"manager": "a", "time": 1}, {"manager": "b"}]});
        let unordered = json!({"managedFields": [{"manager": "b"}, {"manager": "a"}]});
        assert_eq!(differences(&json!({"m": unordered}), &json!({"m": entries})), Vec::<String>::new());
        let others = json!({"managedFields": ["…", {"manager": "b"}]});
        assert_eq!(differences(&others, &entries), Vec::<String>::new());
        let fewer = json!({"managedFields": [{"manager": "b"}]});
        assert_eq!(differences(&fewer, &entries).len(), 1);
        let shown = differences(&json!({"data": {"k": "2"}}), &found);
        assert_eq!(shown, ["data.k\n  expected \"2\"\n  found    \"1\""]);
    }

    #[test]
    fn an_update_keeps_the_shape() {
        let found =
            json!({"kind": "ConfigMap", "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        let expected = json!({"kind": "Config…", "metadata": {"name": "_", "creationTimestamp": "_", "labels": "_"}});
        let metadata = json!({"name": "a", "creationTimestamp": "<time>", "labels": "<absent>"});
        assert_eq!(updated(&expected, Some(&found)), json!({"kind": "Config…", "metadata": metadata}));
    }

    #[test]
    fn yaml_reads_as_the_value() {
        let long = "word ".repeat(30);
        let value = json!({
            "a": {"b": [1, "2", true, null, "yes", "x: y", "{x}", "", "- a", "<uid>", "…", "a,b"]},
            "long": {"c": [long, {"d": long}], "e": {}, "f": []}, "data!": {"k": "v"}, "1": "0x1", "t": "2026-01-01",
        });
        let text = yaml(&value);
        assert_eq!(corten_meta::decode_yaml(text.as_bytes()).unwrap(), value, "{text}");
        assert!(text.lines().count() > 5, "{text}");
    }
}
