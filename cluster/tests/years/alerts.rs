//! A small Prometheus for tests: reads the rules of `dist/monitoring` and pages of metrics, and says which alerts fire.
//!
//! It knows the part of Prometheus' language that the rules use, and refuses the rest, so that a rule is never passed over.
//! Where promtool is installed, it checks the same rules.

use std::collections::BTreeMap;

use corten_meta::Value;

pub type Labels = BTreeMap<String, String>;

/// The name of a metric, among its labels.
const NAME: &str = "__name__";
/// The age at which a sample is too old to be the current one, in seconds.
const LOOKBACK: f64 = 300.0;
/// The time between two evaluations, in seconds.
const STEP: f64 = 60.0;

/// The samples of a series: time and value, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct Series {
    pub labels: Labels,
    pub samples: Vec<(f64, f64)>,
}

/// A rule of the file.
pub struct Rule {
    pub alert: String,
    expression: Expression,
    /// The time for which the expression holds before the alert fires, in seconds.
    hold: f64,
    pub help: String,
}

/// Reads the rules of a file.
pub fn rules(text: &str) -> Vec<Rule> {
    let file = corten_meta::decode_yaml(text.as_bytes()).unwrap();
    let groups = file["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    let rule = |rule: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Rule {
            alert: text(&rule["alert"]),
            expression: parse(&text(&rule["expr"])),
            hold: rule["for"].as_str().map_or(0.0, seconds),
            help: text(&rule["annotations"]["help"]),
        }
    };
    rules.map(rule).collect()
}

impl Rule {
    /// Returns the labels for which the alert fires at a time.
    pub fn firing(&self, series: &[Series], at: f64) -> Vec<Labels> {
        let mut held: Option<Vec<Labels>> = None;
        let mut time = at - self.hold;
        while time <= at {
            let now: Vec<Labels> =
                vector(&self.expression, series, time).into_iter().map(|(labels, _)| labels).collect();
            held = Some(match held {
                None => now,
                Some(before) => before.into_iter().filter(|labels| now.contains(labels)).collect(),
            });
            time += STEP;
        }
        held.unwrap_or_default()
    }

    /// Reports whether the expression holds at a time, for any labels.
    pub fn holds(&self, series: &[Series], at: f64) -> bool {
        !vector(&self.expression, series, at).is_empty()
    }
}

/// Reads a page of metrics as samples of one time, with the labels that a job of Prometheus adds.
pub fn scraped(page: &str, job: &str, at: f64) -> Vec<Series> {
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let mut labels = selector(series).1.into_iter().map(|one| (one.label, one.value)).collect::<Labels>();
        labels.insert("job".to_owned(), job.to_owned());
        labels.insert("instance".to_owned(), "one".to_owned());
        let value = match value {
            "+Inf" => f64::INFINITY,
            value => value.parse().ok()?,
        };
        Some(Series { labels, samples: vec![(at, value)] })
    };
    page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).filter_map(sample).collect()
}

/// Adds the samples of later scrapes to those of the same series.
pub fn merge(all: &mut Vec<Series>, later: Vec<Series>) {
    let mut known: BTreeMap<Labels, usize> =
        all.iter().enumerate().map(|(index, one)| (one.labels.clone(), index)).collect();
    for one in later {
        match known.get(&one.labels) {
            Some(index) => all[*index].samples.extend(one.samples),
            None => {
                known.insert(one.labels.clone(), all.len());
                all.push(one);
            }
        }
    }
}

/// Reads a series of promtool's tests: a selector, and values such as `1x10 0+60x30`, one each minute.
pub fn written(series: &str, values: &str) -> Series {
    let labels = selector(series).1.into_iter().map(|one| (one.label, one.value)).collect();
    let mut all = Vec::new();
    for word in values.split_whitespace() {
        let (start, count) = word.split_once('x').unwrap_or((word, "0"));
        let (start, step) = start.split_once('+').unwrap_or((start, "0"));
        let [start, step] = [start, step].map(|number| number.parse::<f64>().unwrap());
        let count: u32 = count.parse().unwrap();
        all.extend((0..=count).map(|index| start + f64::from(index) * step));
    }
    let samples = all.into_iter().enumerate().map(|(index, value)| (index as f64 * STEP, value)).collect();
    Series { labels, samples }
}

