//! The types of ownership: whether a value is owned as one, field by field, or item by item.
//!
//! One view over the table of built-in types and over the structural schemas of custom resources. Without a schema, the
//! value decides: objects are owned by field, lists as one.

use corten_api::Kind;
use corten_api::schema::{Field, FieldType, ListType, Type as TableType, schema};
use corten_meta::Value;
use corten_meta::quote::quote_list;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const RAW_EXTENSION: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";

/// The type of a value.
#[derive(Clone, Copy, Debug)]
pub enum Type<'a> {
    /// A struct of the table.
    Struct(&'static TableType),
    /// A field of a struct of the table, with its merge strategy.
    Field(&'static Field),
    /// An item of a list or a map of the table.
    Item(&'static FieldType),
    /// A structural schema; `open` when unknown fields are kept below it.
    Custom { schema: &'a Value, open: bool },
    /// A whole custom resource, with ObjectMeta as its metadata.
    CustomResource(&'a Value),
    /// A type that only the value decides.
    Deduced,
    /// A type that only the value decides, owned as one.
    Untyped,
}

/// The way a value is owned.
#[derive(Clone, Copy, Debug)]
pub enum Shape<'a> {
    Scalar,
    Map { atomic: bool },
    List { items: Type<'a>, kind: ListKind<'a> },
}

/// The way the items of a list are distinguished.
#[derive(Clone, Copy, Debug)]
pub enum ListKind<'a> {
    /// The items are not distinguished: the list is owned as one.
    Atomic,
    Set,
    /// The items have keys.
    Map(Keys<'a>),
}

/// The names of the keys.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'a> {
    Table(&'static [String]),
    One(&'static str),
    Custom(&'a [Value]),
}

impl<'a> Keys<'a> {
    pub fn names(self) -> Vec<&'a str> {
        match self {
            Keys::Table(names) => names.iter().map(String::as_str).collect(),
            Keys::One(name) => vec![name],
            Keys::Custom(names) => names.iter().filter_map(Value::as_str).collect(),
        }
    }
}

/// A field of a map or struct.
pub struct Member<'a> {
    pub of: Type<'a>,
    /// Whether the schema names it, rather than allowing any name.
    pub declared: bool,
    pub default: Option<&'a Value>,
}

impl<'a> Type<'a> {
    /// Returns the type of this name in the table.
    pub fn table(name: &str) -> Option<Type<'static>> {
        schema().type_(name).map(Type::Struct)
    }

    /// Returns whether a CustomResourceDefinition defines the type, which may change.
    pub fn is_custom(&self) -> bool {
        matches!(self, Type::CustomResource(_))
    }

    /// Returns how this value is owned.
    pub fn shape(self, value: &Value) -> Shape<'a> {
        match self {
            Type::Struct(of) => match &of.scalar {
                Some(_) if of.name == RAW_EXTENSION => Type::Untyped.shape(value),
                Some(scalar) => Type::Item(scalar).shape(value),
                None => Shape::Map { atomic: of.atomic },
            },
            Type::Field(field) => field_shape(field, value),
            Type::Item(kind) => item_shape(kind, value),
            Type::Custom { schema, .. } => custom_shape(self, schema, value),
            Type::CustomResource(_) => Shape::Map { atomic: false },
            Type::Deduced => deduced_shape(value, false),
            Type::Untyped => deduced_shape(value, true),
        }
    }

    /// Returns the field of this name; `None` when there can be none.
    pub fn member(self, name: &str) -> Option<Member<'a>> {
        let any = |of: Type<'a>| Some(Member { of, declared: false, default: None });
        match self {
            Type::Struct(of) => match &of.scalar {
                Some(scalar) => Type::Item(scalar).member(name),
                None => of.field(name).map(|field| Member {
                    of: Type::Field(field),
                    declared: true,
                    default: field.default.as_ref(),
                }),
            },
            Type::Field(field) => Type::Item(&field.kind).member(name),
            Type::Item(FieldType::Ref(id)) => Type::Struct(schema().get(*id)).member(name),
            Type::Item(FieldType::Map(values)) => any(Type::Item(values)),
            Type::Item(FieldType::Any | FieldType::Object) | Type::Deduced => any(Type::Deduced),
            Type::Item(_) => None,
            Type::Custom { schema, open } => custom_member(schema, open, name),
            Type::CustomResource(custom) => match name {
                "apiVersion" | "kind" => {
                    Some(Member { of: Type::Item(&FieldType::String), declared: true, default: None })
                }
                "metadata" => Type::table(OBJECT_META).map(|of| Member { of, declared: true, default: None }),
                _ => custom_member(custom, false, name),
            },
            Type::Untyped => any(Type::Untyped),
        }
    }
}

