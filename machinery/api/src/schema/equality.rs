//! Semantic equality of two values of a type, as upstream compares immutable fields.
//!
//! An empty list or map equals none, and so does a zero where the struct cannot distinguish it from absent; if the
//! field is a pointer, the two differ. Quantities are equal by value.

use corten_meta::{Quantity, Value};

use super::{Field, FieldType, Type, schema};

/// Reports whether two values of the named type are equal.
pub(crate) fn equal(type_name: &str, a: &Value, b: &Value) -> bool {
    a == b || schema().type_(type_name).is_some_and(|t| equal_structs(t, a, b))
}

fn equal_structs(t: &Type, a: &Value, b: &Value) -> bool {
    t.fields.iter().all(|field| {
        let [a, b] = [a, b].map(|of| of.get(&field.name).filter(|value| !value.is_null()));
        match (a, b) {
            (None, None) => true,
            (Some(a), Some(b)) => equal_values(&field.kind, a, b),
            (Some(one), None) | (None, Some(one)) => is_nothing(field, one),
        }
    })
}

fn equal_values(kind: &FieldType, a: &Value, b: &Value) -> bool {
    match (kind, a, b) {
        _ if a == b => true,
        (FieldType::Ref(id), ..) if schema().get(*id).scalar.is_none() => equal_structs(schema().get(*id), a, b),
        (FieldType::List(items), Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal_values(items, a, b))
        }
        (FieldType::Map(values), Value::Object(a), Value::Object(b)) => {
            let is_same = |(key, a): (&String, &Value)| b.get(key).is_some_and(|b| equal_values(values, a, b));
            a.len() == b.len() && a.iter().all(is_same)
        }
        (FieldType::Quantity, ..) => quantity(a).is_some() && quantity(a) == quantity(b),
        _ => false,
    }
}

/// Reports whether a value equals an absent one.
fn is_nothing(field: &Field, value: &Value) -> bool {
    match (&field.kind, value) {
        (FieldType::List(_), Value::Array(list)) => list.is_empty(),
        (FieldType::Map(_), Value::Object(map)) => map.is_empty(),
        _ if field.presence.is_pointer => false,
        (FieldType::Ref(id), Value::Object(_)) if schema().get(*id).scalar.is_none() => {
            equal_structs(schema().get(*id), value, &Value::Null)
        }
        (_, Value::String(text)) => text.is_empty(),
        (_, Value::Number(number)) => number.as_f64() == Some(0.0),
        (_, value) => *value == false,
    }
}

fn quantity(value: &Value) -> Option<Quantity> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Quantity::parse(&text).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_that_a_struct_cannot_distinguish_are_equal() {
        let pod = |spec: Value| json!({"metadata": {"labels": {"a": "b"}}, "spec": spec});
        for (a, b, wanted) in [
            (json!({}), json!({"nodeName": "", "hostNetwork": false, "tolerations": [], "nodeSelector": {}}), true),
            (json!({}), json!({"hostnameOverride": ""}), false),
            (json!({}), json!({"shareProcessNamespace": false}), false),
            (json!({}), json!({"securityContext": {}}), false),
            (json!({"nodeSelector": {"a": ""}}), json!({}), false),
            (json!({"nodeSelector": {"a": ""}}), json!({"nodeSelector": {"b": ""}}), false),
            (json!({"overhead": {"cpu": "1"}}), json!({"overhead": {"cpu": "1000m"}}), true),
            (json!({"overhead": {"cpu": "1"}}), json!({"overhead": {"cpu": 2}}), false),
            (json!({"containers": [{"resources": {}}]}), json!({"containers": [{}]}), true),
            (json!({"containers": [{"tty": true}]}), json!({"containers": [{}]}), false),
            (
                json!({"containers": [{"volumeMounts": [{"mountPropagation": ""}]}]}),
                json!({"containers": [{"volumeMounts": [{}]}]}),
                false,
            ),
        ] {
            for (a, b) in [(&a, &b), (&b, &a)] {
                let a = pod(a.clone());
                let b = pod(b.clone());
                assert_eq!(equal("io.k8s.api.core.v1.PodTemplateSpec", &a, &b), wanted, "{a} {b}");
            }
        }
    }
}
