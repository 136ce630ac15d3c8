//! Declarations: an OpenAPI schema as expressions see it. They determine the types for the checker, the sizes for the
//! cost estimate, and the conversion of JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::escape::escape;
use crate::types::Type;

/// The size limit of a request: it bounds values that the schema does not.
pub const MAX_REQUEST_BYTES: u64 = 3 * 1024 * 1024;

/// A declared value.
#[derive(Debug, Clone, PartialEq)]
pub struct Decl {
    pub shape: Shape,
    pub nullable: bool,
    /// The most elements, entries or bytes that the value can have.
    pub max_elements: u64,
    /// The least size of the value in JSON.
    pub min_size: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    Dyn,
    IntOrString,
    Bool,
    Int,
    Double,
    String,
    Bytes,
    Timestamp,
    Date,
    Duration,
    List {
        item: Box<Decl>,
        list_type: ListType,
        keys: Vec<String>,
    },
    Map {
        value: Box<Decl>,
        /// The longest key, if a length is declared.
        key: u64,
    },
    /// Fields under their names in expressions; the type's name is set where the object is declared.
    Object {
        name: Arc<str>,
        fields: BTreeMap<String, FieldDecl>,
    },
}

/// The identity of a list's items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    Map,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FieldDecl {
    /// The name in JSON.
    pub name: String,
    pub decl: Decl,
}

/// A value without a declaration.
pub static DYN: Decl = Decl { shape: Shape::Dyn, nullable: true, max_elements: MAX_REQUEST_BYTES, min_size: 1 };

impl Decl {
    fn simple(shape: Shape, min_size: u64) -> Decl {
        Decl { shape, nullable: false, max_elements: 0, min_size }
    }

    fn sized(shape: Shape, min_size: u64, max_elements: u64) -> Decl {
        Decl { max_elements, ..Decl::simple(shape, min_size) }
    }

    /// Makes a declaration of a schema; `None` if expressions cannot see such values. Objects are named by their path,
    /// beginning with `name`. A root has the fields of every object even if its schema does not have them.
    pub fn of_schema(schema: &Json, is_root: bool, name: &str) -> Option<Decl> {
        let nullable = schema["nullable"] == true;
        of_schema(schema, is_root, name).map(|decl| Decl { nullable, ..decl })
    }

    /// Returns the type for the checker.
    pub fn cel_type(&self) -> Type {
        match &self.shape {
            Shape::Dyn | Shape::IntOrString => Type::Dyn,
            Shape::Bool => Type::Bool,
            Shape::Int => Type::Int,
            Shape::Double => Type::Double,
            Shape::String => Type::String,
            Shape::Bytes => Type::Bytes,
            Shape::Timestamp | Shape::Date => Type::Timestamp,
            Shape::Duration => Type::Duration,
            Shape::List { item, .. } => Type::list(item.cel_type()),
            Shape::Map { value, .. } => Type::map(Type::String, value.cel_type()),
            Shape::Object { name, .. } => Type::Struct(Arc::clone(name)),
        }
    }

    /// Collects every object type in it.
    pub fn objects(&self, found: &mut BTreeMap<Arc<str>, BTreeMap<String, Type>>) {
        match &self.shape {
            Shape::List { item, .. } => item.objects(found),
            Shape::Map { value, .. } => value.objects(found),
            Shape::Object { name, fields } => {
                let types = fields.iter().map(|(name, field)| (name.clone(), field.decl.cel_type())).collect();
                found.insert(Arc::clone(name), types);
                fields.values().for_each(|field| field.decl.objects(found));
            }
            _ => {}
        }
    }

    /// Returns the items of a list.
    pub fn item(&self) -> &Decl {
        match &self.shape {
            Shape::List { item, .. } => item,
            _ => &DYN,
        }
    }

    pub fn list_type(&self) -> ListType {
        match &self.shape {
            Shape::List { list_type, .. } => *list_type,
            _ => ListType::Atomic,
        }
    }

    /// Returns the name in JSON, if it differs, and the declaration of a field by its name in expressions.
    pub fn field(&self, name: &str) -> (Option<&str>, &Decl) {
        match &self.shape {
            Shape::Object { fields, .. } => {
                // A reserved word may also be written without escapes.
                let field = fields.get(name).or_else(|| fields.get(&format!("__{name}__")));
                field.map_or((None, &DYN), |field| (Some(field.name.as_str()), &field.decl))
            }
            Shape::Map { value, .. } => (None, value),
            _ => (None, &DYN),
        }
    }

    /// Returns the declaration of the value under a name in JSON.
    pub fn value_of(&self, name: &str) -> &Decl {
        match &self.shape {
            Shape::Object { fields, .. } => {
                fields.values().find(|field| field.name == name).map_or(&DYN, |field| &field.decl)
            }
            Shape::Map { value, .. } => value,
            _ => &DYN,
        }
    }

    /// Returns the most elements at the end of a path: field names, `@items`, `@values`, `@keys`.
    pub fn max_along(&self, path: &[Arc<str>]) -> Option<u64> {
        let Some((step, rest)) = path.split_first() else { return Some(self.max_elements) };
        match (&**step, &self.shape) {
            ("@items", Shape::List { item, .. }) => item.max_along(rest),
            ("@values", Shape::Map { value, .. }) => value.max_along(rest),
            ("@keys", Shape::Map { key, .. }) => rest.is_empty().then_some(*key),
            (name, Shape::Object { fields, .. }) => fields.get(name).and_then(|field| field.decl.max_along(rest)),
            // A declaration for all entries applies to an entry of any name.
            (_, Shape::Map { value, .. }) if value.shape == Shape::Dyn => value.max_along(rest),
            _ => None,
        }
    }
}

