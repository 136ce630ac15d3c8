//! JSON paths, for the columns of custom resources and the warnings of policies: `.spec.items[?(@.size>3)].name`.
//!
//! A path matches any number of values; a table shows the first. A step that does not apply matches nothing: a row
//! never fails. Pure, and bounded: a path that matches more values than [`MOST`] matches none.

mod parse;

use std::cmp::Ordering;

use corten_meta::Value;

/// The most values that a step may match.
const MOST: usize = 100_000;

/// A parsed path.
#[derive(Debug, Default, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Debug, PartialEq)]
enum Step {
    Field(String),
    /// All elements of a value.
    Every,
    /// A value and all values inside that have elements.
    Deep,
    Slice(Slice),
    Union(Vec<JsonPath>),
    Has(JsonPath),
    Compare(JsonPath, String, JsonPath),
    Literal(Value),
    /// A word that is no path, such as `range`: it matches nothing.
    Word,
}

/// A slice `[from:to:step]`; an index alone is a slice of one.
#[derive(Debug, PartialEq)]
struct Slice {
    from: i64,
    to: Option<i64>,
    /// Whether it is an index, so that the end follows from the beginning.
    is_index: bool,
    step: Option<i64>,
}

/// The failure of a step that does not apply.
struct Nowhere;

type Found<'a> = Result<Vec<&'a Value>, Nowhere>;

impl JsonPath {
    /// Parses a path, or returns the error.
    pub fn parse(text: &str) -> Result<JsonPath, String> {
        parse::steps(text).map(JsonPath)
    }

    /// Parses a path; an invalid one matches nothing.
    pub fn read(text: &str) -> JsonPath {
        JsonPath::parse(text).unwrap_or_else(|_| JsonPath(vec![Step::Word]))
    }

    /// Returns the first value that the path matches.
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
            Step::Word => return Err(Nowhere),
            Step::Has(path) => chosen(here, |item| Ok(path.follow(vec![item]).is_ok_and(|found| !found.is_empty())))?,
            Step::Compare(left, operator, right) => chosen(here, |item| {
                let left = left.follow(vec![item])?;
                let right = right.follow(vec![item])?;
                match (&left[..], &right[..]) {
                    ([], _) | (_, []) => Ok(false),
                    ([left], [right]) => compare(left, operator, right),
                    _ => Err(Nowhere),
                }
            })?,
        })
    }
}

/// Returns the list items that satisfy a filter. Only lists can be filtered.
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

/// Compares values of one type; booleans only for equality.
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
            // An integer and a float cannot be compared.
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
        /// The rows of every CustomResourceDefinition are made.
        #[test]
        fn any_path_ends(path in r#"[.\[\]?()@$'"*:,a-c0-3 \\!<>=-]{0,24}"#) {
            let object = json!({ "a": [{ "b": 1, "c": "x" }, { "b": [1, 2, 3] }, null], "b": { "a": { "c": 2.5 } } });
            JsonPath::read(&path).first(&object);
        }
    }
}
