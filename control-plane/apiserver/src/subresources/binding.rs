//! `binding`: the scheduler's decision, written into the pod in one step.

use corten_admission::Operation;
use corten_meta::quote::quote;
use corten_meta::{FieldError, GroupResource, Path, Status, Value};
use http::StatusCode;
use serde_json::json;

use crate::body::Reply;
use crate::decode::{Expected, object};
use crate::response;
use crate::verbs::guaranteed_update::guaranteed_update;
use crate::write::Scope;
use crate::write::check_namespace;

const BINDING: Expected<'static> = Expected {
    api_version: "v1",
    kind: "Binding",
    schema: "io.k8s.api.core.v1.Binding",
    custom: None,
    older: None,
    behaviour: None,
    is_merged: false,
};

/// Binds the object of the path.
pub async fn create(target: &Scope<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    let mut binding = object(target.context, bytes, &BINDING)?;
    check_namespace(target, &mut binding)?;
    let name = corten_meta::name(&binding);
    if !target.name.is_empty() && name != target.name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let binding = target.admission.pass(target.for_admission(), Operation::Create, binding).await?;
    bind_pod(target, &binding).await
}

/// Writes an admitted binding into the pod.
pub async fn bind_pod(target: &Scope<'_>, binding: &Value) -> Result<Reply, Status> {
    let name = if target.name.is_empty() { corten_meta::name(binding) } else { target.name };
    let target = target.at(target.resource, target.namespace, name);
    check_target(binding)?;
    guaranteed_update(&target, &|pod| bind(&target, pod, binding)).await?;
    Ok(response::value(target.context.accept, StatusCode::CREATED, &Status::success(201)))
}

/// Sets the node of the pod.
fn bind(target: &Scope<'_>, pod: &mut Value, binding: &Value) -> Result<(), Status> {
    let text =
        |object: &Value, pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let node = text(binding, "/target/name");
    let resource = target.resource.group_resource();
    check_precondition(&resource, target.name, "UID", corten_meta::uid(binding), corten_meta::uid(pod))?;
    let version = corten_meta::resource_version(binding);
    let actual = corten_meta::resource_version(pod);
    check_precondition(&resource, target.name, "ResourceVersion", version, actual)?;
    let binding_of = GroupResource { resource: format!("{}/binding", resource.resource), ..resource };
    let conflict = |why: String| Err(Status::conflict(&binding_of, target.name, &why));
    if corten_meta::deletion_timestamp(pod).is_some() {
        return conflict(format!("pod {} is being deleted, cannot be assigned to a host", target.name));
    }
    let bound = text(pod, "/spec/nodeName");
    if !bound.is_empty() {
        return conflict(format!("pod {} is already assigned to node {bound}", target.name, bound = quote(&bound)));
    }
    if pod.pointer("/spec/schedulingGates").and_then(Value::as_array).is_some_and(|gates| !gates.is_empty()) {
        return conflict(format!("pod {} has non-empty .spec.schedulingGates", target.name));
    }
    corten_meta::set(pod, "/spec/nodeName", node.into());
    for (field, entries) in
        [("annotations", corten_meta::annotations(binding)), ("labels", corten_meta::labels(binding))]
    {
        for (key, value) in entries {
            let key = key.replace('~', "~0").replace('/', "~1");
            corten_meta::set(pod, &format!("/metadata/{field}/{key}"), value.into());
        }
    }
    set_condition(pod, json!({ "type": "PodScheduled", "status": "True" }), target.context.now);
    Ok(())
}

/// Validates the target of a binding. Upstream reports these errors without a reason, as an internal error.
fn check_target(binding: &Value) -> Result<(), Status> {
    let target = Path::root("target");
    let text = |field: &str| binding["target"][field].as_str().unwrap_or_default();
    let mut errors = Vec::new();
    if !matches!(text("kind"), "" | "Node") {
        errors.push(FieldError::not_supported(&target.child("kind"), text("kind"), &["Node", "<empty>"]));
    }
    if text("name").is_empty() {
        errors.push(FieldError::required(&target.child("name"), ""));
    }
    match corten_meta::field::aggregate(&errors) {
        Some(message) => Err(Status { code: 500, message, ..Status::default() }),
        None => Ok(()),
    }
}

fn check_precondition(
    resource: &GroupResource,
    name: &str,
    what: &str,
    wanted: &str,
    actual: &str,
) -> Result<(), Status> {
    if wanted.is_empty() || wanted == actual {
        return Ok(());
    }
    let why = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {actual}");
    Err(Status::conflict(resource, name, &why))
}

/// Puts a condition into the status; its transition time moves only when its status changes.
pub fn set_condition(object: &mut Value, mut condition: Value, now: jiff::Timestamp) {
    let given = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    let mut conditions = given.map(std::mem::take).unwrap_or_default();
    let now: Value = corten_meta::time::rfc3339(now).into();
    let present = conditions.iter_mut().find(|c| c["type"] == condition["type"]);
    condition["lastProbeTime"] = Value::Null;
    condition["lastTransitionTime"] = match &present {
        Some(old) if old["status"] == condition["status"] => old["lastTransitionTime"].clone(),
        _ => now,
    };
    match present {
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
    corten_meta::set(object, "/status/conditions", conditions.into());
}
