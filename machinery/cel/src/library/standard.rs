//! The standard functions of the language: operators, sizes, conversions, and string functions.

use std::cmp::Ordering;
use std::rc::Rc;

use corten_meta::go::float;

use super::time::{format_duration, format_timestamp, parse_duration};
use super::{no_overload, regex, text};
use crate::declare::Line;
use crate::error::Error;
use crate::meter::Meter;
use crate::schema::ListType;
use crate::value::{List, Value, compare, equal};

type Outcome<'a> = Result<Value<'a>, Error>;

/// Stands for an overload that the evaluator handles; the table has it for its types.
fn lazy<'a>(_: &mut Meter, _: &[Value<'a>]) -> Outcome<'a> {
    Err(no_overload())
}

pub const TABLE: &[Line] = &[
    ("conditional", "_?_:_(bool, A, A) -> A", lazy),
    ("logical_and", "_&&_(bool, bool) -> bool", lazy),
    ("logical_or", "_||_(bool, bool) -> bool", lazy),
    ("logical_not", "!_(bool) -> bool", not),
    ("not_strictly_false", "@not_strictly_false(bool) -> bool", lazy),
    ("equals", "_==_(A, A) -> bool", equals),
    ("not_equals", "_!=_(A, A) -> bool", not_equals),
    ("index_list", "_[_](list(A), int) -> A", lazy),
    ("index_map", "_[_](map(A, B), A) -> B", lazy),
    ("in_list", "@in(A, list(A)) -> bool", in_list),
    ("in_map", "@in(A, map(A, B)) -> bool", in_map),
    ("add_bytes", "_+_(bytes, bytes) -> bytes", add),
    ("add_double", "_+_(double, double) -> double", add),
    ("add_duration_duration", "_+_(duration, duration) -> duration", add),
    ("add_duration_timestamp", "_+_(duration, timestamp) -> timestamp", add),
    ("add_timestamp_duration", "_+_(timestamp, duration) -> timestamp", add),
    ("add_int64", "_+_(int, int) -> int", add),
    ("add_list", "_+_(list(A), list(A)) -> list(A)", add_list),
    ("add_string", "_+_(string, string) -> string", add),
    ("add_uint64", "_+_(uint, uint) -> uint", add),
    ("divide_double", "_/_(double, double) -> double", arithmetic_divide),
    ("divide_int64", "_/_(int, int) -> int", arithmetic_divide),
    ("divide_uint64", "_/_(uint, uint) -> uint", arithmetic_divide),
    ("modulo_int64", "_%_(int, int) -> int", modulo),
    ("modulo_uint64", "_%_(uint, uint) -> uint", modulo),
    ("multiply_double", "_*_(double, double) -> double", multiply),
    ("multiply_int64", "_*_(int, int) -> int", multiply),
    ("multiply_uint64", "_*_(uint, uint) -> uint", multiply),
    ("negate_double", "-_(double) -> double", negate),
    ("negate_int64", "-_(int) -> int", negate),
    ("subtract_double", "_-_(double, double) -> double", subtract),
    ("subtract_duration_duration", "_-_(duration, duration) -> duration", subtract),
    ("subtract_int64", "_-_(int, int) -> int", subtract),
    ("subtract_timestamp_duration", "_-_(timestamp, duration) -> timestamp", subtract),
    ("subtract_timestamp_timestamp", "_-_(timestamp, timestamp) -> duration", subtract),
    ("subtract_uint64", "_-_(uint, uint) -> uint", subtract),
    ("less_bool", "_<_(bool, bool) -> bool", less),
    ("less_int64", "_<_(int, int) -> bool", less),
    ("less_int64_double", "_<_(int, double) -> bool", less),
    ("less_int64_uint64", "_<_(int, uint) -> bool", less),
    ("less_uint64", "_<_(uint, uint) -> bool", less),
    ("less_uint64_double", "_<_(uint, double) -> bool", less),
    ("less_uint64_int64", "_<_(uint, int) -> bool", less),
    ("less_double", "_<_(double, double) -> bool", less),
    ("less_double_int64", "_<_(double, int) -> bool", less),
    ("less_double_uint64", "_<_(double, uint) -> bool", less),
    ("less_string", "_<_(string, string) -> bool", less),
    ("less_bytes", "_<_(bytes, bytes) -> bool", less),
    ("less_timestamp", "_<_(timestamp, timestamp) -> bool", less),
    ("less_duration", "_<_(duration, duration) -> bool", less),
    ("less_equals_bool", "_<=_(bool, bool) -> bool", less_equals),
    ("less_equals_int64", "_<=_(int, int) -> bool", less_equals),
    ("less_equals_int64_double", "_<=_(int, double) -> bool", less_equals),
    ("less_equals_int64_uint64", "_<=_(int, uint) -> bool", less_equals),
    ("less_equals_uint64", "_<=_(uint, uint) -> bool", less_equals),
    ("less_equals_uint64_double", "_<=_(uint, double) -> bool", less_equals),
    ("less_equals_uint64_int64", "_<=_(uint, int) -> bool", less_equals),
    ("less_equals_double", "_<=_(double, double) -> bool", less_equals),
    ("less_equals_double_int64", "_<=_(double, int) -> bool", less_equals),
    ("less_equals_double_uint64", "_<=_(double, uint) -> bool", less_equals),
    ("less_equals_string", "_<=_(string, string) -> bool", less_equals),
    ("less_equals_bytes", "_<=_(bytes, bytes) -> bool", less_equals),
    ("less_equals_timestamp", "_<=_(timestamp, timestamp) -> bool", less_equals),
    ("less_equals_duration", "_<=_(duration, duration) -> bool", less_equals),
    ("greater_bool", "_>_(bool, bool) -> bool", greater),
    ("greater_int64", "_>_(int, int) -> bool", greater),
    ("greater_int64_double", "_>_(int, double) -> bool", greater),
    ("greater_int64_uint64", "_>_(int, uint) -> bool", greater),
    ("greater_uint64", "_>_(uint, uint) -> bool", greater),
    ("greater_uint64_double", "_>_(uint, double) -> bool", greater),
    ("greater_uint64_int64", "_>_(uint, int) -> bool", greater),
    ("greater_double", "_>_(double, double) -> bool", greater),
    ("greater_double_int64", "_>_(double, int) -> bool", greater),
    ("greater_double_uint64", "_>_(double, uint) -> bool", greater),
    ("greater_string", "_>_(string, string) -> bool", greater),
    ("greater_bytes", "_>_(bytes, bytes) -> bool", greater),
    ("greater_timestamp", "_>_(timestamp, timestamp) -> bool", greater),
    ("greater_duration", "_>_(duration, duration) -> bool", greater),
    ("greater_equals_bool", "_>=_(bool, bool) -> bool", greater_equals),
    ("greater_equals_int64", "_>=_(int, int) -> bool", greater_equals),
    ("greater_equals_int64_double", "_>=_(int, double) -> bool", greater_equals),
    ("greater_equals_int64_uint64", "_>=_(int, uint) -> bool", greater_equals),
    ("greater_equals_uint64", "_>=_(uint, uint) -> bool", greater_equals),
    ("greater_equals_uint64_double", "_>=_(uint, double) -> bool", greater_equals),
    ("greater_equals_uint64_int64", "_>=_(uint, int) -> bool", greater_equals),
    ("greater_equals_double", "_>=_(double, double) -> bool", greater_equals),
    ("greater_equals_double_int64", "_>=_(double, int) -> bool", greater_equals),
    ("greater_equals_double_uint64", "_>=_(double, uint) -> bool", greater_equals),
    ("greater_equals_string", "_>=_(string, string) -> bool", greater_equals),
    ("greater_equals_bytes", "_>=_(bytes, bytes) -> bool", greater_equals),
    ("greater_equals_timestamp", "_>=_(timestamp, timestamp) -> bool", greater_equals),
    ("greater_equals_duration", "_>=_(duration, duration) -> bool", greater_equals),
    ("size_bytes", "size(bytes) -> int", size),
    ("bytes_size", "bytes::size() -> int", size),
    ("size_list", "size(list(A)) -> int", size),
    ("list_size", "list(A)::size() -> int", size),
    ("size_map", "size(map(A, B)) -> int", size),
    ("map_size", "map(A, B)::size() -> int", size),
    ("size_string", "size(string) -> int", size),
    ("string_size", "string::size() -> int", size),
    ("type", "type(A) -> type(A)", type_of),
    ("bool_to_bool", "bool(bool) -> bool", to_bool),
    ("string_to_bool", "bool(string) -> bool", to_bool),
    ("bytes_to_bytes", "bytes(bytes) -> bytes", to_bytes),
    ("string_to_bytes", "bytes(string) -> bytes", to_bytes),
    ("double_to_double", "double(double) -> double", to_double),
    ("int64_to_double", "double(int) -> double", to_double),
    ("string_to_double", "double(string) -> double", to_double),
    ("uint64_to_double", "double(uint) -> double", to_double),
    ("duration_to_duration", "duration(duration) -> duration", to_duration),
    ("int64_to_duration", "duration(int) -> duration", to_duration),
    ("string_to_duration", "duration(string) -> duration", to_duration),
    ("to_dyn", "dyn(A) -> dyn", identity),
    ("int64_to_int64", "int(int) -> int", to_int),
    ("double_to_int64", "int(double) -> int", to_int),
    ("duration_to_int64", "int(duration) -> int", to_int),
    ("string_to_int64", "int(string) -> int", to_int),
    ("timestamp_to_int64", "int(timestamp) -> int", to_int),
    ("uint64_to_int64", "int(uint) -> int", to_int),
    ("string_to_string", "string(string) -> string", to_string),
    ("bool_to_string", "string(bool) -> string", to_string),
    ("bytes_to_string", "string(bytes) -> string", to_string),
    ("double_to_string", "string(double) -> string", to_string),
    ("duration_to_string", "string(duration) -> string", to_string),
    ("int64_to_string", "string(int) -> string", to_string),
    ("timestamp_to_string", "string(timestamp) -> string", to_string),
    ("uint64_to_string", "string(uint) -> string", to_string),
    ("timestamp_to_timestamp", "timestamp(timestamp) -> timestamp", to_timestamp),
    ("int64_to_timestamp", "timestamp(int) -> timestamp", to_timestamp),
    ("string_to_timestamp", "timestamp(string) -> timestamp", to_timestamp),
    ("uint64_to_uint64", "uint(uint) -> uint", to_uint),
    ("double_to_uint64", "uint(double) -> uint", to_uint),
    ("int64_to_uint64", "uint(int) -> uint", to_uint),
    ("string_to_uint64", "uint(string) -> uint", to_uint),
    ("contains_string", "string::contains(string) -> bool", contains),
    ("ends_with_string", "string::endsWith(string) -> bool", ends_with),
    ("starts_with_string", "string::startsWith(string) -> bool", starts_with),
    ("matches", "matches(string, string) -> bool", matches),
    ("matches_string", "string::matches(string) -> bool", matches),
];

