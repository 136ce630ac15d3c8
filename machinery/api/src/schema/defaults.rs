//! Structural defaults: the table's facts about absent fields and zero values.
//!
//! Upstream decodes into structs and encodes them again, and the effect on an object is part of the API. A struct held
//! by value is always written, as `{}` when empty (`resources: {}`, `status: {loadBalancer: {}}`). A zero value of a
//! field that is no pointer equals an absent one: most such fields are not written (`hostNetwork: false` vanishes),
//! some always are (`rules: null`, `eventTime: null`). A few scalars have real defaults (`protocol: TCP`). The same
//! walk writes quantities in their canonical form (`0.5` is `500m`).

use base64::Engine as _;
use base64::alphabet::STANDARD as STANDARD_ALPHABET;
use base64::engine::general_purpose::{GeneralPurpose, PAD, STANDARD};
use corten_meta::{Value, time};

use super::quantities::{canonicalize, is_rounded, round_up, write_quantities};
use super::{Field, FieldType, Type, schema};

/// Lists of which an empty one differs from none: no scaling policy at all, instead of the usual ones.
const MEANINGFUL_IF_EMPTY: &str = "policies";

/// Sets absent fields of a value of the named type, and removes those that count as absent. Reports whether something
/// is lost by it that upstream keeps until it stores an object: an empty list or map, the spelling of a quantity, the
/// fraction of a second (see [`super::recall`]).
pub fn fill_defaults(type_name: &str, value: &mut Value) -> bool {
    schema().type_(type_name).is_some_and(|t| fill_type(t, value))
}

fn fill_type(t: &Type, value: &mut Value) -> bool {
    let Some(object) = value.as_object_mut() else { return false };
    let mut lost = false;
    object.retain(|name, inner| match t.field(name) {
        Some(field) if vanishes(field, inner) => {
            lost |= is_collection(inner, &field.kind);
            false
        }
        Some(field) => {
            if is_rounded(field) {
                inner.as_object_mut().into_iter().flatten().for_each(|(_, quantity)| lost |= round_up(quantity));
            }
            lost |= fill_value(&field.kind, inner);
            true
        }
        None => true,
    });
    for field in t.defaults.iter().map(|at| &t.fields[*at]) {
        if let Some(default) = &field.default
            && !object.contains_key(&field.name)
        {
            let mut filled = default.clone();
            fill_value(&field.kind, &mut filled);
            object.insert(field.name.clone(), filled);
        }
    }
    lost
}

/// Reports whether a field with this value counts as absent. Zeros that are always written are restored in the end.
pub(super) fn vanishes(field: &Field, value: &Value) -> bool {
    let presence = field.presence;
    if presence.is_pointer || is_raw(&field.kind) {
        return value.is_null();
    }
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0) && !is_struct(&field.kind),
        Value::String(text) => text.is_empty() && !is_struct(&field.kind),
        Value::Array(list) => list.is_empty() && !presence.is_always_written && field.name != MEANINGFUL_IF_EMPTY,
        Value::Object(map) => map.is_empty() && matches!(field.kind, FieldType::Map(_)) && !presence.is_always_written,
    }
}

/// Reports whether a value is kept as it was sent.
fn is_raw(kind: &FieldType) -> bool {
    matches!(kind, FieldType::Ref(id) if schema().get(*id).short_name() == "RawExtension")
}

/// Reports whether a type is a struct in Go, which `omitempty` never leaves out, though JSON shows it as a scalar.
fn is_struct(kind: &FieldType) -> bool {
    matches!(kind, FieldType::Quantity | FieldType::IntOrString | FieldType::Time | FieldType::MicroTime)
}

/// Writes the zero value of every absent field that upstream always writes. The last step of defaulting: earlier steps
/// must see that the field is absent.
pub fn fill_zeros(type_name: &str, value: &mut Value) {
    if let Some(t) = schema().type_(type_name) {
        fill_zeros_of(t, value);
    }
}