/// Returns the seconds of a duration such as `5m` or `1d`.
pub fn seconds(text: &str) -> f64 {
    let (number, unit) = text.split_at(text.len() - 1);
    let factor = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => panic!("{text}: not a duration"),
    };
    number.parse::<f64>().unwrap() * factor
}

#[derive(Debug)]
enum Expression {
    Number(f64),
    Time,
    /// A selector, with a range for a rate.
    Selected(Vec<Matcher>, Option<f64>),
    Rate(Box<Expression>),
    Quantile(Box<Expression>, Box<Expression>),
    /// An aggregation: `sum` or `max`, by these labels.
    Aggregated(String, Vec<String>, Box<Expression>),
    Binary(String, Box<Expression>, Box<Expression>),
}

#[derive(Clone, Debug)]
struct Matcher {
    label: String,
    operator: String,
    value: String,
}

impl Matcher {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.label).map_or("", String::as_str);
        let is_like = |pattern: &str| {
            assert!(!pattern.contains(['*', '+', '(', '[']), "{pattern}: not known to this evaluator");
            pattern.len() == value.len()
                && pattern.chars().zip(value.chars()).all(|(one, other)| one == '.' || one == other)
        };
        match self.operator.as_str() {
            "=" => self.value == value,
            "!=" => self.value != value,
            "=~" => self.value.split('|').any(is_like),
            "!~" => !self.value.split('|').any(is_like),
            other => panic!("{other}: not known to this evaluator"),
        }
    }
}

/// Reads a selector from the start of a text; returns its length and its matchers.
fn selector(text: &str) -> (usize, Vec<Matcher>) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').unwrap_or(text.len());
    let matcher = |label: &str, operator: &str, value: String| Matcher {
        label: label.to_owned(),
        operator: operator.to_owned(),
        value,
    };
    let mut all = vec![matcher(NAME, "=", text[..end].to_owned())];
    let Some(mut rest) = text[end..].strip_prefix('{') else { return (end, all) };
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return (text.len() - after.len(), all);
        }
        let (label, after) = rest.split_at(rest.find(['=', '!']).unwrap());
        let (operator, after) = after.split_at(after.find('"').unwrap());
        let mut value = String::new();
        let mut characters = after[1..].char_indices();
        rest = loop {
            match characters.next().unwrap() {
                (_, '\\') => value.push(characters.next().unwrap().1),
                (at, '"') => break &after[at + 2..],
                (_, other) => value.push(other),
            }
        };
        all.push(matcher(label.trim(), operator, value));
    }
}

fn parse(text: &str) -> Expression {
    let mut parser = Parser { rest: text };
    let parsed = parser.binary(0);
    assert!(parser.rest.trim().is_empty(), "{:?} of {text:?} is not known to this evaluator", parser.rest);
    parsed
}

