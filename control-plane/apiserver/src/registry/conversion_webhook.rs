//! The webhook that converts the objects of a CustomResourceDefinition between its versions.

use std::sync::Arc;
use std::time::Duration;

use corten_api::Kind;
use corten_meta::field::aggregate;
use corten_meta::quote::quote;
use corten_meta::{Path, Status, Value};
use serde_json::json;

use crate::outbound::{ClientConfig, Outbound, bundle_error};

/// The time limit of a call of the webhook.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The biggest response of the webhook: an object and the review around it.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// The conversion webhook of a custom resource.
pub struct ConversionWebhook {
    outbound: Arc<Outbound>,
    client: Result<ClientConfig, String>,
    /// The first version of ConversionReview that both the webhook and the server support.
    review_version: Option<&'static str>,
}

impl ConversionWebhook {
    pub fn of(kind: &Kind, outbound: &Arc<Outbound>) -> Option<Arc<ConversionWebhook>> {
        let webhook = kind.behaviour.conversion_webhook()?;
        let versions = webhook["conversionReviewVersions"].as_array().into_iter().flatten();
        let review_version = versions.filter_map(Value::as_str).find_map(|version| match version {
            "v1" => Some("v1"),
            "v1beta1" => Some("v1beta1"),
            _ => None,
        });
        let client = ClientConfig::from_value(&webhook["clientConfig"]);
        Some(Arc::new(ConversionWebhook { outbound: Arc::clone(outbound), client, review_version }))
    }

    /// Converts an object that is not in the wanted version yet. As upstream, each call has one object.
    pub(super) async fn convert(&self, object: Value, wanted: &str) -> Result<Value, Status> {
        let what = described(&object);
        let failed = |why: String| self::failed(format!("conversion webhook for {what} failed: {why}"));
        let version =
            self.review_version.ok_or_else(|| self::failed("no supported conversion review versions".to_owned()))?;
        let client = self.client.as_ref().map_err(|e| failed(e.clone()))?;
        let uid = uuid::Uuid::new_v4().to_string();
        let review = json!({
            "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{version}"),
            "request": { "uid": uid, "desiredAPIVersion": wanted, "objects": [object] },
        });
        let answer =
            self.outbound.post(client, review.to_string().into(), TIMEOUT, MAX_ANSWER).await.map_err(failed)?;
        let converted = response(&answer, version, &uid).map_err(failed)?;
        let [converted] = <[Value; 1]>::try_from(converted).map_err(|others| {
            let count = others.len();
            self::failed(format!("conversion webhook for {what} returned {count} objects, expected 1"))
        })?;
        let invalid = |e: String| self::failed(format!("conversion webhook for {what} returned invalid {e}"));
        checked(&object, converted, wanted).map_err(invalid)
    }
}

/// Returns the error of a failed conversion: upstream gives it no reason.
pub(super) fn failed(message: String) -> Status {
    Status { code: 500, message, ..Status::default() }
}

/// Returns `stable.example.com/v1, Kind=Foo`.
fn described(object: &Value) -> String {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    format!("{}, Kind={}", text("apiVersion"), text("kind"))
}

