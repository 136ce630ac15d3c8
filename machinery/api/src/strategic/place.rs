//! Where a merge is: the type of the map whose entries are being merged, in the words of upstream's structs.

use corten_meta::Value;
use corten_meta::quote::quote;

use super::error;
use crate::Error;
use crate::schema::{Field, FieldType, Type, schema};

/// The kind of an object in Go's words.
pub(super) const MAP: &str = "map[string]interface {}";

/// What is known about the map that is being merged.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    of: Of<'a>,
    is_pointer: bool,
}

#[derive(Clone, Copy)]
enum Of<'a> {
    Struct(&'a Type),
    /// Anything that has no fields.
    Other(&'a FieldType),
}

/// How a field of a struct is merged.
#[derive(Clone, Copy)]
pub(super) struct Marks<'a>(&'a Field);

impl<'a> Marks<'a> {
    /// The strategy of a field without `retainKeys`, which is spoken in the patch itself.
    pub(super) fn strategy(self) -> Option<&'a str> {
        self.0.patch_strategy.iter().map(String::as_str).find(|s| *s != "retainKeys")
    }

    pub(super) fn merge_key(self) -> Option<&'a str> {
        self.0.patch_merge_key.as_deref()
    }
}

impl<'a> Place<'a> {
    pub(super) fn root(of: &'a Type) -> Place<'a> {
        Place { of: Of::Struct(of), is_pointer: false }
    }

    fn of(kind: &'a FieldType, is_pointer: bool) -> Place<'a> {
        let of = match kind {
            FieldType::Ref(id) => Of::Struct(schema().get(*id)),
            other => Of::Other(other),
        };
        Place { of, is_pointer }
    }

    /// Go's word for the kind of the type.
    pub(super) fn name(self) -> &'static str {
        match self.of {
            _ if self.is_pointer => "ptr",
            Of::Struct(_) => "struct",
            Of::Other(kind) => shape(kind),
        }
    }

    /// The field that a key names, whatever the case of its letters.
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

    /// A field that is an object in both, and the place of its entries.
    pub(super) fn map_field(self, key: &str) -> Result<(Marks<'a>, Place<'a>), Error> {
        let field = self.field(key)?;
        Ok((Marks(field), Place::of(&field.kind, field.presence.is_pointer)))
    }

    /// A field that is a list in both, and the place of its items.
    pub(super) fn list_field(self, key: &str) -> Result<(Marks<'a>, Place<'a>), Error> {
        let field = self.field(key)?;
        let items = match &field.kind {
            FieldType::List(items) if matches!(**items, FieldType::List(_) | FieldType::Bytes) => {
                return Err(error("unexpected slice of slice"));
            }
            FieldType::List(items) => Place::of(items, false),
            FieldType::Bytes => Place::of(&field.kind, false),
            kind if field.presence.is_pointer => Place::of(kind, false),
            _ => return Err(error(format!("expected slice or array type, but got: {}", self.name()))),
        };
        Ok((Marks(field), items))
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

/// Go's word for the type of a value of any kind.
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
