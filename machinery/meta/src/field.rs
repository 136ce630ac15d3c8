//! Field paths and field errors: the messages of validation about one field, in upstream's words.

use crate::go::float;
use crate::quote::quote;
use serde_json::Value;
use std::fmt;

/// A path to a field: `spec.containers[0].env[PATH]`. The empty path prints as `<nil>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    pub fn root(name: impl AsRef<str>) -> Path {
        Path(name.as_ref().to_owned())
    }

    /// Returns the path of the field `name`.
    pub fn child(&self, name: impl AsRef<str>) -> Path {
        let name = name.as_ref();
        // Upstream writes a field without a name as the entry of a map.
        if name.is_empty() {
            return self.key("");
        }
        // Validation makes a path for every field, so this avoids `format!`.
        if self.0.is_empty() { Path(name.to_owned()) } else { Path([&self.0, ".", name].concat()) }
    }

    /// Returns the path of the element `index` of a list.
    pub fn index(&self, index: usize) -> Path {
        Path(format!("{}[{index}]", self.0))
    }

    /// Returns the path of the entry `key` of a map.
    pub fn key(&self, key: impl AsRef<str>) -> Path {
        Path([&self.0, "[", key.as_ref(), "]"].concat())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooShort,
    TooMany,
    Internal,
    TypeInvalid,
}

impl ErrorKind {
    /// Returns the phrase that the message uses.
    pub fn text(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "Not found",
            ErrorKind::Required => "Required value",
            ErrorKind::Duplicate => "Duplicate value",
            ErrorKind::Invalid | ErrorKind::TypeInvalid => "Invalid value",
            ErrorKind::NotSupported => "Unsupported value",
            ErrorKind::Forbidden => "Forbidden",
            ErrorKind::TooLong => "Too long",
            ErrorKind::TooShort => "Too short",
            ErrorKind::TooMany => "Too many",
            ErrorKind::Internal => "Internal error",
        }
    }

    /// Returns the reason of the status cause.
    pub fn reason(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "FieldValueNotFound",
            ErrorKind::Required => "FieldValueRequired",
            ErrorKind::Duplicate => "FieldValueDuplicate",
            ErrorKind::Invalid => "FieldValueInvalid",
            ErrorKind::NotSupported => "FieldValueNotSupported",
            ErrorKind::Forbidden => "FieldValueForbidden",
            ErrorKind::TooLong => "FieldValueTooLong",
            ErrorKind::TooShort => "FieldValueTooShort",
            ErrorKind::TooMany => "FieldValueTooMany",
            ErrorKind::Internal => "InternalError",
            ErrorKind::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    /// Reports whether the message repeats the invalid value.
    fn shows_value(self) -> bool {
        !matches!(
            self,
            ErrorKind::Required | ErrorKind::Forbidden | ErrorKind::TooLong | ErrorKind::TooShort | ErrorKind::Internal
        )
    }
}

/// One invalid field.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    pub kind: ErrorKind,
    pub field: String,
    pub value: Value,
    /// Whether the message leaves the value out, because it is long or of no use.
    pub value_omitted: bool,
    /// The value as the message shows it, if that is not its JSON.
    pub printed: Option<String>,
    pub detail: String,
}

impl FieldError {
    fn new(kind: ErrorKind, path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
        let field = path.to_string();
        let value = value.into();
        FieldError { kind, field, value, value_omitted: false, printed: None, detail: detail.into() }
    }

