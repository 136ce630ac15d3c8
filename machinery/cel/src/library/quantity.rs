//! Resource quantities.

use std::any::Any;

use corten_meta::Quantity;
use corten_meta::quantity::Format;

use super::{int, own, text};
use crate::declare::Line;
use crate::error::Error;
use crate::value::{Opaque, Value};

pub const TABLE: &[Line] = &[
    ("string_to_quantity", "quantity(string) -> Quantity", |_, a| match Quantity::parse(text(a, 0)?) {
        Ok(quantity) => Ok(Value::opaque(Amount(quantity))),
        Err(error) => Err(Error::failed(error.to_string())),
    }),
    ("is_quantity_string", "isQuantity(string) -> bool", |_, a| Ok(Value::Bool(Quantity::parse(text(a, 0)?).is_ok()))),
    ("quantity_sign", "sign(Quantity) -> int", |_, a| Ok(Value::Int(own::<Amount>(a, 0)?.0.sign().into()))),
    ("quantity_is_greater_than", "Quantity::isGreaterThan(Quantity) -> bool", |_, a| {
        Ok(Value::Bool(own::<Amount>(a, 0)?.0 > own::<Amount>(a, 1)?.0))
    }),
    ("quantity_is_less_than", "Quantity::isLessThan(Quantity) -> bool", |_, a| {
        Ok(Value::Bool(own::<Amount>(a, 0)?.0 < own::<Amount>(a, 1)?.0))
    }),
    ("quantity_compare_to", "Quantity::compareTo(Quantity) -> int", |_, a| {
        Ok(Value::Int(own::<Amount>(a, 0)?.0.cmp(&own::<Amount>(a, 1)?.0) as i64))
    }),
    ("quantity_get_float", "Quantity::asApproximateFloat() -> double", |_, a| {
        Ok(Value::Double(own::<Amount>(a, 0)?.0.as_f64()))
    }),
    ("quantity_get_int", "Quantity::asInteger() -> int", |_, a| match whole(&own::<Amount>(a, 0)?.0) {
        Some(number) => Ok(Value::Int(number)),
        None => Err(Error::failed("cannot convert value to integer")),
    }),
    ("quantity_is_integer", "Quantity::isInteger() -> bool", |_, a| {
        Ok(Value::Bool(whole(&own::<Amount>(a, 0)?.0).is_some()))
    }),
    ("quantity_add", "Quantity::add(Quantity) -> Quantity", |_, a| {
        Ok(Value::opaque(Amount(own::<Amount>(a, 0)?.0.clone() + own::<Amount>(a, 1)?.0.clone())))
    }),
    ("quantity_add_int", "Quantity::add(int) -> Quantity", |_, a| {
        Ok(Value::opaque(Amount(own::<Amount>(a, 0)?.0.clone() + of_int(int(a, 1)?))))
    }),
    ("quantity_sub", "Quantity::sub(Quantity) -> Quantity", |_, a| {
        Ok(Value::opaque(Amount(own::<Amount>(a, 0)?.0.clone() - own::<Amount>(a, 1)?.0.clone())))
    }),
    ("quantity_sub_int", "Quantity::sub(int) -> Quantity", |_, a| {
        Ok(Value::opaque(Amount(own::<Amount>(a, 0)?.0.clone() - of_int(int(a, 1)?))))
    }),
];

#[derive(Debug)]
struct Amount(Quantity);

impl Opaque for Amount {
    fn type_name(&self) -> &'static str {
        "kubernetes.Quantity"
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Amount>().is_some_and(|other| other.0 == self.0)
    }

    fn to_text(&self) -> Option<String> {
        Some(self.0.to_string())
    }
}

fn of_int(number: i64) -> Quantity {
    Quantity::from_value(number, Format::DecimalExponent)
}

/// The value as a whole number, if it is one of 64 bits.
fn whole(quantity: &Quantity) -> Option<i64> {
    let number = i64::try_from(quantity.as_value()).ok()?;
    (Quantity::from_value(number, quantity.format()) == *quantity).then_some(number)
}