/// The binary operators, those that bind least first.
const LEVELS: [&[&str]; 5] = [&["or"], &["and"], &["==", ">=", "<=", ">", "<"], &["+", "-"], &["*", "/"]];

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn take(&mut self, word: &str) -> bool {
        let rest = self.rest.trim_start();
        let after = rest.strip_prefix(word);
        self.rest = after.unwrap_or(rest);
        after.is_some()
    }

    fn expect(&mut self, word: &str) {
        assert!(self.take(word), "{word:?} is missing before {:?}", self.rest);
    }

    fn binary(&mut self, level: usize) -> Expression {
        let Some(operators) = LEVELS.get(level) else { return self.primary() };
        let mut left = self.binary(level + 1);
        while let Some(operator) = operators.iter().find(|operator| self.take(operator)) {
            left = Expression::Binary((*operator).to_owned(), Box::new(left), Box::new(self.binary(level + 1)));
        }
        left
    }

    fn primary(&mut self) -> Expression {
        if self.take("(") {
            let inner = self.binary(0);
            self.expect(")");
            return inner;
        }
        if self.take("time()") {
            return Expression::Time;
        }
        if self.take("rate(") {
            let inner = self.primary();
            self.expect(")");
            return Expression::Rate(Box::new(inner));
        }
        if self.take("histogram_quantile(") {
            let quantile = self.primary();
            self.expect(",");
            let inner = self.binary(0);
            self.expect(")");
            return Expression::Quantile(Box::new(quantile), Box::new(inner));
        }
        for name in ["sum", "max"] {
            let before = self.rest;
            if self.take(name) && self.rest.starts_with([' ', '(']) {
                let mut labels = Vec::new();
                if self.take("by (") {
                    let (list, after) = self.rest.split_once(')').unwrap();
                    labels = list.split(',').map(|label| label.trim().to_owned()).collect();
                    self.rest = after;
                }
                self.expect("(");
                let inner = self.binary(0);
                self.expect(")");
                return Expression::Aggregated(name.to_owned(), labels, Box::new(inner));
            }
            self.rest = before;
        }
        let rest = self.rest.trim_start();
        if rest.starts_with(|c: char| c.is_ascii_digit()) {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            self.rest = &rest[end..];
            return Expression::Number(rest[..end].parse().unwrap());
        }
        let (length, matchers) = selector(rest);
        assert!(length > 0, "{rest:?} is not known to this evaluator");
        self.rest = &rest[length..];
        let range = self.rest.starts_with('[').then(|| {
            let (range, after) = self.rest[1..].split_once(']').unwrap();
            self.rest = after;
            seconds(range)
        });
        Expression::Selected(matchers, range)
    }
}

enum Result {
    Scalar(f64),
    Vector(Vec<(Labels, f64)>),
}

/// Evaluates an expression whose result is a vector.
fn vector(expression: &Expression, series: &[Series], at: f64) -> Vec<(Labels, f64)> {
    match evaluate(expression, series, at) {
        Result::Vector(vector) => vector,
        Result::Scalar(_) => panic!("{expression:?} is a number"),
    }
}

fn evaluate(expression: &Expression, series: &[Series], at: f64) -> Result {
    let selected = |matchers: &[Matcher]| {
        let matchers = matchers.to_vec();
        series.iter().filter(move |one| matchers.iter().all(|matcher| matcher.matches(&one.labels)))
    };
    let unnamed = |labels: &Labels| {
        let mut labels = labels.clone();
        labels.remove(NAME);
        labels
    };
    match expression {
        Expression::Number(number) => Result::Scalar(*number),
        Expression::Time => Result::Scalar(at),
        Expression::Selected(matchers, None) => {
            let current = |one: &Series| {
                let (time, value) = *one.samples.iter().rfind(|(time, _)| *time <= at)?;
                (at - time < LOOKBACK).then(|| (one.labels.clone(), value))
            };
            Result::Vector(selected(matchers).filter_map(current).collect())
        }
        Expression::Selected(_, Some(_)) => panic!("a range stands alone"),
        Expression::Rate(inner) => {
            let Expression::Selected(matchers, Some(range)) = &**inner else { panic!("a rate of no range") };
            let rate = |one: &Series| {
                let window: Vec<(f64, f64)> =
                    one.samples.iter().copied().filter(|(time, _)| *time > at - range && *time <= at).collect();
                let [(begun, _), .., (ended, _)] = window[..] else { return None };
                // A counter that began anew has grown from zero.
                let grown = window.windows(2).map(|pair| match pair[1].1 - pair[0].1 {
                    grown if grown < 0.0 => pair[1].1,
                    grown => grown,
                });
                Some((unnamed(&one.labels), grown.sum::<f64>() / (ended - begun)))
            };
            Result::Vector(selected(matchers).filter_map(rate).collect())
        }
        Expression::Quantile(quantile, inner) => {
            let Result::Scalar(quantile) = evaluate(quantile, series, at) else { panic!("a quantile is a number") };
            let mut histograms: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
            for (mut labels, value) in vector(inner, series, at) {
                let bound = labels.remove("le").unwrap();
                let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
                histograms.entry(unnamed(&labels)).or_default().push((bound, value));
            }
            Result::Vector(
                histograms
                    .into_iter()
                    .filter_map(|(labels, buckets)| Some((labels, quantile_of(quantile, buckets)?)))
                    .collect(),
            )
        }
        Expression::Aggregated(name, by, inner) => {
            let mut groups: BTreeMap<Labels, f64> = BTreeMap::new();
            for (labels, value) in vector(inner, series, at) {
                let group = labels.into_iter().filter(|(label, _)| by.contains(label)).collect();
                let so_far = groups.get(&group).copied();
                groups.insert(
                    group,
                    match (so_far, name.as_str()) {
                        (None, _) => value,
                        (Some(before), "sum") => before + value,
                        (Some(before), _) => before.max(value),
                    },
                );
            }
            Result::Vector(groups.into_iter().collect())
        }
        Expression::Binary(operator, left, right) => {
            binary(operator, evaluate(left, series, at), evaluate(right, series, at))
        }
    }
}

