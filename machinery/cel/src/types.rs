//! The static types of the checker.

use std::fmt;
use std::sync::Arc;

#[derive(Debug, Clone)]
pub enum Type {
    /// Any value; checked at evaluation.
    Dyn,
    /// A `google.protobuf.Any`: like `Dyn`, but it cannot be iterated.
    Any,
    /// The type of an expression with errors.
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    /// A scalar that may also be null. It equals the type that it wraps, and also accepts null.
    Wrapper(Arc<Type>),
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    /// A message with named fields.
    Struct(Arc<str>),
    /// A type of a library, with optional parameters.
    Opaque(Arc<str>, Vec<Type>),
    /// A type parameter of a declaration.
    Param(char),
    /// A type variable.
    Var(u32),
    /// The type of a type.
    Type(Arc<Type>),
}

/// The name of the type of optional values.
pub const OPTIONAL: &str = "optional_type";

impl Type {
    pub fn list(item: Type) -> Type {
        Type::List(Arc::new(item))
    }

    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new(key), Arc::new(value))
    }

    pub fn optional(inner: Type) -> Type {
        Type::Opaque(OPTIONAL.into(), vec![inner])
    }

    pub fn named(name: &str) -> Type {
        Type::Struct(name.into())
    }

    /// Returns the type that a wrapper wraps, and any other type itself.
    pub fn plain(&self) -> &Type {
        match self {
            Type::Wrapper(of) => of,
            other => other,
        }
    }

    pub fn is_dyn(&self) -> bool {
        matches!(self, Type::Dyn | Type::Any)
    }

    pub fn is_dyn_or_error(&self) -> bool {
        self.is_dyn() || *self == Type::Error
    }

    /// Returns the type in an optional, and whether it is one.
    pub fn unwrap_optional(&self) -> (&Type, bool) {
        match self {
            Type::Opaque(name, inner) if &**name == OPTIONAL && inner.len() == 1 => (&inner[0], true),
            other => (other, false),
        }
    }

    /// Reports whether every value has the same small size.
    pub fn is_scalar(&self) -> bool {
        match self.plain() {
            Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
            other => match other.unwrap_optional() {
                (inner, true) => inner.is_scalar(),
                _ => false,
            },
        }
    }

    /// Returns the type that a named value keeps: libraries' own types become dyn.
    pub fn remembered(&self) -> Type {
        match self {
            Type::List(item) => Type::list(item.remembered()),
            Type::Map(key, value) => Type::map(key.remembered(), value.remembered()),
            Type::Error
            | Type::Wrapper(_)
            | Type::Struct(_)
            | Type::Opaque(..)
            | Type::Param(_)
            | Type::Var(_)
            | Type::Type(_) => Type::Dyn,
            simple => simple.clone(),
        }
    }

    /// Returns the first type parameter: the type inside lists and optionals.
    pub fn first_parameter(&self) -> Option<&Type> {
        match self {
            Type::List(item) => Some(item),
            Type::Map(key, _) => Some(key),
            Type::Opaque(_, inner) => inner.first(),
            _ => None,
        }
    }

    /// Returns the type of the literals and conversions of this name.
    pub fn by_name(name: &str) -> Option<Type> {
        Some(match name {
            "dyn" => Type::Dyn,
            "null_type" => Type::Null,
            "bool" => Type::Bool,
            "int" => Type::Int,
            "uint" => Type::Uint,
            "double" => Type::Double,
            "string" => Type::String,
            "bytes" => Type::Bytes,
            "timestamp" | "google.protobuf.Timestamp" => Type::Timestamp,
            "duration" | "google.protobuf.Duration" => Type::Duration,
            "list" => Type::list(Type::Dyn),
            "map" => Type::map(Type::Dyn, Type::Dyn),
            "type" => Type::Type(Arc::new(Type::Dyn)),
            "optional_type" => Type::Opaque(OPTIONAL.into(), Vec::new()),
            "net.IP" | "net.CIDR" => Type::Opaque(name.into(), Vec::new()),
            _ => return None,
        })
    }
}

impl PartialEq for Type {
    fn eq(&self, other: &Type) -> bool {
        match (self.plain(), other.plain()) {
            (Type::List(a), Type::List(b)) | (Type::Type(a), Type::Type(b)) => a == b,
            (Type::Map(a, b), Type::Map(c, d)) => a == c && b == d,
            (Type::Struct(a), Type::Struct(b)) => a == b,
            (Type::Opaque(a, inner_a), Type::Opaque(b, inner_b)) => a == b && inner_a == inner_b,
            (Type::Param(a), Type::Param(b)) => a == b,
            (Type::Var(a), Type::Var(b)) => a == b,
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }
}

impl Eq for Type {}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Dyn => f.write_str("dyn"),
            Type::Any => f.write_str("any"),
            Type::Error => f.write_str("!error!"),
            Type::Null => f.write_str("null"),
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Uint => f.write_str("uint"),
            Type::Double => f.write_str("double"),
            Type::String => f.write_str("string"),
            Type::Bytes => f.write_str("bytes"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Duration => f.write_str("duration"),
            Type::Wrapper(of) => write!(f, "wrapper({of})"),
            Type::List(item) => write!(f, "list({item})"),
            Type::Map(key, value) => write!(f, "map({key}, {value})"),
            Type::Struct(name) => f.write_str(name),
            Type::Opaque(name, inner) if inner.is_empty() => f.write_str(name),
            Type::Opaque(name, inner) => {
                let inner: Vec<String> = inner.iter().map(ToString::to_string).collect();
                write!(f, "{name}({})", inner.join(", "))
            }
            Type::Param(name) => write!(f, "{name}"),
            Type::Var(number) => write!(f, "_var{number}"),
            Type::Type(of) => write!(f, "type({of})"),
        }
    }
}

/// Returns a type's full name, which differs from the checker's.
pub(crate) fn type_name(of: &Type) -> String {
    match of {
        Type::Null => "null_type".to_owned(),
        Type::Any => "google.protobuf.Any".to_owned(),
        Type::Timestamp => "google.protobuf.Timestamp".to_owned(),
        Type::Duration => "google.protobuf.Duration".to_owned(),
        Type::List(item) => format!("list({})", type_name(item)),
        Type::Map(key, value) => format!("map({}, {})", type_name(key), type_name(value)),
        Type::Opaque(name, inner) if !inner.is_empty() => {
            format!("{name}({})", inner.iter().map(type_name).collect::<Vec<_>>().join(", "))
        }
        Type::Type(of) => format!("type({})", type_name(of)),
        other => other.to_string(),
    }
}

/// Returns the name of a type without its parameters.
pub(crate) fn bare_name(of: &Type) -> String {
    match of {
        Type::List(_) => "list".to_owned(),
        Type::Map(..) => "map".to_owned(),
        Type::Opaque(name, _) => name.to_string(),
        Type::Type(_) => "type".to_owned(),
        other => type_name(other),
    }
}
