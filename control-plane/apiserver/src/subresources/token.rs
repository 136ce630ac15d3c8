//! `token` of a ServiceAccount: a TokenRequest, answered with a signed token.

use corten_admission::Operation;
use corten_meta::quote::quote;
use corten_meta::{FieldError, GroupKind, GroupResource, Path, Status, Value};
use http::StatusCode;
use serde_json::json;

use crate::authentication::token::{Claims, Tokens};
use crate::body::Reply;
use crate::decode::{Expected, object};
use crate::response;
use crate::write::Scope;
use crate::write::check_namespace;
use crate::write::field_ownership::own_response;
use crate::write::normalise::drop_empty;

const REQUEST: Expected<'static> = Expected {
    api_version: "authentication.k8s.io/v1",
    kind: "TokenRequest",
    schema: "io.k8s.api.authentication.v1.TokenRequest",
    custom: None,
    older: None,
    behaviour: None,
    is_merged: false,
};
const DEFAULT_SECONDS: i64 = 3600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;

/// Issues the token.
pub async fn create(target: &Scope<'_>, tokens: &Tokens, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    let mut request = object(target.context, bytes, &REQUEST)?;
    check_namespace(target, &mut request)?;
    check_metadata(target, &request)?;
    request = target.admission.pass(target.for_admission(), Operation::Create, request).await?;
    let account = target.core.registry.get(target.resource, target.namespace, target.name).await?;
    let uid = corten_meta::uid(&request).to_owned();
    if !uid.is_empty() && uid != account.header.uid {
        let why = format!(
            "the UID in the token request ({uid}) does not match the UID of the service account ({})",
            account.header.uid
        );
        return Err(Status::conflict(&request_resource(), target.name, &why));
    }
    let seconds = request.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
    check_seconds(seconds)?;
    let mut audiences: Vec<String> = request
        .pointer("/spec/audiences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if audiences.is_empty() {
        audiences = target.core.config.audiences.clone();
    }
    let (bound, node) = bound_object(target, &request).await?;
    let now = target.context.now;
    let claims = Claims {
        namespace: target.namespace,
        service_account: target.name,
        service_account_uid: &account.header.uid,
        audiences: &audiences,
        lifetime_seconds: seconds,
        bound,
        node,
        now,
    };
    let token = tokens.issue(&claims).map_err(|e| Status::internal(e.to_string()))?;
    let expires = corten_meta::time::rfc3339(now + jiff::SignedDuration::from_secs(seconds));
    if !request["metadata"].is_object() {
        request["metadata"] = json!({});
    }
    for (field, value) in [
        ("name", target.name),
        ("namespace", target.namespace),
        ("uid", &account.header.uid),
        ("creationTimestamp", &corten_meta::time::rfc3339(now)),
    ] {
        request["metadata"][field] = value.into();
    }
    if let Some(metadata) = request["metadata"].as_object_mut() {
        drop_empty(metadata);
    }
    corten_meta::set(&mut request, "/spec/expirationSeconds", seconds.into());
    if let Some(reference) = request.pointer_mut("/spec/boundObjectRef").and_then(Value::as_object_mut) {
        reference.retain(|_, value| *value != "");
    }
    own_response(target, REQUEST.schema, &mut request);
    corten_meta::set(&mut request, "/spec/audiences", json!(audiences));
    if request.pointer("/spec/boundObjectRef").is_none() {
        corten_meta::set(&mut request, "/spec/boundObjectRef", Value::Null);
    }
    request["status"] = json!({ "token": token, "expirationTimestamp": expires });
    Ok(response::made(target.context.accept, StatusCode::CREATED, &request))
}

