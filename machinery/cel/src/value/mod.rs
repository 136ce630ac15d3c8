//! Values, mostly views into JSON: evaluation does not copy an object.
//!
//! The declaration beside a value adds what JSON does not have: that a string is a time, that a list is a set.

pub mod authorization;
mod equality;
mod json;
mod text;
mod time;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use jiff::Timestamp;

use self::authorization::Authorization;
pub use self::equality::{compare, equal};
pub use self::json::{base64, from_json, to_base64, to_json};
pub use self::text::Text;
pub use self::time::{format_duration, format_timestamp, parse_duration};
use crate::error::Error;
use crate::schema::{DYN, Decl, Shape};

/// A value. Its large parts are shared, so that a clone is cheap.
#[derive(Clone)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    Timestamp(Timestamp),
    /// A duration in nanoseconds.
    Duration(i64),
    List(List<'a>),
    Map(Map<'a>),
    Optional(Option<Rc<Value<'a>>>),
    /// A type, by its name.
    Type(Arc<str>),
    /// A value of a library.
    Opaque(Rc<dyn Opaque>),
    /// An authorizer, an authorization check under construction, or its decision.
    Authorization(Rc<Authorization<'a>>),
    /// A message made in the expression: its type and its fields.
    Message(Rc<Message<'a>>),
    /// A value whose fields are computed on demand.
    Lazy(Rc<dyn Fields<'a> + 'a>),
}

/// The type of a message and its fields.
pub type Message<'a> = (Arc<str>, BTreeMap<Arc<str>, Value<'a>>);

/// A value of a library: a quantity, an address, a semantic version.
pub trait Opaque: std::fmt::Debug {
    fn type_name(&self) -> &'static str;
    fn as_any(&self) -> &dyn std::any::Any;
    fn equals(&self, _other: &dyn Opaque) -> bool {
        false
    }
    /// Returns the size that costs depend on, as `size()` would.
    fn size(&self) -> u64 {
        1
    }
    fn to_text(&self) -> Option<String> {
        None
    }
}

/// Fields that are computed on demand.
pub trait Fields<'a> {
    fn field(&self, name: &str) -> Result<Option<Value<'a>>, Error>;
}

#[derive(Clone)]
pub enum List<'a> {
    Json { items: &'a [serde_json::Value], decl: &'a Decl },
    Owned(Rc<Vec<Value<'a>>>),
}

#[derive(Clone)]
pub enum Map<'a> {
    Json { fields: &'a serde_json::Map<String, serde_json::Value>, decl: &'a Decl },
    Owned(Rc<BTreeMap<Key, (Value<'a>, Value<'a>)>>),
}

/// A key of a map. Equal numbers are the same key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Bool(bool),
    Int(i64),
    Uint(u64),
    String(Arc<str>),
}

impl Key {
    pub fn new(value: &Value<'_>) -> Option<Key> {
        match value {
            Value::Bool(b) => Some(Key::Bool(*b)),
            Value::Int(n) => Some(Key::Int(*n)),
            Value::Uint(n) => Some(i64::try_from(*n).map_or(Key::Uint(*n), Key::Int)),
            Value::Double(n) if n.fract() == 0.0 && *n >= i64::MIN as f64 && *n < i64::MAX as f64 => {
                Some(Key::Int(*n as i64))
            }
            Value::String(text) => Some(Key::String(text.shared())),
            _ => None,
        }
    }
}