fn two<'v, 'a>(args: &'v [Value<'a>]) -> Result<(&'v Value<'a>, &'v Value<'a>), Error> {
    match args {
        [left, right] => Ok((left, right)),
        _ => Err(no_overload()),
    }
}

fn one<'v, 'a>(args: &'v [Value<'a>]) -> Result<&'v Value<'a>, Error> {
    args.first().ok_or_else(no_overload)
}

fn not<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match one(args)? {
        Value::Bool(b) => Ok(Value::Bool(!b)),
        _ => Err(no_overload()),
    }
}

fn equals<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (left, right) = two(args)?;
    Ok(Value::Bool(equal(left, right, meter)?))
}

fn not_equals<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (left, right) = two(args)?;
    Ok(Value::Bool(!equal(left, right, meter)?))
}

fn in_list<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (item, Value::List(list)) = two(args)? else { return Err(no_overload()) };
    for other in list.iter() {
        if equal(item, &other?, meter)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn in_map<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (key, Value::Map(map)) = two(args)? else { return Err(no_overload()) };
    Ok(Value::Bool(map.get(key)?.is_some()))
}

fn overflow(kind: &str) -> Error {
    Error::failed(format!("{kind} overflow"))
}

const INT: &str = "integer";
const UINT: &str = "unsigned integer";