fn field_shape(field: &'static Field, value: &Value) -> Shape<'static> {
    match &field.kind {
        FieldType::List(items) => Shape::List { items: Type::Item(items), kind: list_kind(field) },
        FieldType::Map(_) => Shape::Map { atomic: field.atomic },
        FieldType::Ref(id) => match Type::Struct(schema().get(*id)).shape(value) {
            Shape::Map { atomic } => Shape::Map { atomic: (atomic && !field.granular) || field.atomic },
            other => other,
        },
        other => Type::Item(other).shape(value),
    }
}

fn list_kind(field: &'static Field) -> ListKind<'static> {
    match &field.list_type {
        Some(ListType::Atomic) => ListKind::Atomic,
        Some(ListType::Set) => ListKind::Set,
        Some(ListType::Map(keys)) => ListKind::Map(Keys::Table(keys)),
        None if field.patch_strategy.iter().any(|s| s == "merge") => match &field.patch_merge_key {
            Some(key) => ListKind::Map(Keys::One(key)),
            None => ListKind::Set,
        },
        None => ListKind::Atomic,
    }
}

fn item_shape(kind: &'static FieldType, value: &Value) -> Shape<'static> {
    match kind {
        FieldType::Ref(id) => Type::Struct(schema().get(*id)).shape(value),
        FieldType::List(items) => Shape::List { items: Type::Item(items), kind: ListKind::Atomic },
        FieldType::Map(_) | FieldType::Object => Shape::Map { atomic: false },
        FieldType::Any => deduced_shape(value, false),
        _ => Shape::Scalar,
    }
}

fn deduced_shape(value: &Value, atomic: bool) -> Shape<'static> {
    match value {
        // An absent value has the shape of the first alternative.
        Value::Object(_) | Value::Null => Shape::Map { atomic },
        Value::Array(_) => Shape::List { items: Type::Untyped, kind: ListKind::Atomic },
        _ => Shape::Scalar,
    }
}

fn custom_shape<'a>(of: Type<'a>, schema: &'a Value, value: &Value) -> Shape<'a> {
    let map = Shape::Map { atomic: schema["x-kubernetes-map-type"] == "atomic" };
    let list = || {
        let kind = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => ListKind::Set,
            Some("map") => {
                let keys = schema["x-kubernetes-list-map-keys"].as_array();
                ListKind::Map(Keys::Custom(keys.map(Vec::as_slice).unwrap_or_default()))
            }
            _ => ListKind::Atomic,
        };
        let open = matches!(of, Type::Custom { open: true, .. }) || keeps_unknown(schema);
        let items = match schema.get("items").filter(|items| items.is_object()) {
            Some(items) => Type::Custom { schema: items, open },
            None => Type::Untyped,
        };
        Shape::List { items, kind }
    };
    match schema["type"].as_str() {
        Some("object") => map,
        Some("array") => list(),
        Some(_) => Shape::Scalar,
        None => match value {
            Value::Object(_) | Value::Null => map,
            Value::Array(_) => list(),
            _ => Shape::Scalar,
        },
    }
}

fn keeps_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

fn custom_member<'a>(schema: &'a Value, open: bool, name: &str) -> Option<Member<'a>> {
    let open = open || keeps_unknown(schema);
    let properties = schema["properties"].as_object();
    if schema["x-kubernetes-embedded-resource"] == true {
        let of = match name {
            "apiVersion" | "kind" => Some(Type::Item(&FieldType::String)),
            "metadata" => Type::table(OBJECT_META),
            _ => None,
        };
        if let Some(of) = of {
            return Some(Member { of, declared: true, default: None });
        }
    }
    if let Some(property) = properties.and_then(|p| p.get(name)) {
        let of = Type::Custom { schema: property, open };
        return Some(Member { of, declared: true, default: property.get("default") });
    }
    let of = match &schema["additionalProperties"] {
        Value::Object(_) => Type::Custom { schema: &schema["additionalProperties"], open },
        Value::Bool(true) => Type::Deduced,
        Value::Bool(false) => return None,
        _ if open || properties.is_none_or(serde_json::Map::is_empty) => Type::Deduced,
        _ => return None,
    };
    Some(Member { of, declared: false, default: None })
}

/// Returns the empty object of a type: structs that Go holds by value are present, and so are fields that are always
/// written, with their zero values. A new object is compared with it.
pub fn zero(of: &'static TableType) -> Value {
    let mut object = structs(of);
    corten_api::schema::fill_zeros(&of.name, &mut object);
    object
}

/// Returns the value that a new object of a kind is compared with.
pub fn before_first(kind: &Kind) -> Value {
    match Type::table(&kind.schema) {
        Some(Type::Struct(of)) => zero(of),
        _ => serde_json::json!({ "apiVersion": kind.api_version(), "kind": kind.kind }),
    }
}

fn structs(of: &'static TableType) -> Value {
    let by_value = of.fields.iter().filter_map(|field| match (&field.kind, &field.default) {
        (FieldType::Ref(id), Some(Value::Object(_))) if schema().get(*id).scalar.is_none() => {
            Some((field.name.clone(), structs(schema().get(*id))))
        }
        _ => None,
    });
    Value::Object(by_value.collect())
}

/// Returns the path element of a list item, or why it has none.
pub fn item_element(items: Type<'_>, kind: ListKind<'_>, item: &Value) -> Result<super::Element, String> {
    match kind {
        ListKind::Atomic => Err("invalid indexing of non-associative list".to_owned()),
        ListKind::Set => match item {
            Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
            scalar => Ok(super::Element::value(scalar)),
        },
        ListKind::Map(_) if item.is_null() => Err("associative list with keys may not have a null element".to_owned()),
        ListKind::Map(keys) => {
            let Some(object) = item.as_object() else {
                return Err("associative list with keys may not have non-map elements".to_owned());
            };
            let names = keys.names();
            let defaults: Vec<Option<&Value>> =
                names.iter().map(|name| items.member(name).and_then(|member| member.default)).collect();
            let found: Vec<(&str, &Value)> = names
                .iter()
                .zip(defaults)
                .filter_map(|(name, default)| Some((*name, object.get(*name).or(default)?)))
                .collect();
            if found.is_empty() {
                return Err(format!(
                    "associative list with keys has an element that omits all key fields {} (and doesn't have default \
                     values for any key fields)",
                    quote_list(&names)
                ));
            }
            Ok(super::Element::key(found))
        }
    }
}
