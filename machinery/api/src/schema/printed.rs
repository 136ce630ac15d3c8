//! The values that errors show: an absent string or number, which upstream's structs hold by value, is shown as its
//! zero value. Everything else is shown as the client wrote it. Runs only after something has failed.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::{FieldType, Type, schema};

/// Sets the printed value of every error that shows an absent string or number.
pub fn print_values(type_name: &str, errors: &mut [FieldError]) {
    let Some(root) = schema().type_(type_name) else { return };
    for error in errors.iter_mut().filter(|error| error.shows_value() && error.printed.is_none()) {
        if error.value.is_null() {
            error.printed = zero_at(root, &error.field).map(str::to_owned);
        }
    }
}

/// Returns the zero value of the field at a path, if it is a string or a number held by value.
fn zero_at(root: &Type, path: &str) -> Option<&'static str> {
    let mut around = root;
    let mut steps = steps(path).into_iter().peekable();
    while let Some(step) = steps.next() {
        let field = around.field(step.split('[').next()?)?;
        if steps.peek().is_some() {
            around = struct_of(&field.kind)?;
            continue;
        }
        return match field.kind {
            _ if field.presence.is_pointer => None,
            FieldType::String => Some("\"\""),
            FieldType::Integer(_) => Some("0"),
            _ => None,
        };
    }
    None
}

fn struct_of(kind: &FieldType) -> Option<&'static Type> {
    match kind {
        FieldType::Ref(id) => Some(schema().get(*id)),
        FieldType::List(inner) | FieldType::Map(inner) => struct_of(inner),
        _ => None,
    }
}

/// Returns the steps of a path; keys of maps may have dots.
fn steps(path: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    path.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == '.' && depth == 0
    })
    .collect()
}

/// Lists the fields that differ between two values of a type.
pub(crate) fn changed_fields(type_name: &str, old: &Value, new: &Value) -> String {
    let Some(t) = schema().type_(type_name) else { return String::new() };
    let differs = |name: &&str| {
        let only = |value: &Value| Value::from_iter([(*name, value.get(*name).cloned().unwrap_or_default())]);
        !super::equal(type_name, &only(old), &only(new))
    };
    let names: Vec<&str> = t.declared().map(|field| field.name.as_str()).filter(differs).collect();
    format!("changed: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use corten_meta::field::Path;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_absent_value_is_shown_as_zero_and_a_struct_as_it_was_written() {
        for (path, value, wanted) in [
            ("spec.schedulerName", Value::Null, "\"\""),
            ("spec.containers[0].ports[1].containerPort", Value::Null, "0"),
            ("spec.activeDeadlineSeconds", Value::Null, "null"),
            ("spec.containers[0].resources.limits[a.b/c]", Value::Null, "null"),
            ("spec.tolerations[0]", json!({"key": "k", "effect": "e"}), r#"{"effect":"e","key":"k"}"#),
        ] {
            let mut errors = [FieldError::invalid(&Path::root(path), value, "bad")];
            print_values("io.k8s.api.core.v1.Pod", &mut errors);
            assert_eq!(errors[0].to_string(), format!("{path}: Invalid value: {wanted}: bad"));
        }
    }

    #[test]
    fn a_change_is_reported_by_its_fields() {
        let old = json!({"name": "e", "image": "i", "tty": false});
        let new = json!({"name": "e", "image": "j", "command": ["c"], "args": []});
        let changes = changed_fields("io.k8s.api.core.v1.EphemeralContainer", &old, &new);
        assert_eq!(changes, "changed: image, command");
    }
}
