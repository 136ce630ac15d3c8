//! Quantities in their canonical form.
//!
//! The canonical form of a quantity beyond the known suffixes loses its value: upstream writes `1000E` as `1`. Such a
//! quantity stays as it was sent until the object is stored, because rules need its value.

use corten_meta::{Quantity, Value};

use super::{Field, FieldType, Type, schema};

/// Reports whether values of a field are quantities.
pub(super) fn holds_quantities(kind: &FieldType) -> bool {
    match kind {
        FieldType::Quantity => true,
        FieldType::List(inner) | FieldType::Map(inner) => holds_quantities(inner),
        _ => false,
    }
}

/// Writes a quantity canonically, unless rules would see another value. An invalid one stays as it is, for validation
/// to find. Reports whether it was in another form.
pub(super) fn canonicalize(value: &mut Value) -> bool {
    let Ok(quantity) = Quantity::from_json(value) else { return false };
    let text = quantity.to_string();
    if value.as_str() == Some(&text) {
        return false;
    }
    let read = Quantity::parse(&text);
    let is_as_much = read.as_ref().is_ok_and(|read| *read == quantity);
    let is_other = !read.is_ok_and(|read| read.is_held_as(&quantity));
    *value = match value {
        // Rules can distinguish the two.
        Value::String(sent) if !is_as_much || (is_other && quantity.is_counted_otherwise()) => sent.trim().into(),
        _ => text.into(),
    };
    is_other
}

/// Reports whether quantities of a type are rounded to thousandths: those of resources are, except in a RuntimeClass.
pub(super) fn is_rounded(field: &Field) -> bool {
    matches!(field.kind, FieldType::Map(_))
        && field.type_name.as_deref() == Some("v1.ResourceList")
        && field.name != "podFixed"
}

/// Rounds a quantity up to thousandths. Reports whether it was finer.
pub(super) fn round_up(value: &mut Value) -> bool {
    let fine = Quantity::from_json(value).ok().filter(Quantity::is_finer_than_milli);
    if let Some(quantity) = &fine {
        *value = quantity.rounded_to_milli().exact().into();
    }
    fine.is_some()
}

/// Writes all quantities of a value of the named type canonically.
pub fn write_quantities(type_name: &str, value: &mut Value) {
    if let Some(t) = schema().type_(type_name) {
        write_quantities_of(t, value);
    }
}

fn write_quantities_of(t: &Type, value: &mut Value) {
    let Some(object) = value.as_object_mut() else { return };
    for field in t.quantities.iter().map(|at| &t.fields[*at]) {
        // A null of an optional quantity stays null.
        let target = object.get_mut(&field.name).filter(|inner| !(field.presence.is_pointer && inner.is_null()));
        target.into_iter().for_each(|inner| write_quantities_in(&field.kind, inner));
    }
}

fn write_quantities_in(kind: &FieldType, value: &mut Value) {
    match kind {
        FieldType::Ref(id) => write_quantities_of(schema().get(*id), value),
        FieldType::List(items) => {
            value.as_array_mut().into_iter().flatten().for_each(|item| write_quantities_in(items, item));
        }
        FieldType::Map(values) => {
            value.as_object_mut().into_iter().flatten().for_each(|(_, item)| write_quantities_in(values, item));
        }
        FieldType::Quantity => {
            if let Ok(quantity) = Quantity::from_json(value) {
                *value = quantity.to_string().into();
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{fill_defaults, fill_zeros, settle};

    const QUOTA: &str = "io.k8s.api.core.v1.ResourceQuota";

    #[test]
    fn a_null_quantity_stays_null() {
        const POLICY: &str = "io.k8s.api.resource.v1.CapacityRequestPolicy";
        for (sent, stored) in [(json!({}), json!(null)), (json!({"default": "1000m"}), json!("1"))] {
            let mut policy = sent;
            fill_defaults(POLICY, &mut policy);
            fill_zeros(POLICY, &mut policy);
            settle(POLICY, &mut policy);
            assert_eq!(policy, json!({"default": stored}));
        }
    }

    #[test]
    fn a_quantity_keeps_its_value_until_it_is_stored() {
        for (sent, validated, stored) in [
            ("1000m", "1", "1"),
            ("1000E", "1000E", "1"),
            ("1000000000000000000", "1000000000000000000", "1E"),
            ("3.9999999999Mi", "4Mi", "4Mi"),
            ("0.0001", "1m", "1m"),
            ("999999999999999999999999999999n", "1000000000000000000000000.000000000000000000m", "1"),
            ("340282366920938463463374607431768211456k", "340282366920938463463374607431768211456k", ""),
        ] {
            let mut quota = json!({"spec": {"hard": {"cpu": sent}}});
            fill_defaults(QUOTA, &mut quota);
            assert_eq!(quota["spec"]["hard"]["cpu"], validated, "{sent}");
            settle(QUOTA, &mut quota);
            let stored = if stored.is_empty() { sent } else { stored };
            assert_eq!(quota["spec"]["hard"]["cpu"], stored, "{sent}");
        }
    }
}
