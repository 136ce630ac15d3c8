//! The library of resource quantities.

use std::any::Any;

use corten_meta::Quantity;
use corten_meta::quantity::Format;

use super::{int, own, text};
use crate::declare::Line;
use crate::error::Error;
use crate::value::{Opaque, Value};

pub const TABLE: &[Line] = &[
    ("string_to_quantity", "quantity(string) -> Quantity", |_, a| match Quantity::parse(text(a, 0)?) {
        Ok(quantity) => Ok(Value::opaque(QuantityValue(quantity))),
        Err(error) => Err(Error::failed(error.to_string())),
    }),
    ("is_quantity_string", "isQuantity(string) -> bool", |_, a| Ok(Value::Bool(Quantity::parse(text(a, 0)?).is_ok()))),
    ("quantity_sign", "sign(Quantity) -> int", |_, a| Ok(Value::Int(own::<QuantityValue>(a, 0)?.0.sign().into()))),
    ("quantity_is_greater_than", "Quantity::isGreaterThan(Quantity) -> bool", |_, a| {
        Ok(Value::Bool(own::<QuantityValue>(a, 0)?.0 > own::<QuantityValue>(a, 1)?.0))
    }),
    ("quantity_is_less_than", "Quantity::isLessThan(Quantity) -> bool", |_, a| {
        Ok(Value::Bool(own::<QuantityValue>(a, 0)?.0 < own::<QuantityValue>(a, 1)?.0))
    }),
    ("quantity_compare_to", "Quantity::compareTo(Quantity) -> int", |_, a| {
        Ok(Value::Int(own::<QuantityValue>(a, 0)?.0.cmp(&own::<QuantityValue>(a, 1)?.0) as i64))
    }),
    ("quantity_get_float", "Quantity::asApproximateFloat() -> double", |_, a| {
        Ok(Value::Double(own::<QuantityValue>(a, 0)?.0.as_f64()))
    }),
    ("quantity_get_int", "Quantity::asInteger() -> int", |_, a| match as_int(&own::<QuantityValue>(a, 0)?.0) {
        Some(number) => Ok(Value::Int(number)),
        None => Err(Error::failed("cannot convert value to integer")),
    }),
    ("quantity_is_integer", "Quantity::isInteger() -> bool", |_, a| {
        Ok(Value::Bool(as_int(&own::<QuantityValue>(a, 0)?.0).is_some()))
    }),
    ("quantity_add", "Quantity::add(Quantity) -> Quantity", |_, a| {
        Ok(Value::opaque(QuantityValue(own::<QuantityValue>(a, 0)?.0.clone() + own::<QuantityValue>(a, 1)?.0.clone())))
    }),
    ("quantity_add_int", "Quantity::add(int) -> Quantity", |_, a| {
        Ok(Value::opaque(QuantityValue(own::<QuantityValue>(a, 0)?.0.clone() + of_int(int(a, 1)?))))
    }),
    ("quantity_sub", "Quantity::sub(Quantity) -> Quantity", |_, a| {
        Ok(Value::opaque(QuantityValue(own::<QuantityValue>(a, 0)?.0.clone() - own::<QuantityValue>(a, 1)?.0.clone())))
    }),
    ("quantity_sub_int", "Quantity::sub(int) -> Quantity", |_, a| {
        Ok(Value::opaque(QuantityValue(own::<QuantityValue>(a, 0)?.0.clone() - of_int(int(a, 1)?))))
    }),
];

#[derive(Debug)]
struct QuantityValue(Quantity);

impl Opaque for QuantityValue {
    fn type_name(&self) -> &'static str {
        "kubernetes.Quantity"
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<QuantityValue>().is_some_and(|other| other.0 == self.0)
    }

    fn to_text(&self) -> Option<String> {
        Some(self.0.to_string())
    }
}

fn of_int(number: i64) -> Quantity {
    Quantity::from_value(number, Format::DecimalExponent)
}

/// Returns the value as an integer, if it is one of 64 bits.
fn as_int(quantity: &Quantity) -> Option<i64> {
    let number = i64::try_from(quantity.as_value()).ok()?;
    (Quantity::from_value(number, quantity.format()) == *quantity).then_some(number)
}