fn add<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match two(args)? {
        (Value::Int(a), Value::Int(b)) => a.checked_add(*b).map(Value::Int).ok_or_else(|| overflow(INT)),
        (Value::Uint(a), Value::Uint(b)) => a.checked_add(*b).map(Value::Uint).ok_or_else(|| overflow(UINT)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        (Value::String(a), Value::String(b)) => {
            meter.work((a.len() + b.len()) as u64 / 8)?;
            Ok(Value::string([&**a, &**b].concat()))
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            meter.work((a.len() + b.len()) as u64 / 8)?;
            Ok(Value::Bytes([&**a, &**b].concat().into()))
        }
        (Value::Duration(a), Value::Duration(b)) => {
            a.checked_add(*b).map(Value::Duration).ok_or_else(|| overflow("duration"))
        }
        (Value::Timestamp(at), Value::Duration(nanos)) | (Value::Duration(nanos), Value::Timestamp(at)) => {
            shift(*at, *nanos)
        }
        _ => Err(no_overload()),
    }
}

fn shift<'a>(at: jiff::Timestamp, nanos: i64) -> Outcome<'a> {
    at.checked_add(jiff::SignedDuration::from_nanos(nanos)).map(Value::Timestamp).map_err(|_| overflow("timestamp"))
}

/// Concatenates lists; merges declared sets and maps of items.
fn add_list<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (Value::List(left), Value::List(right)) = two(args)? else { return Err(no_overload()) };
    meter.work((left.len() + right.len()) as u64)?;
    let mut items = left.values()?;
    let decl = left.decl();
    let list_type = decl.map_or(ListType::Atomic, |decl| decl.list_type());
    for item in right.iter() {
        let item = item?;
        let place = match list_type {
            ListType::Atomic => None,
            ListType::Set => position(&items, |other, meter| equal(other, &item, meter), meter)?,
            ListType::Map => position(&items, |other, meter| same_keys(decl, other, &item, meter), meter)?,
        };
        match place {
            Some(at) => items[at] = item,
            None => items.push(item),
        }
    }
    Ok(Value::List(List::Owned(Rc::new(items))))
}