/// Reads the response of a review.
pub(crate) fn response(bytes: &[u8], version: &str, uid: &str) -> Result<Vec<Value>, String> {
    let mut review: Value = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    if version == "v1" {
        let api_version = text(&review, "apiVersion");
        let kind = text(&review, "kind");
        if api_version != "apiextensions.k8s.io/v1" || kind != "ConversionReview" {
            return Err(format!(
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {api_version}, Kind={kind}"
            ));
        }
    }
    let response = &mut review["response"];
    if !response.is_object() {
        return Err("no response provided".to_owned());
    }
    let given = text(response, "uid");
    if version == "v1" && given != uid {
        return Err(format!("expected response.uid={}, got {}", quote(uid), quote(&given)));
    }
    let status = text(&response["result"], "status");
    let message = text(&response["result"], "message");
    if status != "Success" {
        let no_message = format!("response.result.status was '{status}', not 'Success'");
        return Err(if message.is_empty() { no_message } else { message });
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// Checks a converted object, and restores its metadata. A webhook converts an object and must not replace it: of the
/// metadata it may change only labels and annotations, and these must be valid.
pub(crate) fn checked(original: &Value, mut converted: Value, wanted: &str) -> Result<Value, String> {
    let text =
        |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    for (pointer, what, expected) in
        [("/apiVersion", "groupVersion", wanted.to_owned()), ("/kind", "kind", text(original, "/kind"))]
    {
        let given = text(&converted, pointer);
        if given != expected {
            return Err(format!("object at index 0: invalid {what} (expected {expected}, received {given})"));
        }
    }
    for (pointer, what) in [("/metadata/name", "name"), ("/metadata/namespace", "namespace"), ("/metadata/uid", "UID")]
    {
        let before = text(original, pointer);
        let after = text(&converted, pointer);
        if before != after {
            return Err(format!("object: must have the same {what}: {before} != {after}"));
        }
    }
    let metadata = converted.get("metadata").and_then(Value::as_object).cloned();
    let given = metadata.ok_or("metadata: missing metadata in converted object")?;
    let mut metadata = original["metadata"].as_object().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        match given.get(field) {
            None | Some(Value::Null) => drop(metadata.remove(field)),
            Some(after) => {
                let before = metadata.insert(field.to_owned(), after.clone());
                check_labels_or_annotations(field, after, before.as_ref()).map_err(|why| format!("metadata: {why}"))?;
            }
        }
    }
    converted["metadata"] = Value::Object(metadata);
    Ok(converted)
}

/// Checks that labels or annotations are valid; unchanged ones are.
fn check_labels_or_annotations(field: &str, after: &Value, before: Option<&Value>) -> Result<(), String> {
    let Some(entries) = after.as_object() else {
        return Err(format!("invalid metadata.{field} of type {} in converted object", go_type(after)));
    };
    if let Some((key, value)) = entries.iter().find(|(_, value)| !value.is_string()) {
        let found = go_type(value);
        return Err(format!("metadata.{field}[{key}] must be a string, but is {found} in converted object"));
    }
    if before == Some(after) {
        return Ok(());
    }
    let around = json!({ "metadata": { "name": "a", field: after } });
    let errors = corten_api::objectmeta::validate_embedded(&around, &Path::root("metadata"));
    match errors.is_empty() {
        true => Ok(()),
        false => Err(aggregate(&errors).unwrap_or_default()),
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Returns whether requests for a kind fail: the CA bundle of its conversion webhook is invalid.
pub fn is_unresolved(kind: &Kind) -> bool {
    let client = kind.behaviour.conversion_webhook().map(|webhook| &webhook["clientConfig"]);
    client.and_then(bundle_error).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_cannot_make_another_object() {
        let original = json!({ "apiVersion": "g/v1", "kind": "K", "x": 1, "metadata": {
            "name": "n", "namespace": "s", "uid": "u", "resourceVersion": "7", "labels": { "a": "b" } } });
        let with = |pointer: &str, value: Value| {
            let mut converted = original.clone();
            converted["apiVersion"] = "g/v2".into();
            corten_meta::set(&mut converted, pointer, value);
            checked(&original, converted, "g/v2")
        };
        for (pointer, value, error) in [
            ("/apiVersion", json!("g/v3"), "object at index 0: invalid groupVersion (expected g/v2, received g/v3)"),
            ("/kind", json!("L"), "object at index 0: invalid kind (expected K, received L)"),
            ("/metadata/name", json!("m"), "object: must have the same name: n != m"),
            ("/metadata/namespace", json!("kube-system"), "object: must have the same namespace: s != kube-system"),
            ("/metadata/uid", json!("w"), "object: must have the same UID: u != w"),
            (
                "/metadata/labels",
                json!({ "a": 1 }),
                "metadata: metadata.labels[a] must be a string, but is int64 in converted object",
            ),
            (
                "/metadata/labels",
                json!(["a"]),
                "metadata: invalid metadata.labels of type []interface {} in converted object",
            ),
            ("/metadata", Value::Null, "object: must have the same name: n != "),
        ] {
            assert_eq!(with(pointer, value).unwrap_err(), error);
        }
        let wrong = with("/metadata/labels", json!({ "a b": "c" })).unwrap_err();
        assert!(wrong.starts_with("metadata: metadata.labels: Invalid value: \"a b\": name part"), "{wrong}");
        let kept = with("/metadata/finalizers", json!(["evil"])).unwrap();
        assert_eq!(kept["metadata"], original["metadata"]);
        let relabelled = with("/metadata/labels", json!({ "c": "d" })).unwrap();
        assert_eq!(relabelled["metadata"]["labels"], json!({ "c": "d" }));
    }

    #[test]
    fn responses_are_read_or_refused() {
        let answer = |response: Value| json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response });
        let read = |review: Value, version: &str| response(review.to_string().as_bytes(), version, "u");
        let success = json!({ "status": "Success" });
        for (review, version, expected) in [
            (answer(json!({ "uid": "u", "result": success, "convertedObjects": [1] })), "v1", Ok(vec![json!(1)])),
            (answer(json!({ "uid": "x", "result": success })), "v1", Err("expected response.uid=\"u\", got \"x\"")),
            (answer(json!({ "uid": "u", "result": { "status": "Failed", "message": "no" } })), "v1", Err("no")),
            (answer(json!({ "uid": "u" })), "v1", Err("response.result.status was '', not 'Success'")),
            (answer(Value::Null), "v1", Err("no response provided")),
            (json!({ "response": { "result": success } }), "v1beta1", Ok(vec![])),
        ] {
            assert_eq!(read(review, version), expected.map_err(str::to_owned));
        }
    }
}