fn fill_zeros_of(t: &Type, value: &mut Value) {
    let Some(object) = value.as_object_mut() else { return };
    for field in t.zeros.iter().map(|at| &t.fields[*at]) {
        match object.get_mut(&field.name) {
            Some(inner) if !inner.is_null() => fill_zeros_in(&field.kind, inner),
            _ => {
                if let Some(zero) = written_zero(field) {
                    object.insert(field.name.clone(), zero);
                }
            }
        }
    }
}

fn fill_zeros_in(kind: &FieldType, value: &mut Value) {
    match kind {
        FieldType::Ref(id) => fill_zeros_of(schema().get(*id), value),
        FieldType::List(items) => {
            value.as_array_mut().into_iter().flatten().for_each(|item| fill_zeros_in(items, item));
        }
        FieldType::Map(values) => {
            value.as_object_mut().into_iter().flatten().for_each(|(_, item)| fill_zeros_in(values, item));
        }
        _ => {}
    }
}

/// Returns an empty value of the named type: its structs held by value, and the zeros that are always written.
pub fn empty(type_name: &str) -> Value {
    schema().type_(type_name).map_or_else(|| Value::Object(serde_json::Map::new()), empty_of)
}

fn empty_of(t: &Type) -> Value {
    let written = |field: &Field| match &field.kind {
        FieldType::Ref(id) if !field.presence.is_pointer && !field.presence.omits_zero => {
            let inner = schema().get(*id);
            match inner.scalar.is_none() {
                true => Some(empty_of(inner)),
                false => field.presence.is_always_written.then_some(Value::Null),
            }
        }
        _ => written_zero(field),
    };
    t.declared().filter_map(|field| Some((field.name.clone(), written(field)?))).collect()
}

/// Reports whether upstream distinguishes a vanishing value from none: bytes are a list too.
pub(super) fn is_collection(value: &Value, kind: &FieldType) -> bool {
    value.is_array() || value.is_object() || (value.is_string() && *kind == FieldType::Bytes)
}

/// Reports whether a value is neither a schema nor a list of them in a field of either: upstream has an empty struct,
/// and writes nothing.
pub(super) fn is_empty_either(kind: &FieldType, value: &Value) -> bool {
    let FieldType::Ref(id) = kind else { return false };
    let is_something = value.is_object() || value.as_array().is_some_and(|schemas| !schemas.is_empty());
    !is_something && !value.is_null() && schema().get(*id).short_name() == "JSONSchemaPropsOrArray"
}

/// Writes empty lists and maps as upstream's store returns them: its encoding has no empty ones, so those that are
/// always written become null. The last step before an object is stored or shown.
pub fn settle(type_name: &str, value: &mut Value) {
    // CustomResourceDefinitions are stored as JSON, which has empty ones.
    let is_json = type_name.starts_with("io.k8s.apiextensions-apiserver.");
    if let Some(t) = schema().type_(type_name).filter(|_| !is_json) {
        settle_type(t, value);
        write_quantities(type_name, value);
    }
}

fn settle_type(t: &Type, value: &mut Value) {
    let Some(object) = value.as_object_mut() else { return };
    for field in t.zeros.iter().map(|at| &t.fields[*at]) {
        let Some(inner) = object.get_mut(&field.name) else { continue };
        let is_empty = match (&field.kind, &*inner) {
            (FieldType::List(_), Value::Array(list)) => list.is_empty(),
            (FieldType::Map(_), Value::Object(map)) => map.is_empty(),
            _ => false,
        };
        if is_empty && written_zero(field).is_some() {
            *inner = Value::Null;
        } else {
            settle_in(&field.kind, inner);
        }
    }
}

fn settle_in(kind: &FieldType, value: &mut Value) {
    match kind {
        FieldType::Ref(id) => settle_type(schema().get(*id), value),
        FieldType::List(items) => value.as_array_mut().into_iter().flatten().for_each(|item| settle_in(items, item)),
        FieldType::Map(values) => {
            value.as_object_mut().into_iter().flatten().for_each(|(_, item)| settle_in(values, item));
        }
        _ => {}
    }
}

