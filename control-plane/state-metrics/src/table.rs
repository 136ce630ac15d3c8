//! The table of families, `schema/state.tbl`.

use std::net::IpAddr;

use crate::malformed::Malformed;
use crate::path::{Path, Scope, string};
use crate::value::Expression;

const TABLE: &str = include_str!("../schema/state.tbl");

/// A resource and its families.
#[derive(Debug)]
pub struct Kind {
    pub group: String,
    pub version: String,
    pub plural: String,
    /// The labels of all series.
    pub labels: Vec<Label>,
    pub families: Vec<Family>,
}

#[derive(Debug)]
pub struct Family {
    pub name: String,
    /// `gauge` or `counter`.
    pub kind: String,
    pub help: String,
    pub rules: Vec<Rule>,
}

/// A rule that makes series of an object.
#[derive(Debug)]
pub struct Rule {
    pub value: Expression,
    pub each: Vec<Path>,
    /// Whether a series is made where there is no item.
    pub at_least_one: bool,
    pub condition: Option<Condition>,
    pub labels: Vec<Label>,
    /// The label with a series for each value.
    pub choice: Option<Choice>,
}

#[derive(Debug)]
pub struct Condition {
    pub path: Path,
    pub negated: bool,
}

#[derive(Debug)]
pub struct Label {
    pub name: String,
    sources: Vec<Source>,
}

#[derive(Debug)]
enum Source {
    Path(Path),
    Family(Path),
    Constant(String),
}

#[derive(Debug)]
pub struct Choice {
    pub label: String,
    pub path: Path,
    pub values: Vec<String>,
}

/// Reads the table.
pub fn kinds() -> Result<Vec<Kind>, Malformed> {
    let mut kinds: Vec<Kind> = Vec::new();
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let misplaced = || Malformed(format!("misplaced line: {line}"));
        if let Some(kind) = line.strip_prefix("kind ") {
            kinds.push(Kind::parse(kind)?);
        } else if let Some(family) = line.strip_prefix("family ") {
            kinds.last_mut().ok_or_else(misplaced)?.families.push(Family::parse(family)?);
        } else {
            let family = kinds.last_mut().and_then(|kind| kind.families.last_mut());
            family.ok_or_else(misplaced)?.rules.push(Rule::parse(line.trim())?);
        }
    }
    Ok(kinds)
}

impl Kind {
    fn parse(text: &str) -> Result<Kind, Malformed> {
        let mut words = text.split(' ');
        let (Some(group_version), Some(plural)) = (words.next(), words.next()) else {
            return Err(Malformed(format!("the kind {text}")));
        };
        let (group, version) = group_version.rsplit_once('/').unwrap_or(("", group_version));
        Ok(Kind {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            labels: words.map(Label::parse).collect::<Result<_, _>>()?,
            families: Vec::new(),
        })
    }
}

impl Family {
    fn parse(text: &str) -> Result<Family, Malformed> {
        let mut words = text.splitn(3, ' ').map(str::to_owned);
        match (words.next(), words.next(), words.next()) {
            (Some(name), Some(kind), Some(help)) => Ok(Family { name, kind, help, rules: Vec::new() }),
            _ => Err(Malformed(format!("the family {text}"))),
        }
    }
}

impl Rule {
    pub fn parse(text: &str) -> Result<Rule, Malformed> {
        let mut words = text.split(' ');
        let mut rule = Rule {
            value: Expression::parse(words.next().unwrap_or_default())?,
            each: Vec::new(),
            at_least_one: false,
            condition: None,
            labels: Vec::new(),
            choice: None,
        };
        while let Some(word) = words.next() {
            let mut path = || Path::parse(words.next().unwrap_or_default());
            match word {
                "each" => rule.each.push(path()?),
                "each?" => {
                    rule.each.push(path()?);
                    rule.at_least_one = true;
                }
                "if" => rule.condition = Some(Condition { path: path()?, negated: false }),
                "if-not" => rule.condition = Some(Condition { path: path()?, negated: true }),
                label if label.contains('|') => rule.choice = Some(Choice::parse(label)?),
                label => rule.labels.push(Label::parse(label)?),
            }
        }
        Ok(rule)
    }
}

impl Condition {
    /// Reports whether series are made in a scope.
    pub fn holds(&self, scope: Scope<'_>) -> bool {
        let set = self.path.first(scope).is_some_and(|value| *value != false);
        set != self.negated
    }
}

impl Choice {
    fn parse(text: &str) -> Result<Choice, Malformed> {
        let (label, rest) = text.split_once('=').ok_or_else(|| Malformed(format!("the label {text}")))?;
        let mut words = rest.split('|');
        let path = Path::parse(words.next().unwrap_or_default())?;
        Ok(Choice { label: label.to_owned(), path, values: words.map(str::to_owned).collect() })
    }
}

impl Label {
    fn parse(text: &str) -> Result<Label, Malformed> {
        let (name, sources) = text.split_once('=').ok_or_else(|| Malformed(format!("the label {text}")))?;
        let sources = sources.split(',').map(Source::parse).collect::<Result<_, _>>()?;
        Ok(Label { name: name.to_owned(), sources })
    }

    /// Returns the value of the label: that of the first alternative that is set.
    pub fn value(&self, scope: Scope<'_>) -> String {
        if scope.item.is_none() && self.sources.first().is_some_and(Source::is_of_item) {
            return String::new();
        }
        let values = self.sources.iter().map(|source| source.value(scope));
        values.into_iter().find(|value| !value.is_empty()).unwrap_or_default()
    }
}

impl Source {
    fn parse(text: &str) -> Result<Source, Malformed> {
        if let Some(constant) = text.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
            return Ok(Source::Constant(constant.to_owned()));
        }
        match text.strip_prefix("family(").and_then(|rest| rest.strip_suffix(')')) {
            Some(path) => Ok(Source::Family(Path::parse(path)?)),
            None => Ok(Source::Path(Path::parse(text)?)),
        }
    }

    fn is_of_item(&self) -> bool {
        matches!(self, Source::Path(path) if path.base != crate::path::Base::Object)
    }

    fn value(&self, scope: Scope<'_>) -> String {
        match self {
            Source::Path(path) => string(path.first(scope)),
            Source::Constant(constant) => constant.clone(),
            Source::Family(path) => match string(path.first(scope)).parse() {
                Ok(IpAddr::V4(_)) => "4".to_owned(),
                Ok(IpAddr::V6(_)) => "6".to_owned(),
                Err(_) => String::new(),
            },
        }
    }
}
