//! Paths into objects, as the columns of custom resources are given: `.spec.items[?(@.size>3)].name`.
//!
//! A path leads to any number of values; a table shows the first. What cannot be followed leads nowhere: a row never
//! fails. Pure, and bounded: a path that reaches more values than [`MOST`] reaches none.

use std::cmp::Ordering;

use corten_meta::Value;

/// How many values a step may lead to.
const MOST: usize = 100_000;

/// A path that was read.
#[derive(Debug, Default, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Debug, PartialEq)]
enum Step {
    Field(String),
    /// Everything that is directly in a value.
    Every,
    /// A value and everything in it that holds something.
    Deep,
    Slice(Slice),
    Union(Vec<JsonPath>),
    Has(JsonPath),
    Compare(JsonPath, String, JsonPath),
    Literal(Value),
}

/// `[from:to:step]`; an index alone is a slice of one.
#[derive(Debug, PartialEq)]
struct Slice {
    from: i64,
    to: Option<i64>,
    /// The end was not given but follows from the beginning.
    is_index: bool,
    step: Option<i64>,
}

/// A step that cannot be taken.
struct Nowhere;

type Found<'a> = Result<Vec<&'a Value>, Nowhere>;

impl JsonPath {
    /// Reads a path, if it is one.
    pub fn parse(text: &str) -> Option<JsonPath> {
        steps(text).map(JsonPath)
    }

    /// Reads a path; what is none leads nowhere.
    pub fn read(text: &str) -> JsonPath {
        JsonPath::parse(text).unwrap_or_else(|| JsonPath(vec![Step::Union(Vec::new())]))
    }

    /// The first value that the path leads to.
    pub fn first<'a>(&'a self, object: &'a Value) -> Option<&'a Value> {
        self.follow(vec![object]).ok()?.first().copied()
    }

    fn follow<'a>(&'a self, from: Vec<&'a Value>) -> Found<'a> {
        self.0.iter().try_fold(from, |here, step| {
            let there = step.take(here)?;
            if there.len() > MOST { Err(Nowhere) } else { Ok(there) }
        })
    }
}

impl Step {
    fn take<'a>(&'a self, here: Vec<&'a Value>) -> Found<'a> {
        Ok(match self {
            Step::Field(name) => here.into_iter().filter_map(|value| value.as_object()?.get(name)).collect(),
            Step::Every => here.into_iter().flat_map(inside).collect(),
            Step::Deep => {
                let mut out = Vec::new();
                here.into_iter().for_each(|value| descend(value, &mut out));
                out
            }
            Step::Slice(slice) => slice.take(here)?,
            Step::Union(paths) => {
                let found: Vec<Vec<&Value>> =
                    paths.iter().map(|path| path.follow(here.clone())).collect::<Result<_, _>>()?;
                found.into_iter().flatten().collect()
            }
            Step::Literal(value) => vec![value],
            Step::Has(path) => chosen(here, |item| Ok(path.follow(vec![item]).is_ok_and(|found| !found.is_empty())))?,
            Step::Compare(left, operator, right) => chosen(here, |item| {
                let (left, right) = (left.follow(vec![item])?, right.follow(vec![item])?);
                match (&left[..], &right[..]) {
                    ([], _) | (_, []) => Ok(false),
                    ([left], [right]) => compare(left, operator, right),
                    _ => Err(Nowhere),
                }
            })?,
        })
    }
}

/// The items of lists that pass a test. Only lists can be filtered.
fn chosen<'a>(here: Vec<&'a Value>, passes: impl Fn(&'a Value) -> Result<bool, Nowhere>) -> Found<'a> {
    let mut out = Vec::new();
    for value in here {
        for item in value.as_array().ok_or(Nowhere)? {
            if passes(item)? {
                out.push(item);
            }
        }
    }
    Ok(out)
}

/// Only what is of one kind can be compared, and truths only for being the same.
fn compare(left: &Value, operator: &str, right: &Value) -> Result<bool, Nowhere> {
    let is_float = |value: &Value| value.as_i64().is_none();
    let order = match (left, right) {
        (Value::String(a), Value::String(b)) => a.as_str().cmp(b),
        (Value::Number(_), Value::Number(_)) if is_float(left) == is_float(right) => {
            left.as_i64().cmp(&right.as_i64()).then(left.as_f64().partial_cmp(&right.as_f64()).ok_or(Nowhere)?)
        }
        (Value::Bool(a), Value::Bool(b)) if matches!(operator, "==" | "!=") => a.cmp(b),
        _ => return Err(Nowhere),
    };
    Ok(match operator {
        "==" => order == Ordering::Equal,
        "!=" => order != Ordering::Equal,
        "<" => order == Ordering::Less,
        ">" => order == Ordering::Greater,
        "<=" => order != Ordering::Greater,
        ">=" => order != Ordering::Less,
        _ => return Err(Nowhere),
    })
}

fn inside(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(map) => map.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    }
}

