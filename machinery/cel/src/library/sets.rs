//! The library of sets, which are lists.

use super::lists::list;
use crate::declare::Line;
use crate::error::Error;
use crate::meter::Meter;
use crate::value::{List, Value, equal};

pub const TABLE: &[Line] = &[
    ("list_sets_contains_list", "sets.contains(list(T), list(T)) -> bool", |m, a| {
        let superset = list(m, a, 0)?;
        let part = list(m, a, 1)?;
        Ok(Value::Bool(contains(m, superset, part)?))
    }),
    ("list_sets_equivalent_list", "sets.equivalent(list(T), list(T)) -> bool", |m, a| {
        let left = list(m, a, 0)?;
        let right = list(m, a, 1)?;
        Ok(Value::Bool(contains(m, left, right)? && contains(m, right, left)?))
    }),
    ("list_sets_intersects_list", "sets.intersects(list(T), list(T)) -> bool", |m, a| {
        let left = list(m, a, 0)?;
        let right = list(m, a, 1)?;
        for item in right.iter() {
            if has(m, left, &item?)? {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }),
];

fn has<'a>(meter: &mut Meter, list: &List<'a>, wanted: &Value<'a>) -> Result<bool, Error> {
    for item in list.iter() {
        if equal(&item?, wanted, meter)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn contains<'a>(meter: &mut Meter, superset: &List<'a>, part: &List<'a>) -> Result<bool, Error> {
    for item in part.iter() {
        if !has(meter, superset, &item?)? {
            return Ok(false);
        }
    }
    Ok(true)
}
