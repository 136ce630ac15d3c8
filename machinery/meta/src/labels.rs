//! Label selectors: parsed from a query (`a=b,c in (d,e),!f`) or made from a `LabelSelector` object, matched against
//! the labels of an object.

use crate::Error;
use crate::field::{FieldError, Path, aggregate};
use crate::names::{label_value, qualified_name};
use crate::quote::quote;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The operator that relates a requirement's key to its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    Equals,
    DoubleEquals,
    NotEquals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// One term of a selector.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

/// A conjunction of requirements, or the selector that matches nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Selector {
    /// The requirements; `None` matches nothing.
    requirements: Option<Vec<Requirement>>,
}

impl Selector {
    /// Makes the selector that matches every object.
    pub fn everything() -> Selector {
        Selector { requirements: Some(Vec::new()) }
    }

    /// Makes the selector that matches no object.
    pub fn nothing() -> Selector {
        Selector { requirements: None }
    }

    /// Parses a `labelSelector` query parameter.
    pub fn parse(text: &str) -> Result<Selector, Error> {
        let mut requirements = Parser::new(text).parse()?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Selector { requirements: Some(requirements) })
    }

    /// Makes a selector from a `LabelSelector`: null or absent matches nothing, an empty one everything.
    pub fn from_label_selector(selector: &Value) -> Result<Selector, Error> {
        if selector.is_null() {
            return Ok(Selector::nothing());
        }
        let mut requirements = Vec::new();
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let value = value.as_str().unwrap_or_default().to_owned();
            requirements.push(Requirement::new(key, Operator::Equals, vec![value])?);
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            requirements.push(requirement_of(expression)?);
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Selector { requirements: Some(requirements) })
    }

    /// Makes a selector of the objects that have all of these labels, unvalidated: the selector of a Service or of a
    /// ReplicationController. An empty set matches everything.
    pub fn from_set(labels: &BTreeMap<String, String>) -> Selector {
        let requirement = |(key, value): (&String, &String)| Requirement {
            key: key.clone(),
            operator: Operator::Equals,
            values: vec![value.clone()],
        };
        Selector { requirements: Some(labels.iter().map(requirement).collect()) }
    }

    /// Adds a requirement.
    pub fn and(mut self, requirement: Requirement) -> Selector {
        if let Some(requirements) = &mut self.requirements {
            requirements.push(requirement);
            requirements.sort_by(|a, b| a.key.cmp(&b.key));
        }
        self
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.as_ref().is_some_and(|all| all.iter().all(|r| r.matches(labels)))
    }

    /// Reports whether the selector has no requirements. The selector that matches nothing is not empty.
    pub fn is_empty(&self) -> bool {
        self.requirements.as_ref().is_some_and(Vec::is_empty)
    }

    /// Reports whether this is the selector that matches nothing.
    pub fn is_nothing(&self) -> bool {
        self.requirements.is_none()
    }

    pub fn requirements(&self) -> &[Requirement] {
        self.requirements.as_deref().unwrap_or_default()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements().iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Selector {
    type Err = Error;
    fn from_str(text: &str) -> Result<Selector, Error> {
        Selector::parse(text)
    }
}

fn requirement_of(expression: &Value) -> Result<Requirement, Error> {
    let text = |key: &str| expression.get(key).and_then(Value::as_str).unwrap_or_default();
    let operator = match text("operator") {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        other => return Err(Error::Selector(format!("{} is not a valid label selector operator", quote(other)))),
    };
    let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
    let values = values.filter_map(Value::as_str).map(str::to_owned).collect();
    Requirement::new(text("key"), operator, values)
}

impl Requirement {
    /// Makes a validated requirement; the error lists all problems.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Requirement, Error> {
        let path = Path::default().child("values");
        let mut errors: Vec<FieldError> = validate_key(key, &Path::default().child("key")).into_iter().collect();
        let count_error = match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                Some("for 'in', 'notin' operators, values set can't be empty")
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
                Some("exact-match compatibility requires one single value")
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                Some("values set must be empty for exists and does not exist")
            }
            Operator::GreaterThan | Operator::LessThan if values.len() != 1 => {
                Some("for 'Gt', 'Lt' operators, exactly one value is required")
            }
            _ => None,
        };
        errors.extend(count_error.map(|detail| FieldError::invalid(&path, json!(values), detail)));
        if matches!(operator, Operator::GreaterThan | Operator::LessThan) {
            let odd = values.iter().enumerate().filter(|(_, v)| v.parse::<i64>().is_err());
            errors.extend(odd.map(|(index, value)| {
                let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                FieldError::invalid(&path.index(index), value.as_str(), detail)
            }));
        }
        for (index, value) in values.iter().enumerate() {
            let problems = label_value(value);
            if !problems.is_empty() {
                errors.push(FieldError::invalid(&path.index(index).key(key), value.as_str(), problems.join("; ")));
            }
        }
        match aggregate(&errors) {
            Some(text) => Err(Error::Selector(text)),
            None => Ok(Requirement { key: key.to_owned(), operator, values }),
        }
    }

    pub fn key(&self) -> &str {
        &self.key
    }
    pub fn operator(&self) -> Operator {
        self.operator
    }
    pub fn values(&self) -> &[String] {
        &self.values
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let label = labels.get(&self.key);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => {
                label.is_some_and(|label| self.values.contains(label))
            }
            Operator::NotIn | Operator::NotEquals => !label.is_some_and(|label| self.values.contains(label)),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => self.compare(label).is_some_and(|(label, value)| label > value),
            Operator::LessThan => self.compare(label).is_some_and(|(label, value)| label < value),
        }
    }

    fn compare(&self, label: Option<&String>) -> Option<(i64, i64)> {
        Some((label?.parse().ok()?, self.values.first()?.parse().ok()?))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.operator {
            Operator::DoesNotExist => return write!(f, "!{}", self.key),
            Operator::Exists => return f.write_str(&self.key),
            Operator::Equals => "=",
            Operator::DoubleEquals => "==",
            Operator::NotEquals => "!=",
            Operator::GreaterThan => ">",
            Operator::LessThan => "<",
            Operator::In => " in ",
            Operator::NotIn => " notin ",
        };
        let mut values = self.values.clone();
        values.sort_unstable();
        let values = values.join(",");
        match self.operator {
            Operator::In | Operator::NotIn => write!(f, "{}{sign}({values})", self.key),
            _ => write!(f, "{}{sign}{values}", self.key),
        }
    }
}

