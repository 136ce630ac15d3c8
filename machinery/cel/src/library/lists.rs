//! The libraries of lists: Kubernetes' own (sums, extremes, indexes) and the extension of cel-go (slices, sorting,
//! flattening).

use std::cmp::Ordering;

use super::{int, no_overload};
use crate::declare::Line;
use crate::error::Error;
use crate::meter::Meter;
use crate::value::{List, Value, compare, equal};

type Outcome<'a> = Result<Value<'a>, Error>;

pub const TABLE: &[Line] = &[
    ("list_int_is_sorted_bool", "list(int)::isSorted() -> bool", is_sorted),
    ("list_uint_is_sorted_bool", "list(uint)::isSorted() -> bool", is_sorted),
    ("list_double_is_sorted_bool", "list(double)::isSorted() -> bool", is_sorted),
    ("list_bool_is_sorted_bool", "list(bool)::isSorted() -> bool", is_sorted),
    ("list_duration_is_sorted_bool", "list(duration)::isSorted() -> bool", is_sorted),
    ("list_timestamp_is_sorted_bool", "list(timestamp)::isSorted() -> bool", is_sorted),
    ("list_string_is_sorted_bool", "list(string)::isSorted() -> bool", is_sorted),
    ("list_bytes_is_sorted_bool", "list(bytes)::isSorted() -> bool", is_sorted),
    ("list_int_sum_int", "list(int)::sum() -> int", |m, a| sum(m, a, Value::Int(0))),
    ("list_uint_sum_uint", "list(uint)::sum() -> uint", |m, a| sum(m, a, Value::Uint(0))),
    ("list_double_sum_double", "list(double)::sum() -> double", |m, a| sum(m, a, Value::Double(0.0))),
    ("list_duration_sum_duration", "list(duration)::sum() -> duration", |m, a| sum(m, a, Value::Duration(0))),
    ("list_int_max_int", "list(int)::max() -> int", max),
    ("list_uint_max_uint", "list(uint)::max() -> uint", max),
    ("list_double_max_double", "list(double)::max() -> double", max),
    ("list_bool_max_bool", "list(bool)::max() -> bool", max),
    ("list_duration_max_duration", "list(duration)::max() -> duration", max),
    ("list_timestamp_max_timestamp", "list(timestamp)::max() -> timestamp", max),
    ("list_string_max_string", "list(string)::max() -> string", max),
    ("list_bytes_max_bytes", "list(bytes)::max() -> bytes", max),
    ("list_int_min_int", "list(int)::min() -> int", min),
    ("list_uint_min_uint", "list(uint)::min() -> uint", min),
    ("list_double_min_double", "list(double)::min() -> double", min),
    ("list_bool_min_bool", "list(bool)::min() -> bool", min),
    ("list_duration_min_duration", "list(duration)::min() -> duration", min),
    ("list_timestamp_min_timestamp", "list(timestamp)::min() -> timestamp", min),
    ("list_string_min_string", "list(string)::min() -> string", min),
    ("list_bytes_min_bytes", "list(bytes)::min() -> bytes", min),
    ("list_a_index_of_int", "list(A)::indexOf(A) -> int", |m, a| position(m, a, false)),
    ("list_a_last_index_of_int", "list(A)::lastIndexOf(A) -> int", |m, a| position(m, a, true)),
    ("list_slice", "list(T)::slice(int, int) -> list(T)", slice),
    ("list_flatten", "list(list(T))::flatten() -> list(T)", |m, a| flatten(m, a, 1)),
    ("list_flatten_int", "list(dyn)::flatten(int) -> list(dyn)", |m, a| flatten(m, a, int(a, 1)?)),
    ("list_int_sort", "list(int)::sort() -> list(int)", sort),
    ("list_uint_sort", "list(uint)::sort() -> list(uint)", sort),
    ("list_double_sort", "list(double)::sort() -> list(double)", sort),
    ("list_bool_sort", "list(bool)::sort() -> list(bool)", sort),
    ("list_google.protobuf.Duration_sort", "list(duration)::sort() -> list(duration)", sort),
    ("list_google.protobuf.Timestamp_sort", "list(timestamp)::sort() -> list(timestamp)", sort),
    ("list_string_sort", "list(string)::sort() -> list(string)", sort),
    ("list_bytes_sort", "list(bytes)::sort() -> list(bytes)", sort),
    ("list_int_sortByAssociatedKeys", "list(T)::@sortByAssociatedKeys(list(int)) -> list(T)", sort_by),
    ("list_uint_sortByAssociatedKeys", "list(T)::@sortByAssociatedKeys(list(uint)) -> list(T)", sort_by),
    ("list_double_sortByAssociatedKeys", "list(T)::@sortByAssociatedKeys(list(double)) -> list(T)", sort_by),
    ("list_bool_sortByAssociatedKeys", "list(T)::@sortByAssociatedKeys(list(bool)) -> list(T)", sort_by),
    (
        "list_google.protobuf.Duration_sortByAssociatedKeys",
        "list(T)::@sortByAssociatedKeys(list(duration)) -> list(T)",
        sort_by,
    ),
    (
        "list_google.protobuf.Timestamp_sortByAssociatedKeys",
        "list(T)::@sortByAssociatedKeys(list(timestamp)) -> list(T)",
        sort_by,
    ),
    ("list_string_sortByAssociatedKeys", "list(T)::@sortByAssociatedKeys(list(string)) -> list(T)", sort_by),
    ("list_bytes_sortByAssociatedKeys", "list(T)::@sortByAssociatedKeys(list(bytes)) -> list(T)", sort_by),
    ("lists_range", "lists.range(int) -> list(int)", range),
    ("list_reverse", "list(T)::reverse() -> list(T)", reverse),
    ("list_distinct", "list(T)::distinct() -> list(T)", distinct),
];

