//! The schema table: every type of the default API with its fields, list types, merge keys and defaults.
//!
//! It drives pruning, strict field validation, structural defaults, strategic merge patch, server-side apply and
//! OpenAPI. It has no descriptions; these come from elsewhere (see [`crate::openapi`]). The table is text in the
//! package's `schema` folder, parsed once at first use.

mod defaults;
mod equality;
mod error_order;
mod gated;
pub(crate) mod introduced;
mod printed;
mod quantities;
mod recall;
mod restore;
mod strict_decoding;
mod table;
mod written;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use corten_meta::Value;

pub use defaults::{empty, fill_defaults, fill_zeros, settle};
pub(crate) use equality::equal;
pub use error_order::{insert_errors, is_within_raw};
pub use gated::drop_gated;
pub(crate) use printed::changed_fields;
pub use printed::print_values;
pub use quantities::write_quantities;
pub use recall::{Recall, recall};
pub use restore::restore;
pub use strict_decoding::{FieldReport, check_fields, check_spelled_fields, prune};
pub use written::written;

/// All types, by name and by number.
pub struct Schema {
    types: Vec<Type>,
    by_name: BTreeMap<String, TypeId>,
}

/// The number of a type in its [`Schema`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TypeId(usize);

/// One type of the API.
#[derive(Debug, Clone)]
pub struct Type {
    /// The name, e.g. `io.k8s.api.apps.v1.Deployment`.
    pub name: String,
    /// The fields, sorted by name; empty for a type that is no struct.
    pub fields: Vec<Field>,
    /// The first bytes of each field's name, for lookups.
    beginnings: Vec<u64>,
    /// The positions of the fields, in the struct's order.
    declared: Vec<usize>,
    /// The shape of a type that is no struct.
    pub scalar: Option<FieldType>,
    /// Whether the value is owned and replaced as one (`x-kubernetes-map-type: atomic`).
    pub atomic: bool,
    /// The group, version and kind of a type that is the body of a request.
    pub gvk: Option<(String, String, String)>,
    /// The published `x-kubernetes-unions`.
    pub unions: Option<Value>,
    /// The fields, by position, that are always written or contain such fields.
    zeros: Vec<usize>,
    /// The fields, by position, that are quantities or contain some.
    quantities: Vec<usize>,
    /// The fields, by position, that are gated or contain gated ones.
    gated: Vec<usize>,
    /// The fields, by position, that an emulated version may lack or that contain such fields.
    introduced: Vec<usize>,
    /// The fields, by position, whose default is written if they are absent.
    defaults: Vec<usize>,
}

#[derive(Debug, Clone)]
pub struct Field {
    pub name: String,
    pub kind: FieldType,
    pub required: bool,
    /// The published default: a struct held by value has `{}`.
    pub default: Option<Value>,
    /// The published default of the innermost items or values.
    pub item_default: Option<Value>,
    pub list_type: Option<ListType>,
    /// Whether a map or a nested struct is replaced as one.
    pub atomic: bool,
    /// Whether a map is published as `granular`, which is also the default.
    pub granular: bool,
    pub patch_merge_key: Option<String>,
    /// The patch strategies `merge`, `replace`, `retainKeys`, in the published order.
    pub patch_strategy: Vec<String>,
    pub presence: Presence,
    /// The name of the type of its values (`v1.RestartPolicy`), if it is more than their shape.
    pub type_name: Option<String>,
    /// The struct that the field is inlined from, which decoding errors name in the path.
    pub inlined_from: Option<String>,
    /// The values of an enum; empty for any other type.
    pub values: Vec<String>,
}

/// The form of a field in upstream's structs, which decides the handling of its zero value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Presence {
    /// Whether absent differs from zero, so that a zero value is kept.
    pub is_pointer: bool,
    /// Whether the field is always written, with its zero value if absent.
    pub is_always_written: bool,
    /// Whether a zero value is not written even where Go's `omitempty` would write it.
    pub omits_zero: bool,
}

/// The shape of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldType {
    String,
    /// An integer with its format: `int32`, `int64` or empty.
    Integer(&'static str),
    /// A number with its format: `double` or empty.
    Number(&'static str),
    Boolean,
    /// Bytes as base64 in a string.
    Bytes,
    IntOrString,
    Quantity,
    Time,
    MicroTime,
    /// An object of any shape.
    Object,
    /// Any JSON value.
    Any,
    Ref(TypeId),
    List(Box<FieldType>),
    Map(Box<FieldType>),
}

/// The published `x-kubernetes-list-type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    /// A map with its keys.
    Map(Vec<String>),
}

impl Schema {
    pub fn type_(&self, name: &str) -> Option<&Type> {
        self.by_name.get(name).map(|id| self.get(*id))
    }

    /// Returns the type behind a [`FieldType::Ref`].
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0]
    }

    /// Returns all types, sorted by name.
    pub fn types(&self) -> impl Iterator<Item = &Type> {
        self.by_name.values().map(|id| self.get(*id))
    }
}

impl Type {
    pub fn field(&self, name: &str) -> Option<&Field> {
        let wanted = beginning(name);
        let from = self.beginnings.partition_point(|beginning| *beginning < wanted);
        let alike = self.beginnings[from..].iter().take_while(|beginning| **beginning == wanted);
        self.fields[from..].iter().zip(alike).map(|(field, _)| field).find(|field| field.name == name)
    }

    /// Returns the fields in the order of upstream's struct.
    pub fn declared(&self) -> impl Iterator<Item = &Field> {
        self.declared.iter().map(|at| &self.fields[*at])
    }

    /// Reports whether it is a struct without fields, which the table cannot distinguish from an object of any shape.
    fn is_empty_struct(&self) -> bool {
        self.short_name() == "CustomResourceSubresourceStatus"
    }

    /// Returns the type of an object in a field of a schema or something else: a schema.
    fn of_object(&self) -> &Type {
        let is_either = self.scalar.is_some() && self.short_name().starts_with("JSONSchemaPropsOr");
        schema().type_(strict_decoding::SCHEMA_PROPS).filter(|_| is_either).unwrap_or(self)
    }

    /// Returns the name without its package.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

/// Returns the first bytes of a name, as a number that sorts as the name does. Every field of every object is looked up
/// by name, several times: numbers compare much faster than strings.
fn beginning(name: &str) -> u64 {
    let bytes = name.as_bytes();
    match bytes.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => (0..8).fold(0, |number, at| number << 8 | u64::from(bytes.get(at).copied().unwrap_or_default())),
    }
}

/// Returns the schema of the built-in kinds.
pub fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| table::parse(include_str!("../../schema/v1.36.tbl")));
    &SCHEMA
}
