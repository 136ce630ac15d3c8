//! Validates the replicas of a custom resource's scale: its paths lead to numbers. Pure.

use corten_api::ScalePaths;
use corten_meta::{FieldError, Path, Value};

/// Adds the errors of the desired replicas.
pub fn validate_spec(scale: &ScalePaths, object: &Value, errors: &mut Vec<FieldError>) {
    replicas(&scale.spec_replicas, object, errors);
}

/// Adds the errors of the status's replicas and selector.
pub fn validate_status(scale: &ScalePaths, object: &Value, errors: &mut Vec<FieldError>) {
    replicas(&scale.status_replicas, object, errors);
    if let Some(path) = &scale.selector
        && let Err(why) = at(object, path, "string", Value::is_string)
    {
        errors.push(FieldError::invalid(&Path::root(path), "", why));
    }
}

fn replicas(path: &str, object: &Value, errors: &mut Vec<FieldError>) {
    let mut refuse = |value: i64, why: String| errors.push(FieldError::invalid(&Path::root(path), value, why));
    match at(object, path, "int64", Value::is_i64) {
        Err(why) => refuse(0, why),
        Ok(found) => match found.and_then(Value::as_i64).unwrap_or(0) {
            negative @ ..0 => refuse(negative, "should be a non-negative integer".to_owned()),
            many if many > i64::from(i32::MAX) => refuse(many, format!("should be less than or equal to {}", i32::MAX)),
            _ => {}
        },
    }
}

/// Returns the value at a path such as `.spec.replicas`, which must be of a type.
fn at<'a>(
    object: &'a Value,
    path: &str,
    wanted: &str,
    is_wanted: impl Fn(&Value) -> bool,
) -> Result<Option<&'a Value>, String> {
    let mut here = object;
    let mut walked = String::new();
    for name in path.trim_start_matches('.').split('.') {
        walked.push('.');
        walked.push_str(name);
        match here {
            Value::Null => return Ok(None),
            Value::Object(map) => match map.get(name) {
                Some(next) => here = next,
                None => return Ok(None),
            },
            other => return Err(type_error(&walked, other, "map[string]interface{}")),
        }
    }
    if is_wanted(here) { Ok(Some(here)) } else { Err(type_error(&walked, here, wanted)) }
}

fn type_error(path: &str, value: &Value, wanted: &str) -> String {
    let found = match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    };
    // A float without a fraction is printed as an integer.
    let shown = match value.as_f64() {
        Some(number) if number.abs() < 1e21 => number.to_string(),
        _ => corten_meta::go::printed(value),
    };
    format!("{path} accessor error: {shown} is of the type {found}, expected {wanted}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn replicas_are_numbers() {
        let scale = ScalePaths {
            spec_replicas: ".spec.n".to_owned(),
            status_replicas: ".status.n".to_owned(),
            selector: Some(".status.s".to_owned()),
        };
        for (object, expected) in [
            (json!({ "spec": { "n": 1 } }), ""),
            (json!({ "spec": { "n": -1 } }), ".spec.n: Invalid value: -1: should be a non-negative integer"),
            (
                json!({ "spec": { "n": 5.0 } }),
                ".spec.n: Invalid value: 0: .spec.n accessor error: 5 is of the type float64, expected int64",
            ),
            (
                json!({ "status": { "s": 5 } }),
                ".status.s: Invalid value: \"\": .status.s accessor error: 5 is of the type int64, expected string",
            ),
            (
                json!({ "spec": "x" }),
                ".spec.n: Invalid value: 0: .spec.n accessor error: x is of the type string, expected map[string]interface{}",
            ),
        ] {
            let mut errors = Vec::new();
            validate_spec(&scale, &object, &mut errors);
            validate_status(&scale, &object, &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "), expected);
        }
    }
}