fn validate_key(key: &str, path: &Path) -> Option<FieldError> {
    let problems = qualified_name(key);
    (!problems.is_empty()).then(|| FieldError::invalid(path, key, problems.join("; ")))
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    /// A key or a value; `in` and `notin` are also words, and operators only where an operator is expected.
    Word(String),
    /// One of `) , ! == = > < != (`.
    Symbol(&'static str),
    End,
}

impl Token {
    fn literal(&self) -> &str {
        match self {
            Token::Word(text) => text,
            Token::Symbol(symbol) => symbol,
            Token::End => "",
        }
    }
}

const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

fn scan(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if rest.is_empty() {
            tokens.push(Token::End);
            return tokens;
        }
        if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            tokens.push(Token::Symbol(symbol));
            rest = &rest[symbol.len()..];
            continue;
        }
        let end = rest.find(|c: char| " \t\r\n=!(),><".contains(c)).unwrap_or(rest.len());
        tokens.push(Token::Word(rest[..end].to_owned()));
        rest = &rest[end..];
    }
}

/// A recursive descent parser with upstream's error messages.
struct Parser {
    tokens: Vec<Token>,
    position: usize,
}

impl Parser {
    fn new(text: &str) -> Parser {
        Parser { tokens: scan(text), position: 0 }
    }

    fn peek(&self) -> Token {
        self.tokens.get(self.position).cloned().unwrap_or(Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.peek();
        self.position += 1;
        token
    }

    fn parse(mut self) -> Result<Vec<Requirement>, Error> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::End => return Ok(requirements),
                Token::Word(_) | Token::Symbol("!") => {}
                other => return Err(found(&other, ", expected: !, identifier, or 'end of string'")),
            }
            let requirement =
                self.requirement().map_err(|e| Error::Selector(format!("unable to parse requirement: {e}")))?;
            requirements.push(requirement);
            match self.next() {
                Token::End => return Ok(requirements),
                Token::Symbol(",") => match self.peek() {
                    Token::Word(_) | Token::Symbol("!") => {}
                    other => return Err(found(&other, ", expected: identifier after ','")),
                },
                other => return Err(found(&other, ", expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, Error> {
        let mut token = self.next();
        let negated = token == Token::Symbol("!");
        if negated {
            token = self.next();
        }
        let Token::Word(key) = token else {
            return Err(found(&token, ", expected: identifier"));
        };
        if let Some(error) = validate_key(&key, &Path::default()) {
            return Err(Error::Selector(error.to_string()));
        }
        if negated {
            return Requirement::new(&key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Requirement::new(&key, Operator::Exists, Vec::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        Requirement::new(&key, operator, values)
    }

    fn operator(&mut self) -> Result<Operator, Error> {
        let token = self.next();
        Ok(match token.literal() {
            "in" => Operator::In,
            "notin" => Operator::NotIn,
            "=" => Operator::Equals,
            "==" => Operator::DoubleEquals,
            "!=" => Operator::NotEquals,
            ">" => Operator::GreaterThan,
            "<" => Operator::LessThan,
            _ => return Err(found(&token, ", expected: in, notin, =, ==, !=, gt, lt")),
        })
    }

    fn exact_value(&mut self) -> Result<String, Error> {
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Ok(String::new());
        }
        match self.next() {
            Token::Word(value) => Ok(value),
            other => Err(found(&other, ", expected: identifier")),
        }
    }

    /// Reads `(a,b,)`: an omitted element is the empty value. The values are sorted and without repeats.
    fn values(&mut self) -> Result<Vec<String>, Error> {
        let open = self.next();
        if open != Token::Symbol("(") {
            return Err(found(&open, " expected: '('"));
        }
        let mut values = BTreeSet::new();
        if self.peek() == Token::Symbol(")") {
            self.next();
            return Ok(vec![String::new()]);
        }
        if !matches!(self.peek(), Token::Word(_) | Token::Symbol(",")) {
            return Err(found(&self.peek(), ", expected: ',', ')' or identifier"));
        }
        let mut value_expected = true;
        loop {
            match self.next() {
                Token::Word(value) if value_expected => {
                    values.insert(value);
                    value_expected = false;
                    if !matches!(self.peek(), Token::Symbol("," | ")")) {
                        return Err(found(&self.peek(), ", expected: ',' or ')'"));
                    }
                }
                Token::Symbol(symbol @ ("," | ")")) => {
                    if value_expected {
                        values.insert(String::new());
                    }
                    if symbol == ")" {
                        return Ok(values.into_iter().collect());
                    }
                    value_expected = true;
                }
                other => return Err(found(&other, ", expected: ',', or identifier")),
            }
        }
    }
}

fn found(token: &Token, expected: &str) -> Error {
    Error::Selector(format!("found '{}'{expected}", token.literal()))
}
