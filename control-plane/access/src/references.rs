//! The objects that a pod's spec refers to.

use corten_meta::Value;

/// Reports whether a pod spec refers to the object in any field.
pub fn refers_to(spec: &Value, resource: &str, name: &str) -> bool {
    let fields = reference_fields(resource);
    walk(spec, &mut |parent, value| fields.iter().any(|(key, field)| parent == *key && value[*field] == name))
}

/// Reports whether a pod spec refers to any object of the resource.
pub fn refers_to_any(spec: &Value, resource: &str) -> bool {
    let fields = reference_fields(resource);
    walk(spec, &mut |parent, value| fields.iter().any(|(key, field)| parent == *key && value[*field].is_string()))
}

/// Returns the fields of a pod spec that refer to objects of a resource: the key of the reference, and its field.
fn reference_fields(resource: &str) -> &'static [(&'static str, &'static str)] {
    match resource {
        "secrets" => &[
            ("secretKeyRef", "name"),
            ("secretRef", "name"),
            ("secret", "secretName"),
            ("secret", "name"),
            ("imagePullSecrets", "name"),
            ("nodePublishSecretRef", "name"),
            ("azureFile", "secretName"),
        ],
        "configmaps" => &[("configMapKeyRef", "name"), ("configMapRef", "name"), ("configMap", "name")],
        "resourceclaims" => &[("resourceClaims", "resourceClaimName")],
        _ => &[("persistentVolumeClaim", "claimName")],
    }
}

/// Reports whether any object below `value` satisfies `found`, which gets the object's key.
fn walk(value: &Value, found: &mut dyn FnMut(&str, &Value) -> bool) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(key, child)| match child {
            Value::Array(items) => items.iter().any(|item| found(key, item) || walk(item, found)),
            _ => found(key, child) || walk(child, found),
        }),
        Value::Array(items) => items.iter().any(|item| walk(item, found)),
        _ => false,
    }
}
