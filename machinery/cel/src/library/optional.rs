//! The library of optional values. The evaluator handles `or` and `orValue`, since they need not evaluate their
//! argument.

use super::lists::list;
use super::no_overload;
use crate::declare::Line;
use crate::error::Error;
use crate::meter::Meter;
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, Error>;

fn lazy<'a>(_: &mut Meter, _: &[Value<'a>]) -> Outcome<'a> {
    Err(no_overload())
}

pub const TABLE: &[Line] = &[
    ("optional_of", "optional.of(V) -> optional(V)", |_, a| {
        a.first().cloned().map(Value::some).ok_or_else(no_overload)
    }),
    ("optional_ofNonZeroValue", "optional.ofNonZeroValue(V) -> optional(V)", |_, a| match a.first() {
        Some(value) if value.is_zero() => Ok(Value::none()),
        Some(value) => Ok(Value::some(value.clone())),
        None => Err(no_overload()),
    }),
    ("optional_none", "optional.none() -> optional(V)", |_, _| Ok(Value::none())),
    ("optional_value", "optional(V)::value() -> V", |_, a| match a.first() {
        Some(Value::Optional(Some(held))) => Ok((**held).clone()),
        Some(Value::Optional(None)) => Err(Error::failed("optional.none() dereference")),
        _ => Err(no_overload()),
    }),
    ("optional_hasValue", "optional(V)::hasValue() -> bool", |_, a| match a.first() {
        Some(Value::Optional(held)) => Ok(Value::Bool(held.is_some())),
        _ => Err(no_overload()),
    }),
    ("optional_or_optional", "optional(V)::or(optional(V)) -> optional(V)", lazy),
    ("optional_orValue_value", "optional(V)::orValue(V) -> V", lazy),
    ("select_optional_field", "_?._(dyn, string) -> optional(V)", lazy),
    ("list_optindex_optional_int", "_[?_](list(V), int) -> optional(V)", lazy),
    ("optional_list_optindex_optional_int", "_[?_](optional(list(V)), int) -> optional(V)", lazy),
    ("map_optindex_optional_value", "_[?_](map(K, V), K) -> optional(V)", lazy),
    ("optional_map_optindex_optional_value", "_[?_](optional(map(K, V)), K) -> optional(V)", lazy),
    ("optional_list_index_int", "_[_](optional(list(V)), int) -> optional(V)", lazy),
    ("optional_map_index_value", "_[_](optional(map(K, V)), K) -> optional(V)", lazy),
    ("list_last", "list(V)::last() -> optional(V)", |m, a| at(m, a, true)),
    ("list_first", "list(V)::first() -> optional(V)", |m, a| at(m, a, false)),
    ("optional_unwrap", "optional.unwrap(list(optional(V))) -> list(V)", unwrap),
    ("optional_unwrapOpt", "list(optional(V))::unwrapOpt() -> list(V)", unwrap),
    ("cel_mapInsert_key_value", "cel.@mapInsert(map(K, V), K, V) -> map(K, V)", lazy),
    ("cel_mapInsert_map", "cel.@mapInsert(map(K, V), map(K, V)) -> map(K, V)", lazy),
];

fn at<'a>(_: &mut Meter, args: &[Value<'a>], last: bool) -> Outcome<'a> {
    let Some(Value::List(list)) = args.first() else { return Err(no_overload()) };
    let index = if last { list.len().wrapping_sub(1) } else { 0 };
    match list.get(index) {
        None => Ok(Value::none()),
        Some(value) => Ok(Value::some(value?)),
    }
}

fn unwrap<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let mut held = Vec::new();
    for item in list(meter, args, 0)?.iter() {
        match item? {
            Value::Optional(Some(value)) => held.push((*value).clone()),
            Value::Optional(None) => {}
            other => return Err(Error::failed(format!("value {other:?} is not optional"))),
        }
    }
    Ok(Value::list(held))
}
