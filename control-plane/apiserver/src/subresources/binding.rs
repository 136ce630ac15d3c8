//! `binding`: the scheduler's decision, written into the pod in one step.

use corten_meta::{Status, Value};
use http::StatusCode;
use serde_json::json;

use crate::admission::Operation;
use crate::body::Reply;
use crate::decode::{Expected, object};
use crate::handlers::Target;
use crate::handlers::create::success;
use crate::handlers::update::{Change, Part};
use crate::response;

const BINDING: Expected<'static> =
    Expected { api_version: "v1", kind: "Binding", schema: "io.k8s.api.core.v1.Binding", custom: None };

/// Binds the object of the path, or the one that the body names.
pub async fn create(target: &Target<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    let binding = object(target.context, bytes, &BINDING)?;
    let name = corten_meta::name(&binding);
    if !target.name.is_empty() && !name.is_empty() && name != target.name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let name = if target.name.is_empty() { name } else { target.name };
    let target = Target { name, ..*target };
    let binding = target.server.admission.pass(&target, Operation::Create, binding.clone()).await?;
    let transform = |pod: &Value| bind(&target, pod, &binding);
    Change::new(Part::Decision, &transform).carry_out(&target).await?;
    Ok(response::value(target.context.accept, StatusCode::CREATED, &success()))
}

/// The pod, bound.
fn bind(target: &Target<'_>, pod: &Value, binding: &Value) -> Result<Value, Status> {
    let text =
        |object: &Value, pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let node = text(binding, "/target/name");
    if node.is_empty() || !matches!(text(binding, "/target/kind").as_str(), "" | "Node") {
        return Err(Status::bad_request("target.name must name a Node"));
    }
    let resource = target.resource.group_resource();
    let conflict = |why: String| Err(Status::conflict(&resource, target.name, &why));
    let uid = corten_meta::uid(binding);
    if !uid.is_empty() && uid != corten_meta::uid(pod) {
        return conflict(format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            corten_meta::uid(pod)
        ));
    }
    if corten_meta::deletion_timestamp(pod).is_some() {
        return conflict(format!("pod {} is being deleted, cannot be assigned to a host", target.name));
    }
    let bound = text(pod, "/spec/nodeName");
    if !bound.is_empty() {
        return conflict(format!("pod {} is already assigned to node {bound:?}", target.name));
    }
    if pod.pointer("/spec/schedulingGates").and_then(Value::as_array).is_some_and(|gates| !gates.is_empty()) {
        return conflict(format!("pod {} has non-empty .spec.schedulingGates", target.name));
    }
    let mut new = pod.clone();
    corten_meta::set(&mut new, "/spec/nodeName", node.into());
    for (key, value) in corten_meta::annotations(binding) {
        let key = key.replace('~', "~0").replace('/', "~1");
        corten_meta::set(&mut new, &format!("/metadata/annotations/{key}"), value.into());
    }
    set_condition(&mut new, json!({ "type": "PodScheduled", "status": "True" }), target.context.now);
    Ok(new)
}

/// Puts a condition into the status; its transition time moves only when its status changes.
pub fn set_condition(object: &mut Value, mut condition: Value, now: jiff::Timestamp) {
    let mut conditions = object.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
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
    corten_meta::set(object, "/status/conditions", json!(conditions));
}
