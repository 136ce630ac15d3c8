//! Equality and order across types. Numbers compare by value, regardless of their type; values of different types are
//! unequal.

use std::cmp::Ordering;

use super::{List, Map, Value};
use crate::error::Error;
use crate::meter::Meter;
use crate::schema::ListType;

/// Reports whether two values are equal. Every compared value counts as work.
pub fn equal(a: &Value<'_>, b: &Value<'_>, meter: &mut Meter) -> Result<bool, Error> {
    meter.work(1)?;
    Ok(match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::String(a), Value::String(b)) => {
            meter.work(a.len().min(b.len()) as u64 / 16)?;
            **a == **b
        }
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Type(a), Value::Type(b)) => a == b,
        (Value::Opaque(a), Value::Opaque(b)) => a.equals(b.as_ref()),
        (Value::Optional(a), Value::Optional(b)) => match (a, b) {
            (Some(a), Some(b)) => equal(a, b, meter)?,
            (None, None) => true,
            _ => false,
        },
        (Value::List(a), Value::List(b)) => lists_equal(a, b, meter)?,
        (Value::Map(a), Value::Map(b)) => maps_equal(a, b, meter)?,
        (Value::Message(a), Value::Message(b)) => {
            let mut same = a.0 == b.0 && a.1.len() == b.1.len();
            for (name, value) in a.1.iter() {
                same = same && b.1.get(name).map(|other| equal(value, other, meter)).transpose()?.unwrap_or(false);
            }
            same
        }
        (a, b) => numbers(a, b) == Some(Ordering::Equal),
    })
}

fn lists_equal(a: &List<'_>, b: &List<'_>, meter: &mut Meter) -> Result<bool, Error> {
    if a.len() != b.len() {
        return Ok(false);
    }
    // A set and a map of items have no order.
    let unordered = a.decl().or(b.decl()).is_some_and(|decl| decl.list_type() != ListType::Atomic);
    if unordered {
        let others = b.values()?;
        for item in a.iter() {
            let item = item?;
            let mut found = false;
            for other in &others {
                found = found || equal(&item, other, meter)?;
            }
            if !found {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    for (a, b) in a.iter().zip(b.iter()) {
        if !equal(&a?, &b?, meter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn maps_equal(a: &Map<'_>, b: &Map<'_>, meter: &mut Meter) -> Result<bool, Error> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for (key, value) in a.entries()? {
        match b.get(&key)? {
            Some(other) if equal(&value, &other, meter)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Returns the order of two values of one type, or of two numbers; `None` if they have none.
pub fn compare(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::String(a), Value::String(b)) => Some((**a).cmp(&**b)),
        (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Some(a.cmp(b)),
        (Value::Duration(a), Value::Duration(b)) => Some(a.cmp(b)),
        (a, b) => numbers(a, b),
    }
}

fn numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Uint(a), Value::Uint(b)) => Some(a.cmp(b)),
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Int(a), Value::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Uint(a), Value::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Int(a), Value::Double(b)) => integer_and_double(i128::from(*a), *b),
        (Value::Uint(a), Value::Double(b)) => integer_and_double(i128::from(*a), *b),
        (Value::Double(a), Value::Int(b)) => integer_and_double(i128::from(*b), *a).map(Ordering::reverse),
        (Value::Double(a), Value::Uint(b)) => integer_and_double(i128::from(*b), *a).map(Ordering::reverse),
        _ => None,
    }
}

fn integer_and_double(integer: i128, double: f64) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    // Beyond these bounds every integer of 64 bits is on one side.
    if double >= 18_446_744_073_709_551_616.0 {
        return Some(Ordering::Less);
    }
    if double < -9_223_372_036_854_775_808.0 {
        return Some(Ordering::Greater);
    }
    let floor = double.floor() as i128;
    Some(integer.cmp(&floor).then(if double.fract() == 0.0 { Ordering::Equal } else { Ordering::Less }))
}