fn position<'a>(
    items: &[Value<'a>],
    same: impl Fn(&Value<'a>, &mut Meter) -> Result<bool, Error>,
    meter: &mut Meter,
) -> Result<Option<usize>, Error> {
    for (at, item) in items.iter().enumerate() {
        if same(item, meter)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Reports whether two items of a map of items have the same keys.
fn same_keys(
    decl: Option<&crate::schema::Decl>,
    a: &Value<'_>,
    b: &Value<'_>,
    meter: &mut Meter,
) -> Result<bool, Error> {
    let Some(crate::schema::Shape::List { keys, .. }) = decl.map(|decl| &decl.shape) else { return Ok(false) };
    for key in keys {
        let name = crate::escape::escape(key).unwrap_or_else(|| key.clone());
        match (a.field(&name)?, b.field(&name)?) {
            (Some(a), Some(b)) if equal(&a, &b, meter)? => {}
            (None, None) => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn subtract<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match two(args)? {
        (Value::Int(a), Value::Int(b)) => a.checked_sub(*b).map(Value::Int).ok_or_else(|| overflow(INT)),
        (Value::Uint(a), Value::Uint(b)) => a.checked_sub(*b).map(Value::Uint).ok_or_else(|| overflow(UINT)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a - b)),
        (Value::Duration(a), Value::Duration(b)) => {
            a.checked_sub(*b).map(Value::Duration).ok_or_else(|| overflow("duration"))
        }
        (Value::Timestamp(at), Value::Duration(nanos)) => {
            shift(*at, nanos.checked_neg().ok_or_else(|| overflow("timestamp"))?)
        }
        (Value::Timestamp(a), Value::Timestamp(b)) => {
            let nanos = a.duration_since(*b).as_nanos();
            i64::try_from(nanos).map(Value::Duration).map_err(|_| overflow("duration"))
        }
        _ => Err(no_overload()),
    }
}

fn multiply<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match two(args)? {
        (Value::Int(a), Value::Int(b)) => a.checked_mul(*b).map(Value::Int).ok_or_else(|| overflow(INT)),
        (Value::Uint(a), Value::Uint(b)) => a.checked_mul(*b).map(Value::Uint).ok_or_else(|| overflow(UINT)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a * b)),
        _ => Err(no_overload()),
    }
}

fn arithmetic_divide<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match two(args)? {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => Err(Error::failed("division by zero")),
        (Value::Int(a), Value::Int(b)) => a.checked_div(*b).map(Value::Int).ok_or_else(|| overflow(INT)),
        (Value::Uint(a), Value::Uint(b)) => a.checked_div(*b).map(Value::Uint).ok_or_else(|| overflow(UINT)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a / b)),
        _ => Err(no_overload()),
    }
}

