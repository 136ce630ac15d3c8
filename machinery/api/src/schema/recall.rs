//! What a client gave and an object has lost where upstream still has it: the server's rules and the comparison of who
//! owns what see a request before it is stored.
//!
//! An empty list or map is another than none. An amount is what its text was read as: `1000m` is held otherwise than `1`. A
//! time has the fraction of its second.

use corten_meta::{Quantity, Value, time};

use super::defaults::{is_collection, is_empty_either, vanishes};
use super::{FieldType, Type, schema};

/// What is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// All, as it is compared for who owns what.
    Sent,
    /// What rules can tell apart: of amounts those that are too much for upstream's integers.
    Given,
    /// The same without what is empty, which most rules of a change take for absent.
    Exact,
}

/// Puts back what a client gave to an object of the named type and what that has lost.
pub fn recall(type_name: &str, given: &Value, object: &mut Value, what: Recall) {
    if let Some(t) = schema().type_(type_name) {
        recall_type(t, given, object, what);
    }
}

fn recall_type(t: &Type, given: &Value, object: &mut Value, what: Recall) {
    let (Value::Object(given), Value::Object(object)) = (given, object) else { return };
    for (field, inner) in given.iter().filter_map(|(name, inner)| Some((t.field(name)?, inner))) {
        match object.get_mut(&field.name) {
            Some(present) if !present.is_null() => recall_value(&field.kind, inner, present, what),
            // It is there, though it holds nothing.
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

fn recall_value(kind: &FieldType, given: &Value, value: &mut Value, what: Recall) {
    match (kind, given, value) {
        (FieldType::Ref(id), given, value) => recall_type(schema().get(*id).of_object(), given, value, what),
        (FieldType::List(items), Value::Array(given), Value::Array(list)) => {
            given.iter().zip(list).for_each(|(given, item)| recall_value(items, given, item, what));
        }
        (FieldType::Map(values), Value::Object(given), Value::Object(map)) => {
            for (name, given) in given {
                map.get_mut(name).into_iter().for_each(|item| recall_value(values, given, item, what));
            }
        }
        (FieldType::Quantity, given, value) if given != value && is_other_amount(given, value, what) => {
            value.clone_from(given);
        }
        (FieldType::Time, Value::String(given), value) if value.is_string() => {
            let fraction = time::parse(given).ok().filter(|at| at.subsec_nanosecond() != 0);
            fraction.into_iter().for_each(|at| *value = at.to_string().into());
        }
        _ => {}
    }
}

/// Whether an amount is another than the one that it is written as.
fn is_other_amount(given: &Value, value: &Value, what: Recall) -> bool {
    let (Ok(given), Ok(amount)) = (Quantity::from_json(given), Quantity::from_json(value)) else { return false };
    let is_other = !given.is_held_as(&amount);
    match what {
        Recall::Sent => is_other,
        Recall::Given | Recall::Exact => {
            is_other && given.is_counted_otherwise() && value.as_str() == Some(&given.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_given_comes_back_where_it_can_be_told_apart() {
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
        for (given, wanted) in [(json!(""), true), (json!(1), true), (json!([]), true), (json!(null), false)] {
            let mut object = json!({"type": "object"});
            recall(SCHEMA, &json!({"type": "object", "items": given}), &mut object, Recall::Exact);
            assert_eq!(object.get("items").is_some(), wanted, "{given}");
        }
        let (second, half) = ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00.5Z");
        let given = |cpu: &str| job(cpu, "2024-01-01T02:00:00.500+02:00", json!([]));
        for (what, cpu, written, wanted) in [
            (Recall::Sent, "1000m", "1", job("1000m", half, json!([]))),
            (Recall::Given, "1000m", "1", job("1", half, json!([]))),
            (Recall::Exact, "1000m", "1", job("1", half, json!(null))),
            (Recall::Sent, "16384Ki", "16Mi", job("16Mi", half, json!([]))),
            (Recall::Exact, "10000000000000000000", "10E", job("10000000000000000000", half, json!(null))),
        ] {
            let mut object = job(written, second, json!(null));
            recall(JOB, &given(cpu), &mut object, what);
            assert_eq!(object, wanted, "{what:?} {cpu}");
        }
    }
}