fn descend<'a>(value: &'a Value, out: &mut Vec<&'a Value>) {
    let within = inside(value);
    if !within.is_empty() && out.len() <= MOST {
        out.push(value);
        within.into_iter().for_each(|item| descend(item, out));
    }
}

impl Slice {
    fn take<'a>(&self, here: Vec<&'a Value>) -> Found<'a> {
        let mut out = Vec::new();
        for value in here.into_iter().filter(|value| !value.is_null()) {
            let items = value.as_array().ok_or(Nowhere)?;
            let length = i64::try_from(items.len()).map_err(|_| Nowhere)?;
            let from = if self.from < 0 { self.from.saturating_add(length) } else { self.from };
            let to = match self.to.unwrap_or(length) {
                to if to < 0 || (to == 0 && self.is_index) => to.saturating_add(length),
                to => to,
            };
            if from == to {
                return Ok(out);
            }
            let range = usize::try_from(from).ok().zip(usize::try_from(to).ok());
            let (from, to) = range.filter(|(from, to)| from < to && *to <= items.len()).ok_or(Nowhere)?;
            let step = usize::try_from(self.step.unwrap_or(1)).ok().filter(|step| *step > 0).ok_or(Nowhere)?;
            out.extend(items[from..to].iter().step_by(step));
        }
        Ok(out)
    }

    /// Reads what stands between the brackets.
    fn read(text: &str) -> Option<Slice> {
        let mut parts = text.split(':');
        let number = |part: &str| if part.is_empty() { Some(None) } else { part.parse::<i64>().ok().map(Some) };
        let from = number(parts.next()?)?.unwrap_or(0);
        let (to, is_index) = match parts.next() {
            Some(to) => (number(to)?, false),
            None => (Some(from.checked_add(1)?), true),
        };
        let step = number(parts.next().unwrap_or_default())?;
        (parts.next().is_none() && !text.contains('+')).then_some(Slice { from, to, is_index, step })
    }
}

/// Reads a path step by step.
fn steps(text: &str) -> Option<Vec<Step>> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some(letter) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("[?(") {
            let (inside, after) = filter(after)?;
            out.push(inside);
            rest = after;
        } else if let Some(after) = rest.strip_prefix("..") {
            out.push(Step::Deep);
            rest = after;
            if rest.starts_with(|next: char| next == '_' || next.is_alphanumeric()) {
                let (name, after) = name(rest);
                out.push(Step::Field(name));
                rest = after;
            }
        } else {
            let after = &rest[letter.len_utf8()..];
            rest = match letter {
                ' ' | '@' | '$' => after,
                '[' => {
                    let (inside, after) = after.split_once(']')?;
                    bracket(inside, &mut out)?;
                    after
                }
                '"' | '\'' => {
                    let end = closing(after, letter)?;
                    out.push(Step::Literal(after[..end].replace('\\', "").into()));
                    &after[end + 1..]
                }
                '.' => {
                    let (name, after) = name(after);
                    out.push(if name == "*" { Step::Every } else { Step::Field(name) });
                    after
                }
                '+' | '-' | '0'..='9' => {
                    let end = after.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(after.len());
                    let number = rest[..letter.len_utf8() + end].trim_start_matches('+');
                    let whole = number.parse::<i64>().map(Value::from);
                    out.push(Step::Literal(whole.or_else(|_| number.parse::<f64>().map(Value::from)).ok()?));
                    &after[end..]
                }
                _ => {
                    let (word, after) = name(rest);
                    out.push(Step::Literal(word.parse::<bool>().ok()?.into()));
                    after
                }
            };
        }
    }
    Some(out)
}

/// Reads what stands between brackets: a key, a slice, or several of them.
fn bracket(inside: &str, out: &mut Vec<Step>) -> Option<()> {
    if inside.contains(',') {
        let all = inside.split(',').map(|one| steps(&format!("[{}]", one.trim_matches(' '))).map(JsonPath));
        out.push(Step::Union(all.collect::<Option<_>>()?));
    } else if let Some(key) = inside.strip_prefix('\'').and_then(|key| key.strip_suffix('\'')) {
        // The key is a path again, so its dots must be escaped.
        out.extend(steps(&format!(".{key}"))?);
    } else {
        out.push(Step::Slice(Slice::read(if inside == "*" { ":" } else { inside })?));
    }
    Some(())
}

