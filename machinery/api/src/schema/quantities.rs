//! Amounts in their canonical form.
//!
//! The canonical form of more than there are suffixes for does not say how much it is: upstream writes `1000E` as `1`.
//! Such an amount stays as it was sent until the object is stored, for the rules judge what it is.

use corten_meta::{Quantity, Value};

use super::{Field, FieldType, Type, schema};

/// Whether values of a field are amounts.
pub(super) fn holds_amounts(kind: &FieldType) -> bool {
    match kind {
        FieldType::Quantity => true,
        FieldType::List(inner) | FieldType::Map(inner) => holds_amounts(inner),
        _ => false,
    }
}

/// Writes an amount canonically, unless that would change what the rules see. One that cannot be parsed stays as it is, for validation to
/// find. Says whether it was in another form.
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
        // Rules can tell the two apart.
        Value::String(sent) if !is_as_much || (is_other && quantity.is_counted_otherwise()) => sent.trim().into(),
        _ => text.into(),
    };
    is_other
}

/// Amounts of resources are counted in thousandths at the finest; those of a RuntimeClass are left as they are.
pub(super) fn is_rounded(field: &Field) -> bool {
    matches!(field.kind, FieldType::Map(_))
        && field.type_name.as_deref() == Some("v1.ResourceList")
        && field.name != "podFixed"
}

/// Rounds an amount up to thousandths. Says whether it was finer.
pub(super) fn round_up(amount: &mut Value) -> bool {
    let fine = Quantity::from_json(amount).ok().filter(Quantity::is_finer_than_milli);
    if let Some(quantity) = &fine {
        *amount = quantity.rounded_to_milli().exact().into();
    }
    fine.is_some()
}

/// Writes all amounts of a value of the named type canonically.
pub fn write_amounts(type_name: &str, value: &mut Value) {
    if let Some(t) = schema().type_(type_name) {
        write_amounts_of(t, value);
    }
}

fn write_amounts_of(t: &Type, value: &mut Value) {
    let Some(object) = value.as_object_mut() else { return };
    for field in t.amounts.iter().map(|at| &t.fields[*at]) {
        // An amount that may be none is none where it is null.
        let amount = object.get_mut(&field.name).filter(|inner| !(field.presence.is_pointer && inner.is_null()));
        amount.into_iter().for_each(|inner| write_amounts_in(&field.kind, inner));
    }
}

fn write_amounts_in(kind: &FieldType, value: &mut Value) {
    match kind {
        FieldType::Ref(id) => write_amounts_of(schema().get(*id), value),
        FieldType::List(items) => {
            value.as_array_mut().into_iter().flatten().for_each(|item| write_amounts_in(items, item));
        }
        FieldType::Map(values) => {
            value.as_object_mut().into_iter().flatten().for_each(|(_, item)| write_amounts_in(values, item));
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
    fn an_amount_that_is_none_stays_none() {
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
    fn an_amount_is_as_much_until_it_is_stored() {
        for (sent, judged, stored) in [
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
            assert_eq!(quota["spec"]["hard"]["cpu"], judged, "{sent}");
            settle(QUOTA, &mut quota);
            let stored = if stored.is_empty() { sent } else { stored };
            assert_eq!(quota["spec"]["hard"]["cpu"], stored, "{sent}");
        }
    }
}
