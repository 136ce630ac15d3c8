//! The types of the table as JSON schemas.

use std::collections::BTreeSet;

use corten_meta::Value;
use corten_meta::quote::quote;
use serde_json::{Map, json};

use super::Describe;
use crate::schema::{Field, FieldType, ListType, Schema, Type, schema};

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";

/// The types whose bodies every group serves, so that each document lists them for its own group too.
const OF_EVERY_GROUP: [&str; 2] = ["DeleteOptions", "WatchEvent"];

/// The groups for which a document of no single group lists them: all that upstream ever had.
const GROUPS: &[(&str, &[&str])] = &[
    ("", &["v1"]),
    ("admission.k8s.io", &["v1", "v1beta1"]),
    ("admissionregistration.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("apiextensions.k8s.io", &["v1", "v1beta1"]),
    ("apiregistration.k8s.io", &["v1", "v1beta1"]),
    ("apps", &["v1", "v1beta1", "v1beta2"]),
    ("authentication.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("authorization.k8s.io", &["v1", "v1beta1"]),
    ("autoscaling", &["v1", "v2"]),
    ("batch", &["v1", "v1beta1"]),
    ("certificates.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("coordination.k8s.io", &["v1", "v1alpha2", "v1beta1"]),
    ("discovery.k8s.io", &["v1", "v1beta1"]),
    ("events.k8s.io", &["v1", "v1beta1"]),
    ("extensions", &["v1beta1"]),
    ("flowcontrol.apiserver.k8s.io", &["v1", "v1beta1", "v1beta2", "v1beta3"]),
    ("imagepolicy.k8s.io", &["v1alpha1"]),
    ("internal.apiserver.k8s.io", &["v1alpha1"]),
    ("networking.k8s.io", &["v1", "v1beta1"]),
    ("node.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("policy", &["v1", "v1beta1"]),
    ("rbac.authorization.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("resource.k8s.io", &["v1", "v1alpha3", "v1beta1", "v1beta2"]),
    ("scheduling.k8s.io", &["v1", "v1alpha2", "v1beta1"]),
    ("storage.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("storagemigration.k8s.io", &["v1beta1"]),
];

/// The groups among them that the documents of custom resources do not have.
const NOT_FOR_CUSTOM_RESOURCES: [&str; 4] =
    ["admission.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "imagepolicy.k8s.io"];

/// Lists the types of every group for all groups, in a document of no single group.
pub(super) fn list_every_group(schemas: &mut Map<String, Value>, is_custom: bool) {
    for kind in OF_EVERY_GROUP {
        let Some(schema) = schemas.get_mut(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}")) else { continue };
        let known = GROUPS.iter().filter(|(group, _)| !(is_custom && NOT_FOR_CUSTOM_RESOURCES.contains(group)));
        let all = known.flat_map(|(group, versions)| versions.iter().map(move |version| (*group, *version)));
        let all = all.map(|(group, version)| json!({"group": group, "version": version, "kind": kind}));
        schema["x-kubernetes-group-version-kind"] = all.collect();
    }
}

/// Returns the roots and all types that they refer to, by name.
pub(super) fn reachable<'a>(schema: &'a Schema, roots: &BTreeSet<String>) -> Vec<&'a Type> {
    let mut names: Vec<String> = roots.iter().cloned().collect();
    let mut found = BTreeSet::new();
    while let Some(name) = names.pop() {
        let Some(t) = schema.type_(&name) else { continue };
        if found.insert(name) {
            names.extend(t.fields.iter().filter_map(|f| referred(&f.kind)));
        }
    }
    found.iter().filter_map(|name| schema.type_(name)).collect()
}

/// Returns the name of the innermost type of a shape.
fn referred(kind: &FieldType) -> Option<String> {
    match kind {
        FieldType::List(inner) | FieldType::Map(inner) => referred(inner),
        other => type_name(other).map(str::to_string),
    }
}

fn type_name(kind: &FieldType) -> Option<&'static str> {
    match kind {
        FieldType::Ref(id) => Some(&schema().get(*id).name),
        FieldType::Quantity => Some(QUANTITY),
        FieldType::IntOrString => Some(INT_OR_STRING),
        FieldType::Time => Some(TIME),
        FieldType::MicroTime => Some(MICRO_TIME),
        _ => None,
    }
}

/// Returns the schema of a type in the document of a group version.
pub(super) fn type_schema(t: &Type, own: (&str, &str), describe: &Describe) -> Value {
    let mut out = match &t.scalar {
        Some(scalar) => scalar_schema(scalar),
        None => struct_schema(t, describe),
    };
    if let Some(text) = describe(&t.name, "") {
        out.insert("description".to_string(), text.into());
    }
    if t.atomic {
        out.insert("x-kubernetes-map-type".to_string(), "atomic".into());
    }
    if let Some(unions) = &t.unions {
        out.insert("x-kubernetes-unions".to_string(), unions.clone());
    }
    if let Some((group, version, kind)) = &t.gvk {
        let mut all = vec![json!({"group": group, "version": version, "kind": kind})];
        if OF_EVERY_GROUP.contains(&kind.as_str()) && !own.0.is_empty() {
            all.push(json!({"group": own.0, "version": own.1, "kind": kind}));
        }
        out.insert("x-kubernetes-group-version-kind".to_string(), all.into());
    }
    Value::Object(out)
}

fn scalar_schema(scalar: &FieldType) -> Map<String, Value> {
    let value = match scalar {
        FieldType::Quantity => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        FieldType::IntOrString => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        FieldType::Time | FieldType::MicroTime => json!({"type": "string", "format": "date-time"}),
        other => plain_schema(other),
    };
    value.as_object().cloned().unwrap_or_default()
}

fn struct_schema(t: &Type, describe: &Describe) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("type".to_string(), "object".into());
    let required: Vec<&str> = t.declared().filter(|f| f.required).map(|f| f.name.as_str()).collect();
    if !required.is_empty() {
        out.insert("required".to_string(), required.into());
    }
    let properties: Map<String, Value> =
        t.fields.iter().map(|f| (f.name.clone(), field_schema(f, describe(&t.name, &f.name)))).collect();
    out.insert("properties".to_string(), properties.into());
    out
}

fn field_schema(field: &Field, description: Option<&str>) -> Value {
    let marked = field.atomic || field.granular || !field.patch_strategy.is_empty();
    let wrapped = marked || field.default.is_some() || description.is_some();
    let mut out = value_schema(&field.kind, field.item_default.as_ref(), wrapped);
    if !field.values.is_empty() {
        innermost(&mut out)["enum"] = json!(field.values);
    }
    if let Some(text) = description {
        // Of a list or a map, the items have these values.
        let is_single = !matches!(field.kind, FieldType::List(_) | FieldType::Map(_));
        let values = field.values.iter().filter(|_| is_single);
        let values: String = values.map(|value| format!("\n - `{}`", quote(value))).collect();
        let listed = if values.is_empty() { values } else { format!("\n\nPossible enum values:{values}") };
        out["description"] = format!("{text}{listed}").into();
    }
    if let Some(default) = &field.default {
        out["default"] = default.clone();
    }
    match &field.list_type {
        Some(ListType::Atomic) => out["x-kubernetes-list-type"] = "atomic".into(),
        Some(ListType::Set) => out["x-kubernetes-list-type"] = "set".into(),
        Some(ListType::Map(keys)) => {
            out["x-kubernetes-list-type"] = "map".into();
            out["x-kubernetes-list-map-keys"] = json!(keys);
        }
        None => {}
    }
    if field.atomic {
        out["x-kubernetes-map-type"] = "atomic".into();
    }
    if field.granular {
        out["x-kubernetes-map-type"] = "granular".into();
    }
    if let Some(key) = &field.patch_merge_key {
        out["x-kubernetes-patch-merge-key"] = key.as_str().into();
    }
    if !field.patch_strategy.is_empty() {
        out["x-kubernetes-patch-strategy"] = field.patch_strategy.join(",").into();
    }
    out
}

/// Returns the schema of the innermost values of lists and maps.
fn innermost(schema: &mut Value) -> &mut Value {
    for inner in ["items", "additionalProperties"] {
        if schema.get(inner).is_some() {
            return innermost(&mut schema[inner]);
        }
    }
    schema
}

/// Returns the schema of a value; `wrapped` if a reference has siblings, which then needs `allOf`.
fn value_schema(kind: &FieldType, item_default: Option<&Value>, wrapped: bool) -> Value {
    if let Some(name) = type_name(kind) {
        let reference = json!({"$ref": format!("#/components/schemas/{name}")});
        return if wrapped { json!({ "allOf": [reference] }) } else { reference };
    }
    match kind {
        FieldType::List(items) => json!({"type": "array", "items": item_schema(items, item_default)}),
        FieldType::Map(values) => json!({"type": "object", "additionalProperties": item_schema(values, item_default)}),
        other => plain_schema(other),
    }
}

fn item_schema(kind: &FieldType, default: Option<&Value>) -> Value {
    let innermost = !matches!(kind, FieldType::List(_) | FieldType::Map(_));
    let mut out = value_schema(kind, default, innermost && default.is_some());
    if let Some(default) = default.filter(|_| innermost) {
        out["default"] = default.clone();
    }
    out
}

fn plain_schema(kind: &FieldType) -> Value {
    match kind {
        FieldType::String => json!({"type": "string"}),
        FieldType::Integer("") => json!({"type": "integer"}),
        FieldType::Integer(format) => json!({"type": "integer", "format": format}),
        FieldType::Number("") => json!({"type": "number"}),
        FieldType::Number(format) => json!({"type": "number", "format": format}),
        FieldType::Boolean => json!({"type": "boolean"}),
        FieldType::Bytes => json!({"type": "string", "format": "byte"}),
        FieldType::Object => json!({"type": "object"}),
        _ => json!({}),
    }
}