/// Returns the value of an absent field that is always written.
pub(super) fn written_zero(field: &Field) -> Option<Value> {
    let presence = field.presence;
    if presence.is_pointer {
        return presence.is_always_written.then_some(Value::Null);
    }
    // A struct held by value has its default from the table.
    let is_written = (presence.is_always_written || is_struct(&field.kind)) && !presence.omits_zero;
    match field.kind {
        _ if !is_written => None,
        FieldType::Ref(_) => None,
        FieldType::Bytes => Some(Value::Null),
        _ => Some(zero(&field.kind)),
    }
}

/// Returns the zero value of a type: also the decoded null item of a list or a map.
fn zero(kind: &FieldType) -> Value {
    match kind {
        FieldType::String | FieldType::Bytes => "".into(),
        FieldType::Integer(_) | FieldType::Number(_) | FieldType::IntOrString => 0.into(),
        FieldType::Boolean => false.into(),
        FieldType::Quantity => "0".into(),
        FieldType::Ref(id) if schema().get(*id).scalar.is_none() => Value::Object(serde_json::Map::new()),
        _ => Value::Null,
    }
}

/// Normalizes bytes, also if they came as numbers, which are truncated as Go does, or with line breaks, or with bits
/// after the last byte.
pub(super) fn write_bytes(value: &mut Value) {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(&STANDARD_ALPHABET, PAD.with_decode_allow_trailing_bits(true));
    match value {
        Value::Array(items) => {
            let bytes: Vec<u8> = items.iter().map(|item| item.as_i64().unwrap_or_default() as u8).collect();
            *value = STANDARD.encode(bytes).into();
        }
        Value::String(text) if text.ends_with('=') || text.contains(['\r', '\n']) => {
            if let Ok(bytes) = LENIENT.decode(text.replace(['\r', '\n'], "")) {
                *text = STANDARD.encode(bytes);
            }
        }
        _ => {}
    }
}

fn fill_value(kind: &FieldType, value: &mut Value) -> bool {
    let mut lost = false;
    match kind {
        FieldType::Ref(id) => {
            lost = is_empty_either(kind, value);
            lost |= fill_type(schema().get(*id).of_object(), value);
        }
        FieldType::Quantity => lost = canonicalize(value),
        FieldType::Bytes => write_bytes(value),
        FieldType::Time => lost = write_time(value),
        FieldType::MicroTime => {
            rewrite_time(value, "2026-01-02T03:04:05.000000Z".len(), time::rfc3339_micro);
        }
        FieldType::List(items) => {
            value.as_array_mut().into_iter().flatten().for_each(|item| lost |= fill_item(items, item));
        }
        FieldType::Map(values) => {
            value.as_object_mut().into_iter().flatten().for_each(|(_, item)| lost |= fill_item(values, item));
        }
        _ => {}
    }
    lost
}

/// Fills an item of a list or a map, which is never absent.
fn fill_item(kind: &FieldType, item: &mut Value) -> bool {
    if item.is_null() {
        *item = zero(kind);
    }
    fill_value(kind, item)
}

/// Writes a time with seconds. Reports whether it loses a fraction.
pub(super) fn write_time(value: &mut Value) -> bool {
    rewrite_time(value, "2026-01-02T03:04:05Z".len(), time::rfc3339)
}

/// Writes a time in UTC, with as many digits as its type has. Reports whether it loses a fraction.
fn rewrite_time(value: &mut Value, length: usize, write: fn(jiff::Timestamp) -> String) -> bool {
    let written = |text: &&str| text.len() == length && text.ends_with('Z');
    let Some(at) = value.as_str().filter(|text| !written(text)).and_then(|text| time::parse(text).ok()) else {
        return false;
    };
    *value = write(at).into();
    at.subsec_nanosecond() != 0
}