fn modulo<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match two(args)? {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => Err(Error::failed("modulus by zero")),
        (Value::Int(a), Value::Int(b)) => a.checked_rem(*b).map(Value::Int).ok_or_else(|| overflow(INT)),
        (Value::Uint(a), Value::Uint(b)) => a.checked_rem(*b).map(Value::Uint).ok_or_else(|| overflow(UINT)),
        _ => Err(no_overload()),
    }
}

fn negate<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match one(args)? {
        Value::Int(n) => n.checked_neg().map(Value::Int).ok_or_else(|| overflow(INT)),
        Value::Double(n) => Ok(Value::Double(-n)),
        _ => Err(no_overload()),
    }
}

/// Compares two values; NaN has no order.
fn ordered<'a>(args: &[Value<'a>], test: impl Fn(Ordering) -> bool) -> Outcome<'a> {
    let (left, right) = two(args)?;
    match compare(left, right) {
        Some(order) => Ok(Value::Bool(test(order))),
        None if is_nan(left) || is_nan(right) => Err(Error::failed("NaN values cannot be ordered")),
        None => Err(no_overload()),
    }
}

fn is_nan(value: &Value<'_>) -> bool {
    matches!(value, Value::Double(n) if n.is_nan())
}

fn less<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    ordered(args, Ordering::is_lt)
}

fn less_equals<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    ordered(args, Ordering::is_le)
}

fn greater<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    ordered(args, Ordering::is_gt)
}

fn greater_equals<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    ordered(args, Ordering::is_ge)
}

fn size<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Int(one(args)?.size() as i64))
}

fn type_of<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Type(one(args)?.type_name()))
}

fn identity<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    one(args).cloned()
}

fn conversion(value: &Value<'_>, to: &str) -> Error {
    Error::failed(format!("type conversion error from '{}' to '{to}'", value.type_name()))
}

fn to_bool<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    match value {
        Value::Bool(b) => Ok(Value::Bool(*b)),
        Value::String(word) => match &**word {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Value::Bool(false)),
            _ => Err(conversion(value, "bool")),
        },
        _ => Err(no_overload()),
    }
}