pub(super) fn list<'v, 'a>(meter: &mut Meter, args: &'v [Value<'a>], index: usize) -> Result<&'v List<'a>, Error> {
    match args.get(index) {
        Some(Value::List(list)) => {
            meter.work(list.len() as u64)?;
            Ok(list)
        }
        _ => Err(no_overload()),
    }
}

fn order(a: &Value<'_>, b: &Value<'_>) -> Result<Ordering, Error> {
    compare(a, b).ok_or_else(no_overload)
}

fn is_sorted<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let mut before: Option<Value<'a>> = None;
    for item in list(meter, args, 0)?.iter() {
        let item = item?;
        if let Some(before) = &before
            && order(before, &item)?.is_gt()
        {
            return Ok(Value::Bool(false));
        }
        before = Some(item);
    }
    Ok(Value::Bool(true))
}

fn sum<'a>(meter: &mut Meter, args: &[Value<'a>], zero: Value<'a>) -> Outcome<'a> {
    let overflow = |what: &str| Error::failed(format!("{what} overflow"));
    let mut total = zero;
    for item in list(meter, args, 0)?.iter() {
        total = match (&total, &item?) {
            (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_add(*b).ok_or_else(|| overflow("integer"))?),
            (Value::Uint(a), Value::Uint(b)) => {
                Value::Uint(a.checked_add(*b).ok_or_else(|| overflow("unsigned integer"))?)
            }
            (Value::Double(a), Value::Double(b)) => Value::Double(a + b),
            (Value::Duration(a), Value::Duration(b)) => {
                Value::Duration(a.checked_add(*b).ok_or_else(|| overflow("duration"))?)
            }
            _ => return Err(no_overload()),
        };
    }
    Ok(total)
}

fn extreme<'a>(meter: &mut Meter, args: &[Value<'a>], name: &str, wanted: Ordering) -> Outcome<'a> {
    let mut best: Option<Value<'a>> = None;
    for item in list(meter, args, 0)?.iter() {
        let item = item?;
        let better = match &best {
            None => true,
            Some(best) => order(&item, best)? == wanted,
        };
        if better {
            best = Some(item);
        }
    }
    best.ok_or_else(|| Error::failed(format!("{name} called on empty list")))
}

