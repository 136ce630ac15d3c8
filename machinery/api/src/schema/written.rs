//! An object as JSON, in the order in which upstream writes it after a patch.
//!
//! Upstream patches bytes: untouched parts stay as the encoder wrote them, in the order of the struct's fields, and
//! parts that the patch enters are sorted by name. Only error messages show it. Pure.

use corten_meta::Value;

use super::{FieldType, Type, schema};

/// Writes a value of the named type. `touched` mirrors the parts that a patch entered: an object for each of them, with
/// names or indexes, and any other value but null for the patch's own.
pub fn written(type_name: &str, value: &Value, touched: &Value) -> String {
    let mut text = String::new();
    match schema().type_(type_name) {
        Some(t) => write_type(t, value, touched, &mut text),
        None => text.push_str(&value.to_string()),
    }
    String::from_utf8_lossy(&corten_meta::codec::escaped(text.as_bytes())).into_owned()
}

fn write_type(t: &Type, value: &Value, touched: &Value, text: &mut String) {
    let Value::Object(fields) = value else { return text.push_str(&value.to_string()) };
    if !touched.is_object() && !touched.is_null() {
        return text.push_str(&sorted(value));
    }
    let mut names: Vec<&String> = fields.keys().collect();
    let place = |name: &str| t.declared().position(|field| field.name == name).unwrap_or(usize::MAX);
    match touched.is_object() {
        true => names.sort_unstable(),
        false => names.sort_by_key(|name| place(name)),
    }
    text.push('{');
    for (at, name) in names.into_iter().enumerate() {
        write_name(name, at, text);
        match t.field(name) {
            Some(field) => write_value(&field.kind, &fields[name], &touched[name.as_str()], text),
            None => text.push_str(&sorted(&fields[name])),
        }
    }
    text.push('}');
}

fn write_value(kind: &FieldType, value: &Value, touched: &Value, text: &mut String) {
    match (kind, value) {
        _ if !touched.is_object() && !touched.is_null() => text.push_str(&sorted(value)),
        (FieldType::Ref(id), _) if schema().get(*id).scalar.is_none() => {
            write_type(schema().get(*id), value, touched, text);
        }
        (FieldType::List(items), Value::Array(list)) => {
            text.push('[');
            for (at, item) in list.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                write_value(items, item, &touched[at.to_string().as_str()], text);
            }
            text.push(']');
        }
        _ => text.push_str(&sorted(value)),
    }
}

fn write_name(name: &str, at: usize, text: &mut String) {
    if at > 0 {
        text.push(',');
    }
    text.push_str(&Value::from(name).to_string());
    text.push(':');
}

/// Returns a value with the fields of its objects sorted by name.
fn sorted(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort_unstable();
            let mut text = String::from("{");
            for (at, name) in names.into_iter().enumerate() {
                write_name(name, at, &mut text);
                text.push_str(&sorted(&fields[name]));
            }
            text.push('}');
            text
        }
        Value::Array(items) => format!("[{}]", items.iter().map(sorted).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn untouched_parts_keep_the_order_of_the_struct() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"creationTimestamp": null, "labels": {"b": "<", "a": "1"}, "name": "x", "uid": "u"},
            "spec": {"containers": [{"image": "i", "name": "c"}], "restartPolicy": "Always"},
        });
        let text = |touched: Value| written("io.k8s.api.core.v1.Pod", &pod, &touched);
        let metadata = r#"{"name":"x","uid":"u","creationTimestamp":null,"labels":{"a":"1","b":"\u003c"}}"#;
        assert_eq!(
            text(json!({"spec": {"containers": [1]}})),
            format!(
                r#"{{"apiVersion":"v1","kind":"Pod","metadata":{metadata},"spec":{{"containers":[{{"image":"i","name":"c"}}],"restartPolicy":"Always"}}}}"#
            )
        );
        let sorted = text(json!({"metadata": {"name": "x"}}));
        assert!(sorted.contains(r#""metadata":{"creationTimestamp":null,"labels""#), "{sorted}");
        assert!(sorted.contains(r#"{"name":"c","image":"i"}"#), "{sorted}");
    }
}