fn of_schema(schema: &Json, is_root: bool, name: &str) -> Option<Decl> {
    if schema["x-kubernetes-int-or-string"] == true {
        let max = schema["maxLength"].as_i64().map_or(MAX_REQUEST_BYTES - 2, bytes_of_length);
        return Some(Decl::sized(Shape::IntOrString, 1, max));
    }
    match schema["type"].as_str().unwrap_or_default() {
        "array" => list(schema, name),
        "object" if schema["additionalProperties"].is_object() && !is_root => map(schema, name),
        "object" => Some(object(schema, is_root, name)),
        "string" => Some(string(schema)),
        "boolean" => Some(Decl::simple(Shape::Bool, 4)),
        "number" => Some(Decl::simple(Shape::Double, 1)),
        "integer" => Some(Decl::simple(Shape::Int, 1)),
        _ => None,
    }
}

fn is_embedded(schema: &Json) -> bool {
    schema["x-kubernetes-embedded-resource"] == true
}

fn list(schema: &Json, name: &str) -> Option<Decl> {
    let items = schema.get("items").filter(|items| items.is_object())?;
    let item = Decl::of_schema(items, is_embedded(items), &format!("{name}.@idx"))?;
    let max = schema["maxItems"]
        .as_i64()
        .map_or_else(|| (MAX_REQUEST_BYTES - 2) / (item.min_size + 1), |max| u64::try_from(max).unwrap_or(0));
    let list_type = match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => ListType::Set,
        Some("map") => ListType::Map,
        _ => ListType::Atomic,
    };
    let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
    let keys = keys.filter_map(Json::as_str).map(str::to_owned).collect();
    Some(Decl::sized(Shape::List { item: Box::new(item), list_type, keys }, 2, max))
}

fn map(schema: &Json, name: &str) -> Option<Decl> {
    let values = &schema["additionalProperties"];
    let value = Decl::of_schema(values, is_embedded(values), &format!("{name}.@elem"))?;
    let max = schema["maxProperties"]
        .as_i64()
        .map_or_else(|| (MAX_REQUEST_BYTES - 2) / (value.min_size + 6), |max| u64::try_from(max).unwrap_or(0));
    Some(Decl::sized(Shape::Map { value: Box::new(value), key: 0 }, 2, max))
}

fn object(schema: &Json, is_root: bool, name: &str) -> Decl {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    let mut fields = BTreeMap::new();
    let mut min_size = 2;
    let always = if is_root { root_fields() } else { BTreeMap::new() };
    let declared = schema["properties"].as_object();
    let own = declared.into_iter().flatten().filter(|(field, _)| !always.contains_key(field.as_str()));
    for (field, property) in
        own.map(|(field, property)| (field.as_str(), property)).chain(always.iter().map(|(k, v)| (*k, v)))
    {
        let escaped = escape(field);
        let place = format!("{name}.{}", escaped.as_deref().unwrap_or(field));
        let Some(decl) = Decl::of_schema(property, is_embedded(property), &place) else { continue };
        // A field with a default need not be sent: the server sets it.
        if required.contains(&field) && property.get("default").is_none() {
            min_size += field.len() as u64 + decl.min_size + 4;
        }
        if let Some(escaped) = escaped {
            fields.insert(escaped, FieldDecl { name: field.to_owned(), decl });
        }
    }
    Decl::simple(Shape::Object { name: name.into(), fields }, min_size)
}

/// Returns the fields that expressions see of every object.
fn root_fields() -> BTreeMap<&'static str, Json> {
    let text = serde_json::json!({ "type": "string" });
    let metadata = serde_json::json!({ "type": "object", "properties": { "name": text, "generateName": text } });
    BTreeMap::from([("apiVersion", text.clone()), ("kind", text), ("metadata", metadata)])
}

fn string(schema: &Json) -> Decl {
    let max_length = schema["maxLength"].as_i64();
    match schema["format"].as_str() {
        Some("byte") => {
            let max = max_length.map_or(MAX_REQUEST_BYTES - 2, |max| u64::try_from(max).unwrap_or(0));
            Decl::sized(Shape::Bytes, 2, max)
        }
        Some("duration") => Decl::sized(Shape::Duration, 3, 32),
        Some("date") => Decl::sized(Shape::Date, 12, 12),
        Some("date-time") => Decl::sized(Shape::Timestamp, 21, 32),
        _ => {
            let words = schema["enum"].as_array().into_iter().flatten().filter_map(Json::as_str);
            let longest = words.map(str::len).max().map(|length| length as u64);
            let max = max_length.map(bytes_of_length).or(longest).unwrap_or(MAX_REQUEST_BYTES - 2);
            Decl::sized(Shape::String, 2, max)
        }
    }
}

/// Returns the bytes of a length in characters, each of which may take four bytes.
fn bytes_of_length(length: i64) -> u64 {
    u64::try_from(length).unwrap_or(0).saturating_mul(4)
}

/// Returns how often a rule can apply if every value that it applies to has its least size.
pub fn max_cardinality(min_size: u64) -> u64 {
    MAX_REQUEST_BYTES / (min_size + 1)
}