impl<'a> Value<'a> {
    pub fn string(text: impl Into<Arc<str>>) -> Value<'a> {
        Value::String(Text::Owned(text.into()))
    }

    pub fn borrowed(text: &'a str) -> Value<'a> {
        Value::String(Text::Borrowed(text))
    }

    pub fn list(items: Vec<Value<'a>>) -> Value<'a> {
        Value::List(List::Owned(Rc::new(items)))
    }

    pub fn some(value: Value<'a>) -> Value<'a> {
        Value::Optional(Some(Rc::new(value)))
    }

    pub fn none() -> Value<'a> {
        Value::Optional(None)
    }

    pub fn opaque(value: impl Opaque + 'static) -> Value<'a> {
        Value::Opaque(Rc::new(value))
    }

    /// Makes a value of JSON without a declaration.
    pub fn json(value: &'a serde_json::Value) -> Value<'a> {
        from_json(value, &DYN).unwrap_or(Value::Null)
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the name of its type, as `type()` and errors show it.
    pub fn type_name(&self) -> Arc<str> {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::String(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::List(_) => "list",
            Value::Map(_) | Value::Lazy(_) => "map",
            Value::Optional(_) => "optional_type",
            Value::Type(_) => "type",
            Value::Opaque(opaque) => opaque.type_name(),
            Value::Authorization(value) => value.type_name(),
            Value::Message(message) => return Arc::clone(&message.0),
        }
        .into()
    }

    /// Returns the size for cost calculations: the size of a value that has one, else 1.
    pub fn size(&self) -> u64 {
        match self {
            Value::String(text) => text.chars().count() as u64,
            Value::Bytes(bytes) => bytes.len() as u64,
            Value::List(list) => list.len() as u64,
            Value::Map(map) => map.len() as u64,
            Value::Optional(Some(inner)) => inner.size(),
            Value::Opaque(opaque) => opaque.size(),
            _ => 1,
        }
    }

    /// Reports whether `optional.ofNonZeroValue` treats it as empty.
    pub fn is_zero(&self) -> bool {
        match self {
            Value::Null => true,
            Value::Bool(b) => !b,
            Value::Int(n) => *n == 0,
            Value::Uint(n) => *n == 0,
            Value::Double(n) => *n == 0.0,
            Value::String(text) => text.is_empty(),
            Value::Bytes(bytes) => bytes.is_empty(),
            Value::Duration(nanos) => *nanos == 0,
            Value::List(list) => list.is_empty(),
            Value::Map(map) => map.is_empty(),
            Value::Optional(inner) => inner.as_ref().is_none_or(|inner| inner.is_zero()),
            Value::Message(message) => message.1.is_empty(),
            Value::Timestamp(_) | Value::Type(_) | Value::Opaque(_) | Value::Authorization(_) | Value::Lazy(_) => false,
        }
    }

    /// Returns a field; `None` if it is absent, an error if the value has no fields.
    pub fn field(&self, name: &str) -> Result<Option<Value<'a>>, Error> {
        match self {
            Value::Map(map) => map.get_field(name),
            Value::Message(message) => Ok(message.1.get(name).cloned()),
            Value::Lazy(fields) => fields.field(name),
            _ => Err(Error::NoSuchOverload(String::new())),
        }
    }
}

impl<'a> List<'a> {
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        match self {
            List::Json { items, .. } => items.len(),
            List::Owned(items) => items.len(),
        }
    }

    pub fn get(&self, index: usize) -> Option<Result<Value<'a>, Error>> {
        match self {
            List::Json { items, decl } => items.get(index).map(|item| from_json(item, decl.item())),
            List::Owned(items) => items.get(index).cloned().map(Ok),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, Error>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    pub fn values(&self) -> Result<Vec<Value<'a>>, Error> {
        self.iter().collect()
    }

    /// Returns the declaration of a declared list.
    pub fn decl(&self) -> Option<&'a Decl> {
        match self {
            List::Json { decl, .. } => Some(decl),
            List::Owned(_) => None,
        }
    }
}

impl<'a> Map<'a> {
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        match self {
            Map::Json { fields, .. } => fields.len(),
            Map::Owned(entries) => entries.len(),
        }
    }

    /// Returns a field by its name in expressions, which is escaped if the declaration has fields.
    fn get_field(&self, name: &str) -> Result<Option<Value<'a>>, Error> {
        match self {
            Map::Json { fields, decl } => {
                // A null field of an object counts as absent; a null value of a map does not.
                let is_object = matches!(decl.shape, Shape::Object { .. });
                let (key, decl) = decl.field(name);
                let found = fields.get(key.unwrap_or(name)).filter(|value| !(is_object && value.is_null()));
                found.map(|value| from_json(value, decl)).transpose()
            }
            Map::Owned(entries) => Ok(entries.get(&Key::String(name.into())).map(|(_, value)| value.clone())),
        }
    }

    pub fn get(&self, key: &Value<'_>) -> Result<Option<Value<'a>>, Error> {
        match self {
            Map::Json { .. } => match key {
                Value::String(name) => self.get_field(name),
                _ => Ok(None),
            },
            Map::Owned(entries) => Ok(Key::new(key).and_then(|key| entries.get(&key)).map(|(_, value)| value.clone())),
        }
    }

    pub fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Map::Json { fields, .. } => fields.keys().map(|key| Value::borrowed(key)).collect(),
            Map::Owned(entries) => entries.values().map(|(key, _)| key.clone()).collect(),
        }
    }

    /// Returns keys and values; a declared value that does not convert is an error.
    pub fn entries(&self) -> Result<Vec<(Value<'a>, Value<'a>)>, Error> {
        match self {
            Map::Json { fields, decl } => {
                let value = |(key, value): (&'a String, &'a serde_json::Value)| {
                    Ok((Value::borrowed(key), from_json(value, decl.value_of(key))?))
                };
                fields.iter().map(value).collect()
            }
            Map::Owned(entries) => Ok(entries.values().cloned().collect()),
        }
    }
}

impl std::fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match to_json(self) {
            Ok(json) => write!(f, "{json}"),
            Err(_) => write!(f, "<{}>", self.type_name()),
        }
    }
}