fn check_seconds(seconds: i64) -> Result<(), Status> {
    let path = Path::root("spec").child("expirationSeconds");
    let why = if seconds < MIN_SECONDS {
        "may not specify a duration less than 10 minutes"
    } else if seconds > MAX_SECONDS {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let kind = GroupKind { group: "authentication.k8s.io".to_owned(), kind: "TokenRequest".to_owned() };
    Err(Status::invalid(&kind, "", vec![FieldError::invalid(&path, seconds, why)]))
}

/// Returns the resource of a conflict: TokenRequests have their kind there.
fn request_resource() -> GroupResource {
    GroupResource { group: "authentication.k8s.io".to_owned(), resource: "TokenRequest".to_owned() }
}

/// Checks that name and namespace of the body, if set, are those of the ServiceAccount.
fn check_metadata(target: &Scope<'_>, request: &Value) -> Result<(), Status> {
    let metadata = Path::root("metadata");
    let fields = [
        ("name", corten_meta::name(request), target.name, "must match the service account name if specified"),
        (
            "namespace",
            corten_meta::namespace(request),
            target.namespace,
            "must match the service account namespace if specified",
        ),
    ];
    for (field, given, wanted, detail) in fields {
        if !given.is_empty() && given != wanted {
            let kind = GroupKind { group: "authentication.k8s.io".to_owned(), kind: "TokenRequest".to_owned() };
            let error = FieldError::invalid(&metadata.child(field), given, detail);
            return Err(Status::invalid(&kind, target.name, vec![error]));
        }
    }
    Ok(())
}

/// The bound object (claim, name and UID), and the name and UID of a pod's node.
type Bound = (Option<(&'static str, String, String)>, Option<(String, String)>);

/// Returns the object whose deletion invalidates the token, and the node of a pod.
async fn bound_object(target: &Scope<'_>, request: &Value) -> Result<Bound, Status> {
    let Some(reference) = request.pointer("/spec/boundObjectRef").filter(|r| r.is_object()) else {
        return Ok((None, None));
    };
    let text = |key: &str| reference[key].as_str().unwrap_or_default();
    // An apiVersion that cannot be parsed counts as none.
    let version = Some(text("apiVersion")).filter(|version| version.matches('/').count() < 2).unwrap_or_default();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let (claim, plural, namespace) = match (group, text("kind")) {
        ("", "Pod") => ("pod", "pods", target.namespace),
        ("", "Secret") => ("secret", "secrets", target.namespace),
        ("", "Node") => ("node", "nodes", ""),
        (group, kind) => {
            let type_ = format!("{group}/{version}, Kind={kind}");
            return Err(Status::bad_request(format!("cannot bind token to object of type {type_}")));
        }
    };
    let core = target.core;
    let resource = core.registry.required("", "v1", plural)?;
    let problems = corten_meta::names::path_segment_name(text("name"));
    if text("name").is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    if !problems.is_empty() {
        let why = format!("Name parameter invalid: {}: {}", quote(text("name")), problems.join(";"));
        return Err(Status::bad_request(why));
    }
    let object = core.registry.get(&resource, namespace, text("name")).await?;
    let uid = object.header.uid.clone();
    if !text("uid").is_empty() && text("uid") != uid {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
            text("uid")
        );
        let kind = GroupResource { group: String::new(), resource: text("kind").to_owned() };
        return Err(Status::conflict(&kind, text("name"), &why));
    }
    let value = object.value();
    let mut node = None;
    if claim == "pod" {
        let account = value.pointer("/spec/serviceAccountName").and_then(Value::as_str).unwrap_or_default();
        if account != target.name {
            let why = format!(
                "cannot bind token for serviceaccount {} to pod running with different serviceaccount name.",
                quote(&target.name)
            );
            return Err(Status::bad_request(why));
        }
        if let Some(name) = value.pointer("/spec/nodeName").and_then(Value::as_str).filter(|n| !n.is_empty()) {
            let uid = core.registry.cached("", "v1", "nodes", "", name).map(|n| n.header.uid.clone());
            node = Some((name.to_owned(), uid.unwrap_or_default()));
        }
    }
    Ok((Some((claim, object.header.name.clone(), uid)), node))
}
