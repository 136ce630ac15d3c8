//! Declarations of functions. A library is a table of lines: an overload's id, its signature as a string, and its
//! function. The signatures are parsed once, when the first expression is compiled.

use std::sync::Arc;

use crate::error::Error;
use crate::meter::Meter;
use crate::types::Type;
use crate::value::Value;

/// The function of an overload; the receiver is the first argument.
pub type Run = for<'a> fn(&mut Meter, &[Value<'a>]) -> Result<Value<'a>, Error>;

/// A line of a library's table.
pub type Line = (&'static str, &'static str, Run);

/// One overload of a function.
pub struct Overload {
    pub id: &'static str,
    pub function: &'static str,
    pub member: bool,
    /// The types of the parameters; the receiver is the first.
    pub params: Vec<Type>,
    pub result: Type,
    /// Whether the signature has type parameters.
    pub generic: bool,
    pub run: Run,
}

/// Parses `[receiver::]function(params) -> result`.
pub fn read(id: &'static str, signature: &'static str, run: Run) -> Option<Overload> {
    let (head, result) = signature.split_once(" -> ")?;
    let (receiver, call) = head.split_once("::").map_or((None, head), |(receiver, call)| (Some(receiver), call));
    let (function, params) = call.split_once('(')?;
    let params = params.strip_suffix(')')?;
    let mut types: Vec<Type> = receiver.map(|text| read_type(&mut &*text)).into_iter().collect::<Option<_>>()?;
    let mut rest = params;
    while !rest.is_empty() {
        types.push(read_type(&mut rest)?);
        rest = rest.strip_prefix(", ").unwrap_or(rest);
    }
    let result = read_type(&mut &*result)?;
    let generic = types.iter().chain([&result]).any(has_parameter);
    Some(Overload { id, function, member: receiver.is_some(), params: types, result, generic, run })
}

fn has_parameter(found: &Type) -> bool {
    match found {
        Type::Param(_) => true,
        Type::List(item) | Type::Type(item) => has_parameter(item),
        Type::Map(key, value) => has_parameter(key) || has_parameter(value),
        Type::Opaque(_, inner) => inner.iter().any(has_parameter),
        _ => false,
    }
}

/// Parses a type of a declaration.
pub fn read_type(text: &mut &str) -> Option<Type> {
    let end = text.find(['(', ')', ',']).unwrap_or(text.len());
    let name = &text[..end];
    *text = &text[end..];
    let mut inner = Vec::new();
    if let Some(rest) = text.strip_prefix('(') {
        *text = rest;
        loop {
            inner.push(read_type(text)?);
            if let Some(rest) = text.strip_prefix(", ") {
                *text = rest;
                continue;
            }
            *text = text.strip_prefix(')')?;
            break;
        }
    }
    let named = |name: &str| Some(Type::named(name));
    match (name, inner.as_slice()) {
        ("list", [item]) => Some(Type::list(item.clone())),
        ("map", [key, value]) => Some(Type::map(key.clone(), value.clone())),
        ("optional", [item]) => Some(Type::optional(item.clone())),
        ("wrapper", [of]) => Some(Type::Wrapper(Arc::new(of.clone()))),
        ("any", []) => Some(Type::Any),
        ("type", [of]) => Some(Type::Type(Arc::new(of.clone()))),
        ("Quantity", []) => named("kubernetes.Quantity"),
        ("URL", []) => named("kubernetes.URL"),
        ("Semver", []) => named("kubernetes.Semver"),
        ("Format", []) => named("kubernetes.NamedFormat"),
        ("IP", []) => Some(Type::Opaque("net.IP".into(), Vec::new())),
        ("CIDR", []) => Some(Type::Opaque("net.CIDR".into(), Vec::new())),
        ("Authorizer" | "PathCheck" | "GroupCheck" | "ResourceCheck" | "Decision", []) => {
            named(&format!("kubernetes.authorization.{name}"))
        }
        (parameter, []) if parameter.len() == 1 => parameter.chars().next().map(Type::Param),
        (name, []) => Type::by_name(name),
        _ => None,
    }
}

/// Reports whether a value may be an argument of this type, as far as that is visible without iterating it.
pub fn accepts(wanted: &Type, value: &Value<'_>) -> bool {
    match (wanted, value) {
        (Type::Dyn | Type::Any | Type::Param(_), _) => true,
        (Type::Bool, Value::Bool(_))
        | (Type::Int, Value::Int(_))
        | (Type::Uint, Value::Uint(_))
        | (Type::Double, Value::Double(_))
        | (Type::String, Value::String(_))
        | (Type::Bytes, Value::Bytes(_))
        | (Type::Timestamp, Value::Timestamp(_))
        | (Type::Duration, Value::Duration(_))
        | (Type::Null, Value::Null)
        | (Type::Map(..), Value::Map(_))
        | (Type::Type(_), Value::Type(_)) => true,
        (Type::List(item), Value::List(list)) => match list.get(0) {
            // The first item stands for all: the overload's function checks each.
            Some(Ok(first)) => accepts(item, &first),
            _ => true,
        },
        (Type::Opaque(name, inner), Value::Optional(held)) if &**name == crate::types::OPTIONAL => {
            held.as_ref().is_none_or(|held| inner.first().is_none_or(|inner| accepts(inner, held)))
        }
        (Type::Struct(name) | Type::Opaque(name, _), value) => **name == *value.type_name(),
        _ => false,
    }
}
