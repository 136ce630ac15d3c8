//! The shared parts of ConfigMap and Secret: keys, the size limit and immutability.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};

/// The most bytes of a ConfigMap or Secret.
const MAX_BYTES: usize = 1024 * 1024;

/// Returns the keys of the map field.
pub(super) fn keys<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a String> {
    object.get(field).and_then(Value::as_object).into_iter().flat_map(|m| m.keys())
}

pub(super) fn validate_keys(object: &Value, field: &str) -> Vec<FieldError> {
    let check = |key: &String| {
        let path = Path::root(field).key(key);
        let errors = corten_meta::names::config_map_key(key);
        errors.into_iter().map(move |e| FieldError::invalid(&path, key.as_str(), e)).collect::<Vec<_>>()
    };
    keys(object, field).flat_map(check).collect()
}

/// Validates the total size of the values; strings count as they are, base64 by its decoded size.
pub(super) fn validate_size(object: &Value, fields: &[&str], path: &str) -> Option<FieldError> {
    let total: usize = fields
        .iter()
        .flat_map(|field| object.get(*field).and_then(Value::as_object).into_iter().flatten().map(move |e| (field, e)))
        .map(|(field, (_, value))| {
            let text = value.as_str().unwrap_or_default();
            let encoded = *field == "binaryData" || path == "data";
            if encoded { text.trim_end_matches('=').len() * 3 / 4 } else { text.len() }
        })
        .sum();
    (total > MAX_BYTES).then(|| {
        FieldError::too_long(&if path.is_empty() { Path::default().key("") } else { Path::root(path) }, MAX_BYTES)
    })
}

/// Validates that neither `immutable` nor the data changes once `immutable` is true.
pub(super) fn validate_immutable(new: &Value, old: &Value, fields: &[&str]) -> Vec<FieldError> {
    if old["immutable"] != true {
        return Vec::new();
    }
    let mut errors = Vec::new();
    if new["immutable"] != true {
        let path = Path::root("immutable");
        errors.push(FieldError::forbidden(&path, "field is immutable when `immutable` is set"));
    }
    for field in fields {
        if new[*field] != old[*field] {
            let path = Path::root(field);
            errors.push(FieldError::forbidden(&path, "field is immutable when `immutable` is set"));
        }
    }
    errors
}
