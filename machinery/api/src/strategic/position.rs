//! The position of a merge: the type of the map whose entries are being merged, in the words of upstream's structs.

use corten_meta::Value;
use corten_meta::quote::quote;

use super::error;
use crate::Error;
use crate::schema::{Field, FieldType, Type, schema};

/// The kind of an object in Go's words.
pub(super) const MAP: &str = "map[string]interface {}";

/// The type of the map that is being merged.
#[derive(Clone, Copy)]
pub(super) struct Position<'a> {
    of: Of<'a>,
    is_pointer: bool,
}

#[derive(Clone, Copy)]
enum Of<'a> {
    Struct(&'a Type),
    /// A type without fields.
    Other(&'a FieldType),
}

/// The merge strategy of a struct's field.
#[derive(Clone, Copy)]
pub(super) struct MergeStrategy<'a>(&'a Field);

impl<'a> MergeStrategy<'a> {
    /// Returns the strategy of a field without `retainKeys`, which is a directive of the patch itself.
    pub(super) fn strategy(self) -> Option<&'a str> {
        self.0.patch_strategy.iter().map(String::as_str).find(|s| *s != "retainKeys")
    }

    pub(super) fn merge_key(self) -> Option<&'a str> {
        self.0.patch_merge_key.as_deref()
    }
}

impl<'a> Position<'a> {
    pub(super) fn root(of: &'a Type) -> Position<'a> {
        Position { of: Of::Struct(of), is_pointer: false }
    }

    fn of(kind: &'a FieldType, is_pointer: bool) -> Position<'a> {
        let of = match kind {
            FieldType::Ref(id) => Of::Struct(schema().get(*id)),
            other => Of::Other(other),
        };
        Position { of, is_pointer }
    }

    /// Returns Go's word for the kind of the type.
    pub(super) fn name(self) -> &'static str {
        match self.of {
            _ if self.is_pointer => "ptr",
            Of::Struct(_) => "struct",
            Of::Other(kind) => shape(kind),
        }
    }

    /// Returns the field of a key, in any case.
    fn field(self, key: &str) -> Result<&'a Field, Error> {
        let t = match self.of {
            Of::Struct(t) => t,
            Of::Other(kind) => {
                let kind = shape(kind);
                return Err(error(format!(
                    "merging an object in json but data type is not struct, instead is: {kind}"
                )));
            }
        };
        let folded = || t.declared().find(|field| field.name.eq_ignore_ascii_case(key));
        t.field(key).or_else(folded).ok_or_else(|| {
            let name = t.short_name();
            error(format!("unable to find api field in struct {name} for the json field {}", quote(key)))
        })
    }

    /// Returns a field that is an object in both, and the position of its entries.
    pub(super) fn map_field(self, key: &str) -> Result<(MergeStrategy<'a>, Position<'a>), Error> {
        let field = self.field(key)?;
        Ok((MergeStrategy(field), Position::of(&field.kind, field.presence.is_pointer)))
    }

    /// Returns a field that is a list in both, and the position of its items.
    pub(super) fn list_field(self, key: &str) -> Result<(MergeStrategy<'a>, Position<'a>), Error> {
        let field = self.field(key)?;
        let items = match &field.kind {
            FieldType::List(items) if matches!(**items, FieldType::List(_) | FieldType::Bytes) => {
                return Err(error("unexpected slice of slice"));
            }
            FieldType::List(items) => Position::of(items, false),
            FieldType::Bytes => Position::of(&field.kind, false),
            kind if field.presence.is_pointer => Position::of(kind, false),
            _ => return Err(error(format!("expected slice or array type, but got: {}", self.name()))),
        };
        Ok((MergeStrategy(field), items))
    }
}

fn shape(kind: &FieldType) -> &'static str {
    match kind {
        FieldType::String => "string",
        FieldType::Integer("int64") => "int64",
        FieldType::Integer(_) => "int32",
        FieldType::Number(_) => "float64",
        FieldType::Boolean => "bool",
        FieldType::Bytes => "uint8",
        FieldType::List(_) => "slice",
        FieldType::Map(_) => "map",
        _ => "struct",
    }
}

/// Returns Go's word for the type of a value of any kind.
pub(super) fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => MAP,
    }
}
