//! AdmissionReview: the request to a webhook, and its response. Pure.

use std::collections::BTreeMap;

use base64::Engine;
use corten_meta::quote::quote;
use corten_meta::{Status, Value};
use serde_json::json;

use super::invocation::Invocation;
use crate::attributes::Attributes;

/// Returns the `request` of a review.
pub fn request(a: &Attributes<'_>, invocation: &Invocation<'_>, object: Value, old: Value, uid: &str) -> Value {
    let kind =
        |(group, version, kind): (String, String, String)| json!({ "group": group, "version": version, "kind": kind });
    let resource = |of: &corten_api::Kind| json!({ "group": of.group, "version": of.version, "resource": of.plural });
    let own = &a.target.resource;
    let mut request = json!({
        "uid": uid,
        "kind": kind(invocation.kind(a)),
        "resource": resource(invocation.resource.kind()),
        "requestKind": kind(a.kind_in(&**own)),
        "requestResource": resource(own.kind()),
        "operation": a.operation.word(),
        "userInfo": a.target.context.user().to_value(),
        "object": object,
        "oldObject": old,
        "dryRun": a.dry_run,
        "options": a.options(),
    });
    let name = a.name();
    let namespace = a.namespace();
    let subresource = a.subresource();
    for (key, value) in
        [("name", name), ("namespace", &namespace), ("subResource", subresource), ("requestSubResource", subresource)]
    {
        if !value.is_empty() {
            request[key] = value.into();
        }
    }
    request
}

/// The response of a webhook.
#[derive(Debug, Default, PartialEq)]
pub struct Response {
    pub allowed: bool,
    /// The JSON patch of a mutating webhook.
    pub patch: Option<Value>,
    pub result: Value,
    pub warnings: Vec<String>,
    pub annotations: BTreeMap<String, String>,
}

/// Reads the response to the review `uid` of a version.
pub fn response(bytes: &[u8], version: &str, uid: &str, mutating: bool) -> Result<Response, String> {
    let review: Value =
        serde_json::from_slice(bytes).map_err(|e| format!("couldn't get version/kind; json parse error: {e}"))?;
    let Some(response) = review.get("response").filter(|r| r.is_object()) else {
        return Err("webhook response was absent".to_owned());
    };
    let string = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let has_patch = response["patch"].as_str().is_some_and(|patch| !patch.is_empty());
    let patch_type = response["patchType"].as_str();
    // Upstream checks responses of v1beta1 less strictly.
    if version == "v1" {
        let response_uid = string(response, "uid");
        if response_uid != uid {
            return Err(format!("expected response.uid={}, got {}", quote(uid), quote(&response_uid)));
        }
        let api_version = string(&review, "apiVersion");
        let kind = string(&review, "kind");
        if api_version != "admission.k8s.io/v1" || kind != "AdmissionReview" {
            return Err(format!(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {api_version}, Kind={kind}"
            ));
        }
        match (mutating, has_patch, patch_type) {
            (true, true, None) => return Err("webhook returned response.patch but not response.patchType".to_owned()),
            (true, false, Some(_)) => {
                return Err("webhook returned response.patchType but not response.patch".to_owned());
            }
            (true, _, Some("")) => return Err("webhook returned invalid response.patchType of \"\"".to_owned()),
            (false, true, _) => return Err("validating webhook may not return response.patch".to_owned()),
            (false, _, Some(_)) => return Err("validating webhook may not return response.patchType".to_owned()),
            _ => {}
        }
    }
    let patch = if mutating && has_patch { Some(patch(response, patch_type)?) } else { None };
    let strings = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let annotations = response["auditAnnotations"].as_object().into_iter().flatten();
    Ok(Response {
        allowed: response["allowed"].as_bool().unwrap_or(false),
        patch,
        result: response["status"].clone(),
        warnings: strings(&response["warnings"]),
        annotations: annotations.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect(),
    })
}

