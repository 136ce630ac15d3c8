//! Structural defaults: what the table says about absent fields.
//!
//! Upstream's structs hold some nested structs by value, so that they are always written, as `{}` when empty
//! (`resources: {}`, `status: {loadBalancer: {}}`); those have the published default `{}`. A few scalars have
//! real defaults (`protocol: TCP`). Published zero defaults (`""`, `0`) only describe the zero value of a
//! required field and are not filled in: validation must see that the field is absent.
//! The same walk writes quantities in their canonical form (`0.5` is `500m`), as decoding does upstream.

use corten_meta::{Quantity, Value};

use super::{FieldType, Type, schema};

/// Fills absent fields of a value of the named type.
pub fn fill_defaults(type_name: &str, value: &mut Value) {
    if let Some(t) = schema().type_(type_name) {
        fill_type(t, value);
    }
}

fn fill_type(t: &Type, value: &mut Value) {
    let Some(object) = value.as_object_mut() else { return };
    for field in &t.fields {
        if let Some(default) = field.default.as_ref().filter(|d| is_real(d))
            && object.get(&field.name).is_none_or(Value::is_null)
        {
            object.insert(field.name.clone(), default.clone());
        }
        if let Some(inner) = object.get_mut(&field.name) {
            fill_value(&field.kind, inner);
        }
    }
}

fn fill_value(kind: &FieldType, value: &mut Value) {
    match kind {
        FieldType::Ref(id) => fill_type(schema().get(*id), value),
        FieldType::Quantity => canonicalize(value),
        FieldType::List(items) => {
            for item in value.as_array_mut().into_iter().flatten() {
                fill_value(items, item);
            }
        }
        FieldType::Map(values) => {
            for (_, item) in value.as_object_mut().into_iter().flatten() {
                fill_value(values, item);
            }
        }
        _ => {}
    }
}

/// A quantity that cannot be parsed stays as it is, for validation to find.
fn canonicalize(value: &mut Value) {
    let text = match &*value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    if let Ok(quantity) = Quantity::parse(&text) {
        *value = quantity.to_string().into();
    }
}

fn is_real(default: &Value) -> bool {
    match default {
        Value::String(s) => !s.is_empty(),
        Value::Number(n) => n.as_f64() != Some(0.0),
        Value::Object(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_become_canonical() {
        let mut quota = json!({"spec": {"hard": {"cpu": "0.5", "memory": "1024Mi", "pods": 10, "odd": "x"}}});
        fill_defaults("io.k8s.api.core.v1.ResourceQuota", &mut quota);
        assert_eq!(quota["spec"]["hard"], json!({"cpu": "500m", "memory": "1Gi", "pods": "10", "odd": "x"}));
    }

    #[test]
    fn nested_structs_and_real_defaults_appear() {
        let mut service = json!({"spec": {"ports": [{"port": 80}]}});
        fill_defaults("io.k8s.api.core.v1.Service", &mut service);
        assert_eq!(
            service,
            json!({
                "metadata": {},
                "spec": {"ports": [{"port": 80, "protocol": "TCP"}]},
                "status": {"loadBalancer": {}},
            })
        );
    }
}
