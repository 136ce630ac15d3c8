//! Embedded resources of custom resources (`x-kubernetes-embedded-resource`): they have a type and metadata as any
//! resource. Pure.

use corten_meta::{FieldError, Path, Value, names};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Visits every embedded resource of a value.
fn each<E>(
    schema: &Value,
    value: &mut Value,
    path: &Path,
    visit: &mut dyn FnMut(&mut Value, &Path) -> Result<(), E>,
) -> Result<(), E> {
    if value.is_object() && schema["x-kubernetes-embedded-resource"] == true {
        visit(value, path)?;
    }
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let known = schema["properties"].get(name);
                let values = &schema["additionalProperties"];
                match known {
                    Some(schema) => each(schema, value, &path.child(name), visit)?,
                    None if values.is_object() => each(values, value, &path.key(name), visit)?,
                    None => {}
                }
            }
        }
        Value::Array(items) if schema["items"].is_object() => {
            for (index, item) in items.iter_mut().enumerate() {
                each(&schema["items"], item, &path.index(index), visit)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Reports whether a value holds an embedded resource, which is rare. Its cost depends on the size of the value, not of
/// the schema.
fn holds_any(schema: &Value, value: &Value) -> bool {
    match value {
        Value::Object(_) if schema["x-kubernetes-embedded-resource"] == true => true,
        Value::Object(map) => map.iter().any(|(name, value)| {
            let below = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
            holds_any(below, value)
        }),
        Value::Array(items) => items.iter().any(|item| holds_any(&schema["items"], item)),
        _ => false,
    }
}

/// Decodes the metadata of embedded resources: removes unknown fields, and adds their paths to `unknown`.
pub fn coerce(schema: &Value, object: &mut Value, unknown: &mut Vec<String>) -> Result<(), FieldError> {
    coerce_at(&Path::default(), schema, object, unknown)
}

/// Decodes the metadata of the embedded resources in a value at a path.
pub fn coerce_at(
    parent: &Path,
    schema: &Value,
    value: &mut Value,
    unknown: &mut Vec<String>,
) -> Result<(), FieldError> {
    if !holds_any(schema, value) {
        return Ok(());
    }
    each(schema, value, parent, &mut |resource, path| {
        for field in ["apiVersion", "kind"] {
            if let Some(value) = resource.get(field).filter(|value| !value.is_string()) {
                return Err(FieldError::invalid(&path.child(field), value.clone(), "must be a string"));
            }
        }
        let Some(metadata) = resource.get_mut("metadata") else { return Ok(()) };
        let field_path = path.child("metadata");
        let report = corten_api::check_fields(OBJECT_META, metadata);
        if let Some(error) = report.type_errors.first() {
            return Err(FieldError::invalid(&field_path, metadata.clone(), error));
        }
        unknown.extend(report.unknown.iter().map(|field| format!("{field_path}.{field}")));
        if metadata.is_null() {
            *metadata = serde_json::json!({});
        }
        corten_api::prune(OBJECT_META, metadata);
        let is_empty = |value: &Value| match value {
            Value::String(string) => string.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.retain(|_, value| !is_empty(value));
        }
        Ok(())
    })
}

/// Adds the errors of embedded resources.
pub fn validate(schema: &Value, object: &Value, errors: &mut Vec<FieldError>) {
    validate_at(&Path::default(), schema, object, errors);
}

/// Adds the errors of the embedded resources in a value at a path.
pub fn validate_at(parent: &Path, schema: &Value, value: &Value, errors: &mut Vec<FieldError>) {
    if !holds_any(schema, value) {
        return;
    }
    let visited: Result<(), ()> = each(schema, &mut value.clone(), parent, &mut |resource, path| {
        validate_resource(resource, path, errors);
        Ok(())
    });
    // The visitor above never fails.
    let _ = visited;
}

fn validate_resource(resource: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let fields = ["apiVersion", "kind"].map(|field| (resource.get(field), path.child(field)));
    for (_, field_path) in fields.iter().filter(|(value, _)| value.is_none()) {
        errors.push(FieldError::required(field_path, ""));
    }
    let [version, kind] = fields.map(|(value, field_path)| (value.and_then(Value::as_str), field_path));
    match version.0 {
        Some("") => errors.push(FieldError::invalid(&version.1, "", "must not be empty")),
        Some(string) if string.matches('/').count() > 1 => {
            errors.push(FieldError::invalid(&version.1, string, format!("unexpected GroupVersion string: {string}")));
        }
        _ => {}
    }
    match kind.0.map(|string| (string, names::dns1035_label(&string.to_lowercase()))) {
        Some(("", _)) => errors.push(FieldError::invalid(&kind.1, "", "must not be empty")),
        Some((string, messages)) if !messages.is_empty() => {
            let detail = format!("may have mixed case, but should otherwise match: {}", messages.join(","));
            errors.push(FieldError::invalid(&kind.1, string, detail));
        }
        _ => {}
    }
    if resource.get("metadata").is_some() {
        errors.extend(corten_api::objectmeta::validate_embedded(resource, &path.child("metadata")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        let resource = json!({ "type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true });
        json!({ "type": "object", "properties": { "list": { "type": "array", "items": resource } } })
    }

    #[test]
    fn metadata_is_decoded() {
        let mut object =
            json!({ "list": [{ "metadata": { "name": "", "labels": { "a": "b" }, "odd": 1 }, "kept": 1 }] });
        let mut unknown = Vec::new();
        coerce(&schema(), &mut object, &mut unknown).unwrap();
        assert_eq!(unknown, ["list[0].metadata.odd"]);
        assert_eq!(object, json!({ "list": [{ "metadata": { "labels": { "a": "b" } }, "kept": 1 }] }));
        let mut wrong = json!({ "list": [{ "metadata": { "name": 5 } }] });
        let error = coerce(&schema(), &mut wrong, &mut unknown).unwrap_err().to_string();
        assert_eq!(
            error,
            "list[0].metadata: Invalid value: {\"name\":5}: json: cannot unmarshal number into Go struct field ObjectMeta.name of type string"
        );
    }

    #[test]
    fn a_resource_without_a_type_is_invalid() {
        let check = |resource: Value| {
            let mut errors = Vec::new();
            validate(&schema(), &json!({ "list": [resource] }), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(check(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a" } })), "");
        assert_eq!(check(json!({})), "list[0].apiVersion: Required value; list[0].kind: Required value");
        let found = check(json!({ "apiVersion": "a/b/c", "kind": "", "metadata": { "labels": { "a b": "c" } } }));
        assert!(found.starts_with("list[0].apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c; list[0].kind: Invalid value: \"\": must not be empty; list[0].metadata.labels: Invalid value: \"a b\": name part"), "{found}");
    }
}
