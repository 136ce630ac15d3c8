//! Restores values that normalization has lost and upstream still has: the rules and the comparison of field ownership
//! see a request before it is stored.
//!
//! An empty list or map differs from none. A quantity keeps its spelling: `1000m` has another internal form than `1`. A
//! time keeps the fraction of its second.

use corten_meta::{Quantity, Value, time};

use super::defaults::{is_collection, is_empty_either, vanishes};
use super::{FieldType, Type, schema};

/// The values to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// All, for the comparison of field ownership.
    Sent,
    /// Those that rules can distinguish: of quantities only those beyond upstream's integers.
    ForValidation,
    /// As `ForValidation`, without empty values, which most rules of a change treat as absent.
    Exact,
}

/// Restores the values that a client sent and an object of the named type has lost.
pub fn recall(type_name: &str, sent: &Value, object: &mut Value, what: Recall) {
    if let Some(t) = schema().type_(type_name) {
        recall_type(t, sent, object, what);
    }
}

fn recall_type(t: &Type, sent: &Value, object: &mut Value, what: Recall) {
    let (Value::Object(sent), Value::Object(object)) = (sent, object) else { return };
    for (field, inner) in sent.iter().filter_map(|(name, inner)| Some((t.field(name)?, inner))) {
        match object.get_mut(&field.name) {
            Some(present) if !present.is_null() => recall_value(&field.kind, inner, present, what),
            // The field is set, though it is empty.
            None if is_empty_either(&field.kind, inner) => {
                object.insert(field.name.clone(), Value::Array(Vec::new()));
            }
            _ if what != Recall::Exact && vanishes(field, inner) && is_collection(inner, &field.kind) => {
                object.insert(field.name.clone(), inner.clone());
            }
            _ => {}
        }
    }
}

fn recall_value(kind: &FieldType, sent: &Value, value: &mut Value, what: Recall) {
    match (kind, sent, value) {
        (FieldType::Ref(id), sent, value) => recall_type(schema().get(*id).of_object(), sent, value, what),
        (FieldType::List(items), Value::Array(sent), Value::Array(list)) => {
            sent.iter().zip(list).for_each(|(sent, item)| recall_value(items, sent, item, what));
        }
        (FieldType::Map(values), Value::Object(sent), Value::Object(map)) => {
            for (name, sent) in sent {
                map.get_mut(name).into_iter().for_each(|item| recall_value(values, sent, item, what));
            }
        }
        (FieldType::Quantity, sent, value) if sent != value && is_other_quantity(sent, value, what) => {
            value.clone_from(sent);
        }
        (FieldType::Time, Value::String(sent), value) if value.is_string() => {
            let fraction = time::parse(sent).ok().filter(|at| at.subsec_nanosecond() != 0);
            fraction.into_iter().for_each(|at| *value = at.to_string().into());
        }
        _ => {}
    }
}

/// Reports whether a quantity differs from its canonical form.
fn is_other_quantity(sent: &Value, value: &Value, what: Recall) -> bool {
    let (Ok(sent), Ok(quantity)) = (Quantity::from_json(sent), Quantity::from_json(value)) else { return false };
    let is_other = !sent.is_held_as(&quantity);
    match what {
        Recall::Sent => is_other,
        Recall::ForValidation | Recall::Exact => {
            is_other && sent.is_counted_otherwise() && value.as_str() == Some(&sent.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn distinguishable_values_are_restored() {
        const JOB: &str = "io.k8s.api.batch.v1.Job";
        let container = |cpu: &str| json!([{"name": "c", "resources": {"limits": {"cpu": cpu, "x": "1"}}}]);
        let job = |cpu: &str, start: &str, volumes: Value| {
            let mut spec = json!({"containers": container(cpu)});
            if volumes.is_array() {
                spec["volumes"] = volumes;
            }
            json!({"spec": {"template": {"spec": spec}}, "status": {"startTime": start}})
        };
        const SCHEMA: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
        for (sent, wanted) in [(json!(""), true), (json!(1), true), (json!([]), true), (json!(null), false)] {
            let mut object = json!({"type": "object"});
            recall(SCHEMA, &json!({"type": "object", "items": sent}), &mut object, Recall::Exact);
            assert_eq!(object.get("items").is_some(), wanted, "{sent}");
        }
        let second = "2024-01-01T00:00:00Z";
        let half = "2024-01-01T00:00:00.5Z";
        let sent = |cpu: &str| job(cpu, "2024-01-01T02:00:00.500+02:00", json!([]));
        for (what, cpu, written, wanted) in [
            (Recall::Sent, "1000m", "1", job("1000m", half, json!([]))),
            (Recall::ForValidation, "1000m", "1", job("1", half, json!([]))),
            (Recall::Exact, "1000m", "1", job("1", half, json!(null))),
            (Recall::Sent, "16384Ki", "16Mi", job("16Mi", half, json!([]))),
            (Recall::Exact, "10000000000000000000", "10E", job("10000000000000000000", half, json!(null))),
        ] {
            let mut object = job(written, second, json!(null));
            recall(JOB, &sent(cpu), &mut object, what);
            assert_eq!(object, wanted, "{what:?} {cpu}");
        }
    }
}