fn patch(response: &Value, patch_type: Option<&str>) -> Result<Value, String> {
    let encoded = response["patch"].as_str().unwrap_or_default();
    let undecodable = |e: &dyn std::fmt::Display| format!("received undecodable patch in webhook response: {e}");
    let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).map_err(|e| undecodable(&e))?;
    match patch_type {
        None | Some("JSONPatch") => {}
        Some(other) => return Err(format!("unsupported patch type {}", quote(other))),
    }
    let patch: Value = serde_json::from_slice(&bytes).map_err(|e| undecodable(&e))?;
    if patch.is_array() { Ok(patch) } else { Err(undecodable(&"it is no list of operations")) }
}

/// Returns the answer to a client whose write a webhook refused.
pub fn denied(webhook: &str, result: &Value) -> Status {
    let by = format!("admission webhook {} denied the request", quote(webhook));
    let string = |key: &str| result[key].as_str().unwrap_or_default();
    let message = match (string("message"), string("reason")) {
        ("", "") => format!("{by} without explanation"),
        ("", reason) => format!("{by}: {reason}"),
        (message, _) => format!("{by}: {message}"),
    };
    let mut status = Status::from_value(result).unwrap_or_else(|| Status::bad_request(""));
    status.code = result["code"].as_u64().and_then(|c| u16::try_from(c).ok()).filter(|c| *c >= 400).unwrap_or(400);
    status.reason = string("reason").to_owned();
    status.message = message;
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(version: &str, mutating: bool, review: Value) -> Result<Response, String> {
        response(review.to_string().as_bytes(), version, "u", mutating)
    }

    fn review(response: Value) -> Value {
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
    }

    #[test]
    fn invalid_responses_are_refused() {
        let patch = base64::engine::general_purpose::STANDARD.encode("[]");
        for (mutating, answer, expected) in [
            (false, json!({}), "webhook response was absent"),
            (false, review(json!({ "uid": "x" })), "expected response.uid=\"u\", got \"x\""),
            (
                false,
                json!({ "response": { "uid": "u" } }),
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got , Kind=",
            ),
            (false, review(json!({ "uid": "u", "patch": patch })), "validating webhook may not return response.patch"),
            (
                true,
                review(json!({ "uid": "u", "patch": patch })),
                "webhook returned response.patch but not response.patchType",
            ),
            (
                true,
                review(json!({ "uid": "u", "patchType": "JSONPatch" })),
                "webhook returned response.patchType but not response.patch",
            ),
            (
                true,
                review(json!({ "uid": "u", "patchType": "MergePatch", "patch": patch })),
                "unsupported patch type \"MergePatch\"",
            ),
        ] {
            assert_eq!(read("v1", mutating, answer.clone()).unwrap_err(), expected, "{answer}");
        }
        assert!(read("v1", true, review(json!({ "uid": "u", "patchType": "JSONPatch", "patch": "e30=" }))).is_err());
        assert!(response(b"<html>", "v1", "u", true).is_err());
    }

    #[test]
    fn a_response_is_decoded() {
        let patch = base64::engine::general_purpose::STANDARD.encode(r#"[{"op":"remove","path":"/a"}]"#);
        let answer = json!({ "uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": patch,
                             "warnings": ["w"], "auditAnnotations": { "k": "v" } });
        let read = read("v1", true, review(answer)).unwrap();
        assert_eq!(read.patch, Some(json!([{ "op": "remove", "path": "/a" }])));
        assert_eq!((read.allowed, read.warnings.len(), read.annotations.len()), (true, 1, 1));
    }

    #[test]
    fn denials_have_upstreams_messages() {
        for (result, code, message) in [
            (Value::Null, 400, "admission webhook \"h\" denied the request without explanation"),
            (json!({ "reason": "no" }), 400, "admission webhook \"h\" denied the request: no"),
            (json!({ "message": "m", "code": 200 }), 400, "admission webhook \"h\" denied the request: m"),
            (json!({ "message": "m", "code": 403 }), 403, "admission webhook \"h\" denied the request: m"),
        ] {
            let status = denied("h", &result);
            assert_eq!((status.code, status.message.as_str()), (code, message));
        }
    }
}
