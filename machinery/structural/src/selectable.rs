//! The selectable fields of custom resources for field selectors: paths to scalars of the schema. Pure.

use std::collections::BTreeSet;

use corten_meta::{FieldError, Path, Value};

const MOST: usize = 8;

/// Returns the errors of the selectable fields of a version with this schema.
pub fn validate(fields: &Value, schema: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, field) in fields.as_array().into_iter().flatten().enumerate() {
        let json_path = path.index(index).child("jsonPath");
        let string = field["jsonPath"].as_str().unwrap_or_default();
        if string.is_empty() {
            errors.push(FieldError::required(&json_path, ""));
            continue;
        }
        let (names, found) = match follow(string, schema) {
            Ok(found) => found,
            Err(why) => {
                errors.push(FieldError::invalid(&json_path, string, format!("is an invalid path: {why}")));
                continue;
            }
        };
        if names.first() == Some(&"metadata") {
            errors.push(FieldError::invalid(&json_path, string, "must not point to fields in metadata"));
        }
        if !matches!(found["type"].as_str(), Some("string" | "boolean" | "integer")) {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(&json_path, string, detail));
        }
        if !seen.insert(names) {
            errors.push(FieldError::duplicate(&json_path, string));
        }
    }
    if seen.len() > MOST {
        errors.push(FieldError::too_many(path, seen.len(), MOST));
    }
    errors
}

/// Returns the names of a path in dot notation, and the schema at its end.
fn follow<'a>(path: &'a str, schema: &'a Value) -> Result<(Vec<&'a str>, &'a Value), String> {
    let mut rest = path;
    let mut here = schema;
    let mut names = Vec::new();
    while !rest.is_empty() {
        if rest.starts_with('[') {
            return Err("array notation is not allowed".to_owned());
        }
        let Some(step) = rest.strip_prefix('.') else {
            return Err(format!("expected [ or . but got: {}", token(rest)));
        };
        if step.is_empty() {
            return Err("unexpected end of JSON path".to_owned());
        }
        let name = token(step);
        let named = here["properties"].get(name);
        let of_map = Some(&here["additionalProperties"]).filter(|_| here["properties"].is_null());
        // With additionalProperties, every field exists and has any type.
        let found = named.or(of_map).filter(|next| next.is_object() || **next == true);
        here = found.ok_or("does not refer to a valid field")?;
        names.push(name);
        rest = &step[name.len()..];
    }
    Ok((names, here))
}

/// Returns the string before the next delimiter, or the delimiter.
fn token(string: &str) -> &str {
    match string.find(['.', '[', ']']) {
        Some(0) => &string[..1],
        Some(end) => &string[..end],
        None => string,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_to_scalars() {
        let schema = json!({ "type": "object", "properties": {
            "metadata": { "type": "object", "properties": { "name": { "type": "string" } } },
            "spec": { "type": "object", "properties": { "a": { "type": "string" }, "o": { "type": "object" },
                "any": { "type": "object", "additionalProperties": true } } } } });
        for (path, expected) in [
            (".spec.a", ""),
            ("", "f[0].jsonPath: Required value"),
            ("a.b", "f[0].jsonPath: Invalid value: \"a.b\": is an invalid path: expected [ or . but got: a"),
            (
                ".spec.b",
                "f[0].jsonPath: Invalid value: \".spec.b\": is an invalid path: does not refer to a valid field",
            ),
            (
                ".spec[0]",
                "f[0].jsonPath: Invalid value: \".spec[0]\": is an invalid path: array notation is not allowed",
            ),
            (
                ".metadata.name",
                "f[0].jsonPath: Invalid value: \".metadata.name\": must not point to fields in metadata",
            ),
            (".spec.", "f[0].jsonPath: Invalid value: \".spec.\": is an invalid path: unexpected end of JSON path"),
            (
                ".spec.o",
                "f[0].jsonPath: Invalid value: \".spec.o\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
            ),
            (
                ".spec.any.x",
                "f[0].jsonPath: Invalid value: \".spec.any.x\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
            ),
            (
                ".spec.any.x.y",
                "f[0].jsonPath: Invalid value: \".spec.any.x.y\": is an invalid path: does not refer to a valid field",
            ),
        ] {
            let errors = validate(&json!([{ "jsonPath": path }]), &schema, &Path::root("f"));
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "), expected);
        }
    }
}
