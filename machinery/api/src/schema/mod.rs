//! The one table of facts: every type of the default API with its fields, list types, merge keys and defaults.
//!
//! It drives pruning, strict field validation, structural defaults, strategic merge patch, server-side apply
//! and OpenAPI. It holds no prose; descriptions come from elsewhere (see [`crate::openapi`]).
//! The table is text in the package's `schema` folder, parsed once at first use.

mod amounts;
mod defaults;
mod equality;
mod fields;
mod gated;
mod places;
mod printed;
mod recall;
mod restore;
mod table;
mod written;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use corten_meta::Value;

pub use amounts::write_amounts;
pub use defaults::{empty, fill_defaults, fill_zeros, settle};
pub(crate) use equality::equal;
pub use fields::{FieldReport, check_fields, check_spelled_fields, prune};
pub use gated::drop_gated;
pub use places::{insert_errors, is_within_raw};
pub(crate) use printed::difference;
pub use printed::{print_value, print_values};
pub use recall::{Recall, recall};
pub use restore::restore;
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
    /// E.g. `io.k8s.api.apps.v1.Deployment`.
    pub name: String,
    /// Sorted by name; empty for a type that is no struct.
    pub fields: Vec<Field>,
    /// How the name of each field begins, by which it is found.
    beginnings: Vec<u64>,
    /// The positions of the fields, in the order in which the struct declares them.
    declared: Vec<usize>,
    /// What a value of a type that is no struct looks like.
    pub scalar: Option<FieldType>,
    /// The whole value is owned and replaced as one (`x-kubernetes-map-type: atomic`).
    pub atomic: bool,
    /// Group, version and kind, for a type that is the body of a request.
    pub gvk: Option<(String, String, String)>,
    /// `x-kubernetes-unions`, as published.
    pub unions: Option<Value>,
    /// The fields, by position, that are always written or hold something that has such fields.
    zeros: Vec<usize>,
    /// The fields, by position, that are amounts or hold something that has some.
    amounts: Vec<usize>,
    /// The fields, by position, that are switched off or hold something that is.
    gated: Vec<usize>,
    /// The fields, by position, that have a default which is written where they are absent.
    defaults: Vec<usize>,
}

/// One field of a type.
#[derive(Debug, Clone)]
pub struct Field {
    pub name: String,
    pub kind: FieldType,
    pub required: bool,
    /// As published: a struct that is always there has `{}`.
    pub default: Option<Value>,
    /// The published default of the innermost items or values.
    pub item_default: Option<Value>,
    pub list_type: Option<ListType>,
    /// Of a map or a nested struct: `true` when it is replaced as one.
    pub atomic: bool,
    /// Of a map: published as `granular`, which is also what an unmarked one is.
    pub granular: bool,
    pub patch_merge_key: Option<String>,
    /// `merge`, `replace`, `retainKeys`, in the published order.
    pub patch_strategy: Vec<String>,
    pub presence: Presence,
    /// The name of the type of its values (`v1.RestartPolicy`), where it is more than their shape.
    pub type_name: Option<String>,
    /// The struct that the field is inlined from, which decoding errors name on the way to it.
    pub inlined_from: Option<String>,
    /// The field's name in the struct, where it is not its own with a capital.
    go_name: Option<String>,
    /// The values that an enum lists; empty for any other type.
    pub values: Vec<String>,
}

/// How upstream's structs hold a field, which decides what becomes of its zero value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Presence {
    /// Absent is something else than zero, so a zero value is kept.
    pub is_pointer: bool,
    /// The field is always written: an absent one with its zero value.
    pub is_always_written: bool,
    /// A zero value is not written even where Go's `omitempty` would write it.
    pub omits_zero: bool,
}

/// What a value looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldType {
    String,
    /// With its format: `int32`, `int64` or empty.
    Integer(&'static str),
    /// With its format: `double` or empty.
    Number(&'static str),
    Boolean,
    /// Base64 in a string.
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

/// `x-kubernetes-list-type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    /// With its keys.
    Map(Vec<String>),
}

impl Schema {
    /// The type of this name.
    pub fn type_(&self, name: &str) -> Option<&Type> {
        self.by_name.get(name).map(|id| self.get(*id))
    }

    /// The type behind a [`FieldType::Ref`].
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0]
    }

    /// All types, sorted by name.
    pub fn types(&self) -> impl Iterator<Item = &Type> {
        self.by_name.values().map(|id| self.get(*id))
    }
}

impl Type {
    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        let wanted = beginning(name);
        let from = self.beginnings.partition_point(|beginning| *beginning < wanted);
        let alike = self.beginnings[from..].iter().take_while(|beginning| **beginning == wanted);
        self.fields[from..].iter().zip(alike).map(|(field, _)| field).find(|field| field.name == name)
    }

    /// The fields in the order in which upstream's struct declares them.
    pub fn declared(&self) -> impl Iterator<Item = &Field> {
        self.declared.iter().map(|at| &self.fields[*at])
    }

    /// A struct without fields, which the table cannot tell from an object of any shape.
    fn is_empty_struct(&self) -> bool {
        self.short_name() == "CustomResourceSubresourceStatus"
    }

    /// What an object is that stands where the table only knows a schema or something else: a schema.
    fn of_object(&self) -> &Type {
        let is_either = self.scalar.is_some() && self.short_name().starts_with("JSONSchemaPropsOr");
        schema().type_(fields::SCHEMA_PROPS).filter(|_| is_either).unwrap_or(self)
    }

    /// The name without its package.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

/// How a name begins, as a number that sorts as the name does. Every field of every object is looked for by its name,
/// several times: numbers are compared in a fraction of the time that texts take.
fn beginning(name: &str) -> u64 {
    let bytes = name.as_bytes();
    match bytes.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => (0..8).fold(0, |number, at| number << 8 | u64::from(bytes.get(at).copied().unwrap_or_default())),
    }
}

/// The schema of the built-in kinds.
pub fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| table::parse(include_str!("../../schema/v1.36.tbl")));
    &SCHEMA
}
