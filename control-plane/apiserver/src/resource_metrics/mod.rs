//! `metrics.k8s.io/v1beta1`: the current usage of nodes and pods, for `kubectl top` and the autoscaler. The answer is
//! computed from the kubelets' summaries on request; nothing is stored, and without requests the kubelets are not
//! called.
//!
//! `gather` fetches and caches the summaries for some seconds; this file converts them to objects. The group has an
//! APIService without a Service, as every group that this server serves itself: an administrator who installs another
//! provider points that object at it.

mod gather;

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_access::Verb;
use corten_api::Kind;
use corten_meta::{Object, Quantity, Status, Value, time};
use http::StatusCode;
use serde_json::json;

pub use gather::Gatherer;

use crate::body::Reply;
use crate::cache::Item;
use crate::response::{self, ListMeta};
use crate::verbs::list;
use crate::write::Scope;

pub const GROUP: &str = "metrics.k8s.io";
/// The time window of a kubelet's rates.
const WINDOW: &str = "10s";

/// Answers a GET of nodes or pods of the group.
pub async fn read(target: &Scope<'_>, gatherer: &Gatherer) -> Result<Reply, Status> {
    let context = target.context;
    let kind = &target.resource.kind;
    let (labels, fields) = list::selectors(&context.info.query)?;
    let filter = list::filter(target.resource, target.namespace, labels, fields)?;
    let one = (context.info.verb == Verb::Get).then_some(target.name);
    // Writes before this request count: a new node's address, a new pod's node.
    target.core.registry.caches.fresh().await?;
    let objects =
        if kind.namespaced { pods(target, gatherer, one).await? } else { nodes(target, gatherer, one).await? };
    if one.is_some() {
        let object = objects.into_iter().next().ok_or_else(|| target.not_found())?;
        return Ok(response::object(context.accept, context.include_object(), StatusCode::OK, kind, &Arc::new(object)));
    }
    let items = objects.into_iter().map(Item::new).filter(|item| filter.matches(kind, item));
    let objects: Vec<Arc<Object>> = items.map(|item| item.object).collect();
    Ok(response::list(context.accept, context.include_object(), kind, objects, &ListMeta::default()))
}

async fn nodes(target: &Scope<'_>, gatherer: &Gatherer, one: Option<&str>) -> Result<Vec<Object>, Status> {
    let core = target.core;
    let mut nodes = core.registry.cached_list("", "v1", "nodes", "");
    nodes.retain(|node| one.is_none_or(|name| node.header.name == name));
    let summaries = gatherer.summaries(&nodes).await;
    let measured = nodes.iter().filter_map(|node| {
        let stats = summaries.get(&node.header.name)?;
        let usage = usage(&stats["node"])?;
        let at = stats.pointer("/node/cpu/time")?;
        Some(object(&target.resource.kind, node, at, "usage", usage))
    });
    measured.collect()
}

async fn pods(target: &Scope<'_>, gatherer: &Gatherer, one: Option<&str>) -> Result<Vec<Object>, Status> {
    let core = target.core;
    let mut pods = core.registry.cached_list("", "v1", "pods", target.namespace);
    pods.retain(|pod| one.is_none_or(|name| pod.header.name == name));
    let on: BTreeMap<String, String> = pods.iter().map(|pod| (pod.header.uid.clone(), node_of(pod))).collect();
    let mut nodes = core.registry.cached_list("", "v1", "nodes", "");
    nodes.retain(|node| on.values().any(|name| *name == node.header.name));
    let summaries = gatherer.summaries(&nodes).await;
    // Pods are matched by name, because a mirror pod has another uid than its static pod; of pods with the same name,
    // the one with the right uid counts.
    let mut by_name: BTreeMap<(&str, &str), &Value> = BTreeMap::new();
    for stats in summaries.values().flat_map(|summary| summary["pods"].as_array().into_iter().flatten()) {
        let field = |name: &str| stats["podRef"][name].as_str().unwrap_or_default();
        let entry = by_name.entry((field("namespace"), field("name"))).or_insert(stats);
        if on.contains_key(field("uid")) {
            *entry = stats;
        }
    }
    let measured = pods.iter().filter_map(|pod| {
        let stats = by_name.get(&(pod.header.namespace.as_str(), pod.header.name.as_str()))?;
        let containers = containers(stats)?;
        let at = stats.pointer("/containers/0/cpu/time")?;
        Some(object(&target.resource.kind, pod, at, "containers", containers))
    });
    measured.collect()
}

fn node_of(pod: &Object) -> String {
    pod.value().pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns the usage of every container; none if one of them is not known yet, because a partial sum would mislead.
pub(crate) fn containers(stats: &Value) -> Option<Value> {
    let containers = stats["containers"].as_array().filter(|containers| !containers.is_empty())?;
    let each = containers.iter().map(|container| Some(json!({"name": container["name"], "usage": usage(container)?})));
    each.collect::<Option<Vec<Value>>>().map(Value::Array)
}

/// Returns CPU and memory usage of a node or a container.
fn usage(stats: &Value) -> Option<Value> {
    let cpu = stats.pointer("/cpu/usageNanoCores").and_then(Value::as_u64)?;
    let memory = stats.pointer("/memory/workingSetBytes").and_then(Value::as_i64)?;
    let cpu = if cpu == 0 { "0".to_owned() } else { format!("{cpu}n") };
    Some(json!({"cpu": cpu, "memory": Quantity::from_bytes(memory).to_string()}))
}

/// Makes the metrics object of another object.
fn object(kind: &Kind, about: &Object, at: &Value, field: &str, used: Value) -> Result<Object, Status> {
    let mut metadata = json!({"name": about.header.name, "creationTimestamp": time::rfc3339(jiff::Timestamp::now())});
    if !about.header.namespace.is_empty() {
        metadata["namespace"] = about.header.namespace.clone().into();
    }
    if !about.header.labels.is_empty() {
        metadata["labels"] = json!(*about.header.labels);
    }
    let object = json!({
        "kind": kind.kind, "apiVersion": kind.api_version(), "metadata": metadata,
        "timestamp": at, "window": WINDOW, field: used,
    });
    Object::from_value(&object, 0).map_err(|e| Status::internal(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_in_quantities() {
        let stats = json!({"cpu": {"usageNanoCores": 12_345_678}, "memory": {"workingSetBytes": 3 << 20}});
        assert_eq!(usage(&stats), Some(json!({"cpu": "12345678n", "memory": "3Mi"})));
        let idle = json!({"cpu": {"usageNanoCores": 0}, "memory": {"workingSetBytes": 1500}});
        assert_eq!(usage(&idle), Some(json!({"cpu": "0", "memory": "1500"})));
        assert_eq!(usage(&json!({"cpu": {}})), None);
        let half = json!({"containers": [{"name": "a", "cpu": {"usageNanoCores": 1}, "memory": {"workingSetBytes": 1}}, {"name": "b"}]});
        assert_eq!(containers(&half), None, "a pod is told whole or not at all");
    }
}
