//! Secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;
use serde_json::json;

use super::data;
use crate::cells::{age, name, text};
use crate::defaulting::{absent, default_at, put, remove};
use crate::kind::{Behaviour, Kind};

struct Secret;

pub fn kind() -> Kind {
    Kind::new("", "v1", "Secret", "secrets")
        .selectable(&["type"])
        .table("Name, Type, Data, Age")
        .counts_empty()
        .behaviour(Secret)
}

impl Behaviour for Secret {
    /// Folds the write-only `stringData` into `data`.
    fn default(&self, object: &mut Value) {
        if let Some(Value::Object(plain)) = remove(object, "/stringData")
            && !plain.is_empty()
        {
            default_at(object, "/data", json!({}));
            for (key, value) in plain {
                let encoded = STANDARD.encode(value.as_str().unwrap_or_default());
                if let Some(data) = object["data"].as_object_mut() {
                    data.insert(key, encoded.into());
                }
            }
        }
        default_at(object, "/type", "Opaque");
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        if absent(new, "/type") {
            put(new, "/type", text(old, "/type"));
        }
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = data::validate_keys(object, "data");
        errors.extend(data::validate_size(object, &["data"], "data"));
        errors.extend(validate_type(object));
        errors
    }

    /// Warns of an invalid certificate and key, which are accepted.
    fn warnings(&self, secret: &Value, _old: Option<&Value>) -> Vec<String> {
        if text(secret, "/type") != "kubernetes.io/tls" {
            return Vec::new();
        }
        let data =
            |key: &str| secret["data"][key].as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
        super::key_pair::problem(&data("tls.crt"), &data("tls.key")).into_iter().collect()
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if new["type"] != old["type"] {
            errors.push(FieldError::invalid(&Path::root("type"), new["type"].clone(), "field is immutable"));
        }
        errors.extend(data::validate_immutable(new, old, &["data"]));
        errors
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), text(object, "/type").into(), data::keys(object, "data").count().into(), age(object, now)]
    }

    fn fields(&self, object: &Value, field: &str) -> Option<String> {
        (field == "type").then(|| text(object, "/type").to_string())
    }
}

/// Returns the error of bytes that are no JSON object, in the words of upstream's decoder, which accepts null.
fn not_an_object(bytes: &[u8]) -> Option<String> {
    if let Some(why) = corten_meta::go::json_error(bytes) {
        return Some(why);
    }
    let sort = match serde_json::from_slice(bytes) {
        Ok(Value::Array(_)) => "array",
        Ok(Value::String(_)) => "string",
        Ok(Value::Number(_)) => "number",
        Ok(Value::Bool(_)) => "bool",
        Ok(Value::Null | Value::Object(_)) | Err(_) => return None,
    };
    Some(format!("json: cannot unmarshal {sort} into Go value of type map[string]interface {{}}"))
}

/// Validates the required keys of a well-known type.
fn validate_type(object: &Value) -> Vec<FieldError> {
    let has = |key: &str| object["data"].get(key).is_some();
    let missing = |key: &str| FieldError::required(&Path::root("data").key(key), "");
    let wanted: &[&str] = match text(object, "/type") {
        "kubernetes.io/service-account-token" => {
            let annotation = "kubernetes.io/service-account.name";
            let value = object["metadata"]["annotations"][annotation].as_str().unwrap_or_default();
            let path = Path::root("metadata").child("annotations").key(annotation);
            return if value.is_empty() { vec![FieldError::required(&path, "")] } else { Vec::new() };
        }
        "kubernetes.io/basic-auth" => {
            let either = has("username") || has("password");
            return if either { Vec::new() } else { vec![missing("username"), missing("password")] };
        }
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        _ => &[],
    };
    // An SSH key must not be empty.
    let lacks = |key: &str| !has(key) || key == "ssh-privatekey" && object["data"][key] == "";
    let mut errors: Vec<FieldError> = wanted.iter().filter(|key| lacks(key)).map(|key| missing(key)).collect();
    for key in wanted.iter().filter(|key| key.starts_with(".docker") && has(key)) {
        let bytes = STANDARD.decode(object["data"][*key].as_str().unwrap_or_default()).unwrap_or_default();
        if let Some(why) = not_an_object(&bytes) {
            errors.push(FieldError::invalid(&Path::root("data").key(key), "<secret contents redacted>", why));
        }
    }
    errors
}