/// Reports whether a field has a default other than zero.
pub(super) fn is_real(field: &Field) -> bool {
    match &field.default {
        Some(Value::String(s)) => !s.is_empty(),
        Some(Value::Number(n)) => n.as_f64() != Some(0.0),
        Some(Value::Object(_)) => true,
        // Absent differs from false.
        Some(Value::Bool(_)) => field.presence.is_pointer,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bytes_are_written_in_one_line() {
        for (input, written) in [
            (json!("YWJj\nZGVm\n"), "YWJjZGVm"),
            (json!("YWJj\r\nZA==\n"), "YWJjZA=="),
            (json!("YWJjZB=="), "YWJjZA=="),
            (json!([97, 98, 99]), "YWJj"),
            (json!("YWJjZGVm"), "YWJjZGVm"),
            (json!("="), "="),
        ] {
            let mut value = input.clone();
            write_bytes(&mut value);
            assert_eq!(value, written, "{input}");
        }
    }

    #[test]
    fn quantities_become_canonical() {
        let mut quota = json!({"spec": {"hard": {"cpu": "0.5", "memory": "1024Mi", "pods": 10, "odd": "x"}}});
        fill_defaults("io.k8s.api.core.v1.ResourceQuota", &mut quota);
        assert_eq!(quota["spec"]["hard"], json!({"cpu": "500m", "memory": "1Gi", "pods": "10", "odd": "x"}));
    }

    #[test]
    fn quantities_are_rounded_up_to_thousandths() {
        let mut pod = json!({"spec": {"overhead": {"cpu": "0.1m", "memory": "1.5"}}});
        fill_defaults("io.k8s.api.core.v1.Pod", &mut pod);
        assert_eq!(pod["spec"]["overhead"], json!({"cpu": "1m", "memory": "1500m"}));
        let mut class = json!({"overhead": {"podFixed": {"cpu": "0.1m"}}});
        fill_defaults("io.k8s.api.node.v1.RuntimeClass", &mut class);
        assert_eq!(class["overhead"]["podFixed"], json!({"cpu": "100u"}));
    }

    #[test]
    fn times_are_written_in_utc() {
        let mut lease = json!({"metadata": {"creationTimestamp": "2024-01-02T00:00:00.5+02:00"},
            "spec": {"acquireTime": "2024-01-02T00:00:00+02:00", "renewTime": "2024-01-01T22:00:00.000001Z"}});
        fill_defaults("io.k8s.api.coordination.v1.Lease", &mut lease);
        assert_eq!(lease["metadata"]["creationTimestamp"], "2024-01-01T22:00:00Z");
        let spec = json!({"acquireTime": "2024-01-01T22:00:00.000000Z", "renewTime": "2024-01-01T22:00:00.000001Z"});
        assert_eq!(lease["spec"], spec);
    }

    #[test]
    fn empty_lists_that_are_always_written_settle_as_null() {
        let mut role = json!({"metadata": {}, "rules": []});
        settle("io.k8s.api.rbac.v1.Role", &mut role);
        assert_eq!(role, json!({"metadata": {}, "rules": null}));
        let mut role = json!({"rules": [{"verbs": []}]});
        settle("io.k8s.api.rbac.v1.Role", &mut role);
        assert_eq!(role, json!({"rules": [{"verbs": null}]}));
    }

    #[test]
    fn sent_empty_lists_and_maps_are_restored() {
        let spec = json!({"overhead": {}, "affinity": {}, "containers": [{"args": [], "resources": {"limits": {}}}, null],
            "nodeName": ""});
        let input = json!({"spec": spec, "unknown": []});
        let mut object = json!({"spec": {"containers": [{"resources": {}}, {"name": "x"}], "dnsPolicy": "x"}});
        let kind = "io.k8s.api.core.v1.Pod";
        super::super::recall(kind, &input, &mut object, super::super::Recall::ForValidation);
        let spec = json!({"overhead": {}, "containers": [{"args": [], "resources": {"limits": {}}}, {"name": "x"}],
            "dnsPolicy": "x"});
        assert_eq!(object, json!({"spec": spec}));
        assert!(fill_defaults(kind, &mut object) && !fill_defaults(kind, &mut object));
        assert_eq!(object["spec"].get("overhead"), None);
    }

    #[test]
    fn a_meaningful_empty_list_stays() {
        let mut scaler = json!({"spec": {"metrics": [], "behavior": {"scaleUp": {"policies": []}}}});
        fill_defaults("io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler", &mut scaler);
        assert_eq!(scaler["spec"]["behavior"], json!({"scaleUp": {"policies": []}}));
        assert_eq!(scaler["spec"].get("metrics"), None);
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
