//! The values of series.

use corten_meta::Quantity;
use jiff::Timestamp;
use serde_json::Value;

use crate::malformed::Malformed;
use crate::path::{Path, Scope, string};

/// Returns the next time of a schedule, in a time zone, after a time.
pub type NextSchedule = fn(schedule: &str, zone: Option<&str>, after: Timestamp) -> Option<Timestamp>;

/// The value of a series.
#[derive(Debug)]
pub enum Expression {
    One,
    Version,
    NextSchedule,
    /// A function of the first path that is set.
    Of(Function, Vec<Path>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    Number,
    NumberOrZero,
    Bool,
    Time,
    Quantity,
    Count,
    Length,
    Has,
    Latest,
    Resources,
    Up,
    Down,
}

const FUNCTIONS: [(&str, Function); 12] = [
    ("number", Function::Number),
    ("number0", Function::NumberOrZero),
    ("bool", Function::Bool),
    ("time", Function::Time),
    ("quantity", Function::Quantity),
    ("count", Function::Count),
    ("length", Function::Length),
    ("has", Function::Has),
    ("latest", Function::Latest),
    ("resources", Function::Resources),
    ("up", Function::Up),
    ("down", Function::Down),
];

/// A value, with the resource that it is of, if the expression has one for each.
#[derive(Debug, PartialEq)]
pub struct Measured {
    pub resource: Option<Resource>,
    pub value: f64,
}

#[derive(Debug, PartialEq)]
pub struct Resource {
    pub name: String,
    pub unit: &'static str,
}

/// The facts of an object that are not in its fields.
#[derive(Clone, Copy)]
pub struct Surroundings {
    pub version: u64,
    pub now: Timestamp,
    pub next_schedule: NextSchedule,
}

impl Expression {
    pub fn parse(text: &str) -> Result<Expression, Malformed> {
        match text {
            "1" => return Ok(Expression::One),
            "version" => return Ok(Expression::Version),
            "next-schedule" => return Ok(Expression::NextSchedule),
            _ => {}
        }
        let malformed = || Malformed(format!("the value {text}"));
        let (name, paths) = text.strip_suffix(')').and_then(|text| text.split_once('(')).ok_or_else(malformed)?;
        let function = FUNCTIONS.iter().find(|(known, _)| *known == name).ok_or_else(malformed)?.1;
        Ok(Expression::Of(function, paths.split(',').map(Path::parse).collect::<Result<_, _>>()?))
    }

    /// Returns the values in a scope.
    pub fn values(&self, scope: Scope<'_>, surroundings: Surroundings) -> Vec<Measured> {
        let value = match self {
            Expression::One => Some(1.0),
            Expression::Version => Some(surroundings.version as f64),
            Expression::NextSchedule => next_schedule(scope.object, surroundings),
            Expression::Of(Function::Resources, paths) => return resources(paths, scope),
            Expression::Of(function, paths) => function.apply(paths, scope),
        };
        value.map(|value| Measured { resource: None, value }).into_iter().collect()
    }
}

impl Function {
    fn apply(self, paths: &[Path], scope: Scope<'_>) -> Option<f64> {
        let first = paths.iter().find_map(|path| path.first(scope));
        match self {
            Function::Number => first.and_then(Value::as_f64),
            Function::NumberOrZero => Some(first.and_then(Value::as_f64).unwrap_or(0.0)),
            Function::Bool => Some(one_if(first.is_some_and(|value| *value == true))),
            Function::Has => Some(one_if(first.is_some())),
            Function::Time => seconds(first?),
            Function::Quantity => Some(Quantity::from_json(first?).ok()?.as_f64()),
            Function::Count => Some(count(paths, scope) as f64),
            Function::Length => Some(decoded_length(&string(first)) as f64),
            Function::Latest => {
                let times = paths.iter().flat_map(|path| path.values(scope)).filter_map(seconds);
                times.reduce(f64::max)
            }
            Function::Up => scaled(first?, scope.object, f64::ceil),
            Function::Down => scaled(first?, scope.object, f64::floor),
            Function::Resources => None,
        }
    }
}

fn one_if(set: bool) -> f64 {
    if set { 1.0 } else { 0.0 }
}

/// Returns the number of items at paths.
fn count(paths: &[Path], scope: Scope<'_>) -> usize {
    let values = paths.iter().flat_map(|path| path.values(scope));
    values.map(|value| value.as_array().map_or(1, Vec::len)).sum()
}

/// Returns the number of bytes of a base64 string.
fn decoded_length(text: &str) -> usize {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

/// Returns a time in seconds since the epoch.
fn seconds(value: &Value) -> Option<f64> {
    let time: Timestamp = value.as_str()?.parse().ok()?;
    Some(time.as_second() as f64)
}

/// Returns an integer, or a percentage of the replicas, rounded.
fn scaled(value: &Value, object: &Value, round: fn(f64) -> f64) -> Option<f64> {
    match value {
        Value::String(text) => {
            let percentage: f64 = text.strip_suffix('%')?.parse().ok()?;
            let replicas = object.pointer("/spec/replicas").and_then(Value::as_f64).unwrap_or(1.0);
            Some(round(replicas * percentage / 100.0))
        }
        other => other.as_f64(),
    }
}

fn next_schedule(object: &Value, surroundings: Surroundings) -> Option<f64> {
    let spec = object.get("spec")?;
    let schedule = spec.get("schedule")?.as_str()?;
    let zone = spec.get("timeZone").and_then(Value::as_str);
    let last = object.pointer("/status/lastScheduleTime").or_else(|| object.pointer("/metadata/creationTimestamp"));
    let after = last.and_then(Value::as_str).and_then(|text| text.parse().ok()).unwrap_or(surroundings.now);
    let next = (surroundings.next_schedule)(schedule, zone, after)?;
    Some(next.as_second() as f64)
}

/// Returns the quantities of a map of resources.
fn resources(paths: &[Path], scope: Scope<'_>) -> Vec<Measured> {
    let maps = paths.iter().flat_map(|path| path.values(scope)).filter_map(Value::as_object);
    let entries = maps.flatten().filter_map(|(name, quantity)| {
        let value = Quantity::from_json(quantity).ok()?.as_f64();
        Some(Measured { resource: Some(resource(name)), value })
    });
    entries.collect()
}

/// Returns the name of a resource as a label value, and its unit.
fn resource(name: &str) -> Resource {
    let unit = match name {
        "cpu" => "core",
        "memory" | "storage" | "ephemeral-storage" => "byte",
        name if name.starts_with("hugepages-") => "byte",
        _ => "integer",
    };
    let plain = |character: char| if character.is_ascii_alphanumeric() { character } else { '_' };
    Resource { name: name.chars().map(plain).collect(), unit }
}
