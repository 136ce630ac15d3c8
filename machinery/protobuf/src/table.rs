//! The table of field numbers, read once at first use.

use std::collections::HashMap;
use std::sync::OnceLock;

const TABLE: &str = include_str!("wire.tbl");
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The type of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    String,
    Int,
    Bool,
    Double,
    Bytes,
    Quantity,
    IntOrString,
    Time,
    MicroTime,
    /// JSON as bytes inside a message.
    Json,
    /// A message that only wraps a list of strings.
    Strings,
    Message(String),
}

/// The cardinality of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Always written, so its zero value means absent.
    Plain,
    /// Written only if set, so its zero value counts.
    Optional,
    Repeated,
    Map,
}

#[derive(Clone, Debug)]
pub struct Field {
    pub number: u64,
    /// Empty for a message whose fields belong to its parent.
    pub name: String,
    pub shape: Shape,
    pub kind: Type,
}

pub type Messages = HashMap<String, Vec<Field>>;

/// Returns all messages, by the type's name in the schema.
pub fn messages() -> &'static Messages {
    static MESSAGES: OnceLock<Messages> = OnceLock::new();
    MESSAGES.get_or_init(read)
}

fn read() -> Messages {
    let mut messages = Messages::new();
    let mut package = "";
    let mut current = String::new();
    for line in TABLE.lines().filter(|l| !l.starts_with('#')) {
        if let Some(name) = line.strip_prefix("package ") {
            package = name;
        } else if let Some(field) = line.strip_prefix(' ') {
            if let (Some(field), Some(fields)) = (read_field(field, package), messages.get_mut(&current)) {
                fields.push(field);
            }
        } else {
            current = format!("{package}.{line}");
            messages.insert(current.clone(), Vec::new());
        }
    }
    messages
}

fn read_field(line: &str, package: &str) -> Option<Field> {
    let mut words = line.split(' ');
    let number = words.next()?.parse().ok()?;
    let name = words.next().filter(|name| *name != "<").unwrap_or_default().to_owned();
    let code = words.next()?;
    let (shape, code) = match code.as_bytes().first()? {
        b'*' => (Shape::Optional, &code[1..]),
        b'[' => (Shape::Repeated, &code[1..]),
        b'{' => (Shape::Map, &code[1..]),
        _ => (Shape::Plain, code),
    };
    // A pointer inside a list is still one element.
    let code = code.trim_start_matches('*');
    let kind = match code {
        "string" => Type::String,
        "int" => Type::Int,
        "bool" => Type::Bool,
        "double" => Type::Double,
        "bytes" => Type::Bytes,
        "quantity" => Type::Quantity,
        "intorstring" => Type::IntOrString,
        "time" => Type::Time,
        "microtime" => Type::MicroTime,
        "json" => Type::Json,
        "strings" => Type::Strings,
        message => Type::Message(message_name(message.strip_prefix('&')?, package)),
    };
    Some(Field { number, name, shape, kind })
}

fn message_name(name: &str, package: &str) -> String {
    match name.strip_prefix('~') {
        Some(name) => format!("{META}.{name}"),
        None if name.contains('.') => name.to_owned(),
        None => format!("{package}.{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_that_is_named_exists() {
        let messages = messages();
        assert!(messages.len() > 400, "{}", messages.len());
        for (name, fields) in messages {
            for field in fields {
                if let Type::Message(message) = &field.kind {
                    assert!(messages.contains_key(message), "{name}.{} is a {message}", field.name);
                }
            }
        }
    }

    #[test]
    fn every_stored_kind_has_a_message() {
        for kind in corten_api::kinds() {
            assert!(messages().contains_key(&kind.schema), "{}", kind.schema);
        }
    }
}