    pub fn required(path: &Path, detail: impl Into<String>) -> FieldError {
        FieldError::new(ErrorKind::Required, path, "", detail)
    }
    pub fn invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
        FieldError::new(ErrorKind::Invalid, path, value, detail)
    }
    /// Makes an error whose message does not repeat the invalid value.
    pub fn invalid_omitted(path: &Path, detail: impl Into<String>) -> FieldError {
        FieldError { value_omitted: true, ..FieldError::new(ErrorKind::Invalid, path, Value::Null, detail) }
    }
    pub fn type_invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
        FieldError::new(ErrorKind::TypeInvalid, path, value, detail)
    }
    pub fn not_found(path: &Path, value: impl Into<Value>) -> FieldError {
        FieldError::new(ErrorKind::NotFound, path, value, "")
    }
    pub fn duplicate(path: &Path, value: impl Into<Value>) -> FieldError {
        FieldError::new(ErrorKind::Duplicate, path, value, "")
    }
    pub fn forbidden(path: &Path, detail: impl Into<String>) -> FieldError {
        FieldError::new(ErrorKind::Forbidden, path, "", detail)
    }
    pub fn internal(path: &Path, detail: impl Into<String>) -> FieldError {
        FieldError::new(ErrorKind::Internal, path, Value::Null, detail)
    }

    pub fn not_supported(path: &Path, value: impl Into<Value>, supported: &[&str]) -> FieldError {
        let quoted: Vec<String> = supported.iter().map(quote).collect();
        let detail = if quoted.is_empty() { String::new() } else { format!("supported values: {}", quoted.join(", ")) };
        FieldError::new(ErrorKind::NotSupported, path, value, detail)
    }

    pub fn too_long(path: &Path, max_bytes: usize) -> FieldError {
        let detail = format!("may not be more than {}", counted(max_bytes, "byte"));
        FieldError::new(ErrorKind::TooLong, path, "<value omitted>", detail)
    }
    pub fn too_short(path: &Path, min: usize) -> FieldError {
        FieldError::new(ErrorKind::TooShort, path, "", format!("must be at least {}", counted(min, "character")))
    }
    pub fn too_many(path: &Path, actual: usize, max: usize) -> FieldError {
        FieldError::new(ErrorKind::TooMany, path, actual, format!("must have at most {}", counted(max, "item")))
    }

    /// Shows the value as JSON: upstream has a type of its own for this string.
    pub fn as_json(self) -> FieldError {
        FieldError { printed: Some(shown(&self.value)), ..self }
    }

    /// Shows the value as a plain string, where upstream has no type of its own for it.
    pub fn as_text(self) -> FieldError {
        FieldError { printed: self.value.as_str().map(quote), ..self }
    }

    /// Reports whether the message repeats the value.
    pub fn shows_value(&self) -> bool {
        self.kind.shows_value() && !self.value_omitted
    }

    /// Returns the message without the field's path: the message of a status cause.
    pub fn body(&self) -> String {
        let mut text = self.kind.text().to_owned();
        if self.shows_value() {
            text.push_str(": ");
            match (&self.printed, &self.value) {
                (Some(printed), _) => text.push_str(printed),
                (None, Value::String(value)) if self.kind != ErrorKind::NotSupported => text.push_str(&quote(value)),
                (None, Value::Number(n)) if n.as_i64().is_none() => {
                    text.push_str(&float(n.as_f64().unwrap_or_default()));
                }
                (None, other) => text.push_str(&shown(other)),
            }
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

impl std::error::Error for FieldError {}

/// Returns a value as Go writes it to JSON: safe inside of HTML.
pub fn shown(value: &Value) -> String {
    let mut json = Vec::new();
    crate::codec::write_value(&mut json, value);
    String::from_utf8_lossy(&crate::codec::escaped(&json)).into_owned()
}

fn counted(count: usize, unit: &str) -> String {
    if count == 1 { format!("1 {unit}") } else { format!("{count} {unit}s") }
}

/// Joins several errors into one message: `[a, b]` without repeats. A single error has no brackets; no errors are
/// `None`.
pub fn aggregate(errors: &[impl ToString]) -> Option<String> {
    let mut messages: Vec<String> = Vec::new();
    for error in errors {
        let message = error.to_string();
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    match messages.len() {
        0 => None,
        1 => messages.pop(),
        _ => Some(format!("[{}]", messages.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths() {
        let path = Path::root("spec").child("containers").index(0).child("env").key("A");
        assert_eq!(path.to_string(), "spec.containers[0].env[A]");
        assert_eq!(Path::default().to_string(), "<nil>");
        assert_eq!(Path::default().child("key").to_string(), "key");
        assert_eq!(Path::root("capacity").child("").to_string(), "capacity[]");
    }

    #[test]
    fn messages_are_upstreams() {
        let p = Path::root("spec").child("x");
        for (error, expected) in [
            (FieldError::required(&p, ""), "spec.x: Required value"),
            (FieldError::required(&p, "must be set"), "spec.x: Required value: must be set"),
            (FieldError::invalid(&p, "a\"b", "bad"), r#"spec.x: Invalid value: "a\"b": bad"#),
            (FieldError::invalid(&p, 1.0, "bad"), "spec.x: Invalid value: 1: bad"),
            (FieldError::invalid(&p, 1e10, "bad"), "spec.x: Invalid value: 1e+10: bad"),
            (FieldError::invalid(&p, 0.00001, "bad"), "spec.x: Invalid value: 1e-05: bad"),
            (FieldError::invalid(&p, u64::MAX, "bad"), "spec.x: Invalid value: 1.8446744073709552e+19: bad"),
            (FieldError::invalid(&p, json!({"a": [1]}), "bad"), r#"spec.x: Invalid value: {"a":[1]}: bad"#),
            (FieldError::invalid(&p, Value::Null, "bad"), "spec.x: Invalid value: null: bad"),
            (
                FieldError::not_supported(&p, "c", &["a", "b"]),
                r#"spec.x: Unsupported value: "c": supported values: "a", "b""#,
            ),
            (FieldError::invalid(&p, "<a>", "bad"), r#"spec.x: Invalid value: "<a>": bad"#),
            (FieldError::invalid(&p, json!(["<&>"]), "bad"), r#"spec.x: Invalid value: ["\u003c\u0026\u003e"]: bad"#),
            (
                FieldError::invalid(&p, "<\u{1}>", "bad").as_json(),
                r#"spec.x: Invalid value: "\u003c\u0001\u003e": bad"#,
            ),
            (FieldError::not_supported(&p, "<\u{1}>", &[]).as_text(), r#"spec.x: Unsupported value: "<\x01>""#),
            (FieldError::not_supported(&p, "<a>", &[]), r#"spec.x: Unsupported value: "\u003ca\u003e""#),
            (FieldError::invalid_omitted(&p, "bad"), "spec.x: Invalid value: bad"),
            (FieldError::duplicate(&p, "a"), r#"spec.x: Duplicate value: "a""#),
            (FieldError::not_found(&p, "a"), r#"spec.x: Not found: "a""#),
            (FieldError::forbidden(&p, "no"), "spec.x: Forbidden: no"),
            (FieldError::too_long(&p, 63), "spec.x: Too long: may not be more than 63 bytes"),
            (FieldError::too_many(&p, 5, 1), "spec.x: Too many: 5: must have at most 1 item"),
            (FieldError::internal(&p, "boom"), "spec.x: Internal error: boom"),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }
}
