//! PodResizeValidator: a running pod is not resized beyond its node's allocatable resources.

use corten_api::quota::{pod_resources, resource_list};
use corten_meta::quote::quote;
use corten_meta::{Cause, Quantity, Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

const OS: &str = "kubernetes.io/os";

pub struct PodResizeValidator;

impl Plugin for PodResizeValidator {
    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if a.operation != Operation::Update || !a.is("", "pods", "resize") {
                return Ok(());
            }
            let Some(node) = node_of_changed(a)? else { return Ok(()) };
            match refused(&a.object, &node) {
                None => Ok(()),
                Some((reason, why)) => {
                    let mut status = a.forbidden(why);
                    let cause = Cause { reason: reason.to_owned(), ..Cause::default() };
                    status.details.get_or_insert_default().causes.push(cause);
                    Err(status)
                }
            }
        })
    }
}

/// Returns the node of a pod whose spec changes; `None` if the pod is not bound, or nothing changes.
pub(super) fn node_of_changed(a: &Attributes<'_>) -> Result<Option<Value>, Status> {
    let name = a.object["spec"]["nodeName"].as_str().unwrap_or_default();
    let generation = |pod: &Value| pod["metadata"]["generation"].as_i64();
    if name.is_empty() || a.old.as_deref().is_none_or(|old| generation(old) == generation(&a.object)) {
        return Ok(None);
    }
    match a.target.core.objects.cached("", "nodes", "", name) {
        Some(node) => Ok(Some(node.value())),
        None => Err(a.forbidden(format!("node {} not found", quote(name)))),
    }
}

/// Returns the cause and the message if a node cannot hold the resized pod.
fn refused(pod: &Value, node: &Value) -> Option<(&'static str, String)> {
    let os = node["metadata"]["labels"].get(OS).and_then(Value::as_str).unwrap_or("linux");
    if os != "linux" {
        let name = quote(corten_meta::name(node));
        let why = format!("pod resize is only supported on linux nodes, node {name} is {}", quote(os));
        return Some(("UnsupportedPlatform", why));
    }
    let mut wanted = pod_resources(pod, "requests");
    let mut allocatable = resource_list(node.pointer("/status/allocatable"));
    let mut lacking = Vec::new();
    for (name, scale) in [("cpu", Quantity::as_milli as fn(&Quantity) -> i128), ("memory", Quantity::as_value)] {
        let wanted = wanted.remove(name).unwrap_or_default();
        let allocatable = allocatable.remove(name).unwrap_or_default();
        if wanted > allocatable {
            lacking.push(format!("{name}, requested: {}, allocatable: {}", scale(&wanted), scale(&allocatable)));
        }
    }
    let message = || format!("node didn't have enough allocatable resources: {}", lacking.join("; "));
    (!lacking.is_empty()).then(|| ("NodeCapacity", message()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_resize_beyond_allocatable_is_refused() {
        let node = |os: &str| {
            json!({ "metadata": { "name": "n", "labels": { OS: os } },
                    "status": { "allocatable": { "cpu": "2", "memory": "2Gi" } } })
        };
        let pod = |requests: Value| json!({ "spec": { "containers": [{ "resources": { "requests": requests } }] } });
        assert_eq!(refused(&pod(json!({ "cpu": "2", "memory": "2Gi" })), &node("linux")), None);
        assert_eq!(
            refused(&pod(json!({ "cpu": "2001m", "memory": "3Gi" })), &node("linux")),
            Some((
                "NodeCapacity",
                "node didn't have enough allocatable resources: cpu, requested: 2001, allocatable: 2000; memory, requested: 3221225472, allocatable: 2147483648".to_owned()
            ))
        );
        let why = "pod resize is only supported on linux nodes, node \"n\" is \"windows\"".to_owned();
        assert_eq!(refused(&pod(json!({})), &node("windows")), Some(("UnsupportedPlatform", why)));
    }
}
