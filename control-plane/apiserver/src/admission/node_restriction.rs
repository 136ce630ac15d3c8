//! NodeRestriction: a kubelet writes its own Node, its own Lease and the pods that run on it, and nothing else.

use corten_meta::{Status, Value};
use futures::future::BoxFuture;

use super::{Attributes, Operation, Plugin};

pub struct NodeRestriction;

impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let Some(node) = a.target.context.user.node_name() else { return Ok(()) };
            let kind = &a.target.resource.kind;
            match (kind.group.as_str(), kind.plural.as_str()) {
                ("", "nodes") => check_node(a, node),
                ("", "pods") if a.subresource() == "eviction" => check_eviction(a, node).await,
                ("", "pods") => check_pod(a, node),
                ("coordination.k8s.io", "leases") => check_lease(a, node),
                ("storage.k8s.io", "csinodes") => check_named(a, node, "CSINode"),
                _ => Ok(()),
            }
        })
    }
}

fn name_of<'a>(a: &'a Attributes<'_>) -> &'a str {
    match corten_meta::name(&a.object) {
        "" => a.target.name,
        name => name,
    }
}

fn check_node(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let name = name_of(a);
    if name != node {
        return Err(a.forbidden(format!("node {node:?} is not allowed to modify node {name:?}")));
    }
    if a.operation == Operation::Delete {
        return Ok(());
    }
    let empty = Value::Null;
    let old = corten_meta::labels(a.old.as_ref().unwrap_or(&empty));
    let new = corten_meta::labels(&a.object);
    let changed = new.iter().filter(|(key, value)| old.get(*key) != Some(value)).map(|(key, _)| key);
    let removed = old.keys().filter(|key| !new.contains_key(*key));
    let forbidden: Vec<&String> =
        changed.chain(removed).filter(|key| key.contains("node-restriction.kubernetes.io/")).collect();
    if !forbidden.is_empty() {
        return Err(a.forbidden(format!("is not allowed to modify labels: {forbidden:?}")));
    }
    if a.operation == Operation::Update
        && let Some(old) = &a.old
        && old.pointer("/spec/taints") != a.object.pointer("/spec/taints")
    {
        return Err(a.forbidden(format!("node {node:?} is not allowed to modify taints")));
    }
    Ok(())
}

fn check_pod(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let pod = a.old.as_ref().unwrap_or(&a.object);
    let runs_on = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    if runs_on != node {
        return Err(a.forbidden(format!("node {node:?} can only act on pods with spec.nodeName set to itself")));
    }
    let mirror = corten_meta::annotations(&a.object).contains_key("kubernetes.io/config.mirror");
    if a.operation == Operation::Create && !mirror {
        return Err(a.forbidden(format!(
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node {node:?} can only create mirror pods"
        )));
    }
    Ok(())
}

/// The body of an eviction does not say where its pod runs.
async fn check_eviction(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let target = a.target;
    let pod = target.server.registry.get(target.resource, target.namespace, a.name()).await?.value();
    if pod.pointer("/spec/nodeName").and_then(Value::as_str) == Some(node) {
        return Ok(());
    }
    Err(a.forbidden(format!("node {node:?} can only evict pods with spec.nodeName set to itself")))
}

fn check_lease(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    if a.target.namespace != "kube-node-lease" {
        return Err(a.forbidden("can only access leases in the \"kube-node-lease\" system namespace"));
    }
    check_named(a, node, "lease")
}

fn check_named(a: &Attributes<'_>, node: &str, what: &str) -> Result<(), Status> {
    if name_of(a) == node {
        return Ok(());
    }
    Err(a.forbidden(format!("can only access {what} with the same name as the requesting node")))
}
