//! A span: a named time in one process, with its parent.

use jiff::Timestamp;

use crate::Context;

/// The role of a span in a call between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Internal = 1,
    Server = 2,
    Client = 3,
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    Text(String),
    Number(i64),
}

/// A named fact about a span or a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    pub key: &'static str,
    pub value: AttributeValue,
}

impl Attribute {
    pub fn text(key: &'static str, value: impl Into<String>) -> Attribute {
        Attribute { key, value: AttributeValue::Text(value.into()) }
    }

    pub fn number(key: &'static str, value: i64) -> Attribute {
        Attribute { key, value: AttributeValue::Number(value) }
    }
}

/// A moment of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub time: Timestamp,
    pub name: String,
    pub attributes: Vec<Attribute>,
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub context: Context,
    /// The id of the span above it; 0 for the first of a trace.
    pub parent: u64,
    pub name: String,
    pub kind: Kind,
    pub start: Timestamp,
    pub end: Timestamp,
    pub attributes: Vec<Attribute>,
    pub events: Vec<Event>,
    /// The span of a client that is not trusted to decide on sampling.
    pub link: Option<Context>,
    /// The message of a failure.
    pub error: Option<String>,
}