/// Reads a filter behind its `[?(`.
fn filter(text: &str) -> Option<(Step, &str)> {
    let (mut quote, mut before) = (None, ' ');
    let end = text.char_indices().find_map(|(at, letter)| {
        match (quote, letter) {
            (None, ')') => return Some(at),
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), _) if open == letter && before != '\\' => quote = None,
            _ => {}
        }
        before = letter;
        None
    })?;
    let (inside, after) = (&text[..end], text[end + 1..].strip_prefix(']')?);
    let is_operator = |letter: char| "!<>=".contains(letter);
    let read = |text: &str| steps(text).map(JsonPath);
    let Some(at) = inside.find(is_operator) else { return Some((Step::Has(read(inside)?), after)) };
    let (left, rest) = inside.split_at(at);
    let (operator, right) = rest.split_at(rest.find(|letter| !is_operator(letter))?);
    Some((Step::Compare(read(left)?, operator.to_owned(), read(right)?), after))
}

/// Where a quoted text ends.
fn closing(text: &str, quote: char) -> Option<usize> {
    let is_end = |at: &usize| !text[..*at].ends_with('\\');
    text.match_indices(quote).map(|(at, _)| at).find(is_end)
}

/// The name that a text begins with, and what follows it; a backslash makes the next letter part of the name.
fn name(text: &str) -> (String, &str) {
    let (mut name, mut letters) = (String::new(), text.char_indices());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => name.extend(letters.next().map(|(_, next)| next)),
            ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}' => return (name, &text[at..]),
            other => name.push(other),
        }
    }
    (name, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn paths_lead_to_values() {
        let object = json!({ "spec": { "a.b": 1, "list": [{ "x": "y", "n": 1 }, { "x": "z", "n": 2.5 }, { "n": 3 }],
                                       "numbers": [1, 2, 3], "text": "t", "none": null },
                             "status": { "conditions": [{ "type": "Ready", "status": "True", "on": true }] } });
        for (path, wanted) in [
            (r".spec.a\.b", json!(1)),
            (r".spec['a\.b']", json!(1)),
            (".spec['text']", json!("t")),
            ("$.spec.text", json!("t")),
            (".spec.none", json!(null)),
            (".spec.list[0].x", json!("y")),
            (".spec.list[-1].n", json!(3)),
            (".spec.list[*].x", json!("y")),
            (".spec.list[1:].x", json!("z")),
            (".spec.numbers[0:3:2]", json!(1)),
            (".spec.numbers[2,0]", json!(3)),
            // A whole number and a float cannot be compared.
            (".spec.list[?(@.n>1.5)].x", json!("none")),
            (".spec.list[?(@.n==3)].n", json!("none")),
            (r#".spec.list[?(@.x=="z")].n"#, json!(2.5)),
            (r#".spec.list[?(@.x!="y")].x"#, json!("z")),
            (".spec.list[?(@.x)].n", json!(1)),
            (".spec.numbers[?(@>=2)]", json!(2)),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!("True")),
            (".status.conditions[?(@.on==true)].type", json!("Ready")),
            ("..type", json!("Ready")),
            (".status.*", json!([{ "type": "Ready", "status": "True", "on": true }])),
        ] {
            let found = JsonPath::read(path);
            let found = found.first(&object);
            assert_eq!(found.unwrap_or(&json!("none")), &wanted, "{path}");
        }
        let astray = [".spec['a.b']", ".spec.list[3]", ".spec.list[-4]", ".spec[0]", ".spec.text[*]", ".spec.x.y"];
        let broken =
            ["spec", "..x[", ".spec[\"text\"]", ".spec.list[?(@.n", ".spec.list[a]", ".spec.list[0:2:0]", "{.x}"];
        for path in astray.into_iter().chain(broken) {
            assert_eq!(JsonPath::read(path).first(&object), None, "{path}");
        }
    }

    proptest! {
        /// Whatever a definition says, its rows are made.
        #[test]
        fn any_path_ends(path in r#"[.\[\]?()@$'"*:,a-c0-3 \\!<>=-]{0,24}"#) {
            let object = json!({ "a": [{ "b": 1, "c": "x" }, { "b": [1, 2, 3] }, null], "b": { "a": { "c": 2.5 } } });
            JsonPath::read(&path).first(&object);
        }
    }
}