fn quantile_of(quantile: f64, mut buckets: Vec<(f64, f64)>) -> Option<f64> {
    buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
    let total = buckets.last()?.1;
    let rank = quantile * total;
    let index = buckets.iter().position(|(_, count)| *count >= rank).filter(|_| total > 0.0)?;
    let (below, seen) = if index == 0 { (0.0, 0.0) } else { buckets[index - 1] };
    let (bound, count) = buckets[index];
    match bound.is_infinite() {
        true => Some(below),
        false => Some(below + (bound - below) * (rank - seen) / (count - seen).max(f64::MIN_POSITIVE)),
    }
}

/// Combines two results, of which vectors are matched by all labels but the name.
fn binary(operator: &str, left: Result, right: Result) -> Result {
    let compute = |one: f64, other: f64| match operator {
        "+" => Some(one + other),
        "-" => Some(one - other),
        "*" => Some(one * other),
        "/" => Some(one / other),
        "==" => (one == other).then_some(one),
        ">=" => (one >= other).then_some(one),
        "<=" => (one <= other).then_some(one),
        ">" => (one > other).then_some(one),
        "<" => (one < other).then_some(one),
        other => panic!("{other}: not between numbers"),
    };
    let is_comparison = ["==", ">=", "<=", ">", "<"].contains(&operator);
    let unnamed = |mut labels: Labels| {
        labels.remove(NAME);
        labels
    };
    let kept = |labels: Labels| if is_comparison { labels } else { unnamed(labels) };
    match (left, right) {
        (Result::Scalar(one), Result::Scalar(other)) => Result::Scalar(compute(one, other).unwrap()),
        (Result::Vector(all), Result::Scalar(other)) => Result::Vector(
            all.into_iter().filter_map(|(labels, one)| Some((kept(labels), compute(one, other)?))).collect(),
        ),
        (Result::Scalar(one), Result::Vector(all)) => Result::Vector(
            all.into_iter().filter_map(|(labels, other)| Some((kept(labels), compute(one, other)?))).collect(),
        ),
        (Result::Vector(left), Result::Vector(right)) => {
            let right: BTreeMap<Labels, f64> =
                right.into_iter().map(|(labels, value)| (unnamed(labels), value)).collect();
            let mut all = Vec::new();
            let mut matched = Vec::new();
            for (labels, one) in left {
                let key = unnamed(labels.clone());
                match (operator, right.get(&key)) {
                    ("or", _) => all.push((labels, one)),
                    ("and", Some(_)) => all.push((labels, one)),
                    ("and", None) | (_, None) => {}
                    (_, Some(other)) => all.extend(compute(one, *other).map(|value| (kept(labels), value))),
                }
                matched.push(key);
            }
            if operator == "or" {
                all.extend(right.into_iter().filter(|(labels, _)| !matched.contains(labels)));
            }
            Result::Vector(all)
        }
    }
}