fn to_bytes<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match one(args)? {
        Value::String(text) => Ok(Value::Bytes(text.as_bytes().into())),
        other => Ok(other.clone()),
    }
}

fn to_double<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    match value {
        Value::Double(n) => Ok(Value::Double(*n)),
        Value::Int(n) => Ok(Value::Double(*n as f64)),
        Value::Uint(n) => Ok(Value::Double(*n as f64)),
        Value::String(text) => text.parse().map(Value::Double).map_err(|_| conversion(value, "double")),
        _ => Err(no_overload()),
    }
}

fn to_int<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    match value {
        Value::Int(n) => Ok(Value::Int(*n)),
        Value::Uint(n) => i64::try_from(*n).map(Value::Int).map_err(|_| overflow(INT)),
        Value::Double(n) if *n > i64::MIN as f64 && *n < i64::MAX as f64 => Ok(Value::Int(*n as i64)),
        Value::Double(_) => Err(overflow(INT)),
        Value::Duration(nanos) => Ok(Value::Int(*nanos)),
        Value::Timestamp(at) => Ok(Value::Int(at.as_second())),
        Value::String(text) => text.parse().map(Value::Int).map_err(|_| conversion(value, "int")),
        _ => Err(no_overload()),
    }
}

fn to_uint<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    match value {
        Value::Uint(n) => Ok(Value::Uint(*n)),
        Value::Int(n) => u64::try_from(*n).map(Value::Uint).map_err(|_| overflow(UINT)),
        Value::Double(n) if *n >= 0.0 && *n < u64::MAX as f64 => Ok(Value::Uint(*n as u64)),
        Value::Double(_) => Err(overflow(UINT)),
        Value::String(text) => text.parse().map(Value::Uint).map_err(|_| conversion(value, "uint")),
        _ => Err(no_overload()),
    }
}

fn to_string<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    match value {
        Value::String(_) => Ok(value.clone()),
        Value::Bool(b) => Ok(Value::string(b.to_string())),
        Value::Int(n) => Ok(Value::string(n.to_string())),
        Value::Uint(n) => Ok(Value::string(n.to_string())),
        Value::Double(n) => Ok(Value::string(float(*n))),
        Value::Bytes(bytes) => std::str::from_utf8(bytes)
            .map(Value::string)
            .map_err(|_| Error::failed("invalid UTF-8 in bytes, cannot convert to string")),
        Value::Timestamp(at) => Ok(Value::string(format_timestamp(*at))),
        Value::Duration(nanos) => Ok(Value::string(format_duration(*nanos))),
        _ => Err(no_overload()),
    }
}

fn to_duration<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    match value {
        Value::Duration(nanos) => Ok(Value::Duration(*nanos)),
        Value::Int(nanos) => Ok(Value::Duration(*nanos)),
        Value::String(text) => {
            parse_duration(text).map(Value::Duration).ok_or_else(|| conversion(value, "google.protobuf.Duration"))
        }
        _ => Err(no_overload()),
    }
}

fn to_timestamp<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    match value {
        Value::Timestamp(at) => Ok(Value::Timestamp(*at)),
        Value::Int(seconds) => {
            jiff::Timestamp::from_second(*seconds).map(Value::Timestamp).map_err(|_| overflow("timestamp"))
        }
        Value::String(text) => corten_meta::time::parse(text)
            .map(Value::Timestamp)
            .map_err(|_| conversion(value, "google.protobuf.Timestamp")),
        _ => Err(no_overload()),
    }
}

fn contains<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Bool(text(args, 0)?.contains(&**text(args, 1)?)))
}

fn starts_with<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Bool(text(args, 0)?.starts_with(&**text(args, 1)?)))
}

fn ends_with<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Bool(text(args, 0)?.ends_with(&**text(args, 1)?)))
}

fn matches<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let pattern = regex::compile(text(args, 1)?).map_err(Error::failed)?;
    Ok(Value::Bool(pattern.is_match(text(args, 0)?)))
}