fn max<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    extreme(meter, args, "max", Ordering::Greater)
}

fn min<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    extreme(meter, args, "min", Ordering::Less)
}

fn position<'a>(meter: &mut Meter, args: &[Value<'a>], last: bool) -> Outcome<'a> {
    let [Value::List(list), wanted] = args else { return Err(no_overload()) };
    let mut found = -1;
    for (index, item) in list.iter().enumerate() {
        if equal(&item?, wanted, meter)? {
            found = index as i64;
            if !last {
                break;
            }
        }
    }
    Ok(Value::Int(found))
}

fn slice<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let list = list(meter, args, 0)?;
    let start = int(args, 1)?;
    let end = int(args, 2)?;
    let refused = |why: &str| Err(Error::failed(format!("cannot slice({start}, {end}), {why}")));
    if start < 0 || end < 0 {
        return refused("negative indexes not supported");
    }
    if start > end {
        return refused("start index must be less than or equal to end index");
    }
    if (list.len() as i64) < end {
        return refused(&format!("list is length {}", list.len()));
    }
    let items = (start..end).filter_map(|index| list.get(index as usize)).collect::<Result<_, _>>()?;
    Ok(Value::list(items))
}

fn flatten<'a>(meter: &mut Meter, args: &[Value<'a>], depth: i64) -> Outcome<'a> {
    if depth < 0 {
        return Err(Error::failed("level must be non-negative"));
    }
    let mut items = Vec::new();
    let list = list(meter, args, 0)?;
    flatten_into(meter, list, depth, &mut items)?;
    Ok(Value::list(items))
}

fn flatten_into<'a>(meter: &mut Meter, list: &List<'a>, depth: i64, items: &mut Vec<Value<'a>>) -> Result<(), Error> {
    for item in list.iter() {
        meter.work(1)?;
        match item? {
            Value::List(inner) if depth > 0 => flatten_into(meter, &inner, depth - 1, items)?,
            item => items.push(item),
        }
    }
    Ok(())
}

fn sort<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let items = list(meter, args, 0)?.values()?;
    sorted(meter, items.clone(), items)
}

fn sort_by<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let items = list(meter, args, 0)?.values()?;
    let keys = list(meter, args, 1)?.values()?;
    if items.len() != keys.len() {
        return Err(Error::failed(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} elements respectively",
            items.len(),
            keys.len()
        )));
    }
    sorted(meter, items, keys)
}

fn sorted<'a>(meter: &mut Meter, items: Vec<Value<'a>>, keys: Vec<Value<'a>>) -> Outcome<'a> {
    meter.work(items.len() as u64 * 8)?;
    if let Some(first) = keys.first() {
        let kind = first.type_name();
        if compare(first, first).is_none() {
            return Err(Error::failed("list elements must be comparable"));
        }
        if keys.iter().any(|key| key.type_name() != kind) {
            return Err(Error::failed("list elements must have the same type"));
        }
    }
    let mut pairs: Vec<(Value<'a>, Value<'a>)> = keys.into_iter().zip(items).collect();
    pairs.sort_by(|(a, _), (b, _)| compare(a, b).unwrap_or(Ordering::Equal));
    Ok(Value::list(pairs.into_iter().map(|(_, item)| item).collect()))
}

fn range<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let count = int(args, 0)?.max(0);
    meter.work(count as u64)?;
    Ok(Value::list((0..count).map(Value::Int).collect()))
}

fn reverse<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let mut items = list(meter, args, 0)?.values()?;
    items.reverse();
    Ok(Value::list(items))
}

fn distinct<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let mut kept: Vec<Value<'a>> = Vec::new();
    for item in list(meter, args, 0)?.values()? {
        let mut seen = false;
        for other in &kept {
            seen = seen || equal(&item, other, meter)?;
        }
        if !seen {
            kept.push(item);
        }
    }
    Ok(Value::list(kept))
}
