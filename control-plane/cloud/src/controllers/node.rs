//! The node controller: initializes nodes whose kubelet registered them with `--cloud-provider=external`, and keeps
//! their addresses current.

use serde_json::{Value, json};

use super::{Action, Event, Kind, has_taint, taints_without};
use crate::objects::{key, list, string};
use crate::provider::{Error, Instance, NodeAddress};

/// The taint of a node that the cloud controller manager has not initialized.
pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// The annotation with the addresses of the kubelet's `--node-ip`.
const PROVIDED_IP: &str = "/metadata/annotations/alpha.kubernetes.io~1provided-node-ip";

/// Returns the writes for a node with this instance, or the reason why there is none.
pub fn reconcile(node: &Value, instance: &Result<Option<Instance>, Error>) -> Vec<Action> {
    let is_new = has_taint(node, UNINITIALIZED);
    let warn = |message: String| {
        let event = Event::about(Kind::Node, node, true, "FailedToInitialize", message);
        vec![Action::Event(event)]
    };
    let instance = match instance {
        Ok(Some(instance)) => instance,
        // A node whose instance is gone is the business of the lifecycle controller.
        Ok(None) if !is_new => return Vec::new(),
        Ok(None) => return warn("the cloud has no instance of this node".to_owned()),
        Err(_) if !is_new => return Vec::new(),
        Err(error) => return warn(error.to_string()),
    };
    let addresses = match addresses(node, instance) {
        Ok(addresses) => addresses,
        Err(message) => return warn(message),
    };
    let mut actions = Vec::new();
    if is_new {
        actions.push(initialize(node, instance));
    }
    let current: Vec<Value> = list(node, "/status/addresses").cloned().collect();
    if current != addresses {
        let patch = json!({"metadata": {"uid": node["metadata"]["uid"]}, "status": {"addresses": addresses}});
        // Addresses come first: a node without the taint has them.
        let status = Action::Patch { kind: Kind::Node, key: key(node), patch, is_status: true };
        actions.insert(0, status);
    }
    if is_new {
        let event = Event::about(Kind::Node, node, false, "Synced", "Node synced successfully");
        actions.push(Action::Event(event));
    }
    actions
}

/// Returns the parts of a node that the instance is found by, and that say what is still to be written.
pub fn inputs(node: &Value) -> [Option<Value>; 3] {
    let is_new = has_taint(node, UNINITIALIZED).then_some(Value::Bool(true));
    [is_new, node.pointer("/spec/providerID").cloned(), node.pointer(PROVIDED_IP).cloned()]
}

/// Returns the patch that sets the provider ID and labels and removes the taint. Its precondition is the
/// resourceVersion, because the list of taints replaces those of other writers.
fn initialize(node: &Value, instance: &Instance) -> Action {
    let mut labels = json!({});
    let mut label = |names: [&str; 2], value: &str| {
        if !value.is_empty() {
            names.iter().for_each(|name| labels[*name] = value.into());
        }
    };
    label(["node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"], &instance.instance_type);
    label(["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"], &instance.zone);
    label(["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"], &instance.region);
    let mut spec = json!({"taints": taints_without(node, UNINITIALIZED)});
    if string(node, "/spec/providerID").is_empty() {
        spec["providerID"] = instance.provider_id.clone().into();
    }
    let version = &node["metadata"]["resourceVersion"];
    let patch = json!({"metadata": {"resourceVersion": version, "labels": labels}, "spec": spec});
    Action::Patch { kind: Kind::Node, key: key(node), patch, is_status: false }
}

/// Returns the addresses of a node: those of the instance, the ones of `--node-ip` first, and the kubelet's host name.
fn addresses(node: &Value, instance: &Instance) -> Result<Vec<Value>, String> {
    let provided: Vec<&str> = string(node, PROVIDED_IP).split(',').map(str::trim).filter(|ip| !ip.is_empty()).collect();
    let mut sorted: Vec<&NodeAddress> = Vec::new();
    for ip in &provided {
        let found = instance.addresses.iter().find(|one| one.address == *ip);
        let found = found
            .ok_or_else(|| format!("--node-ip of the kubelet is {ip}, and the cloud's instance has no such address"))?;
        // Only the provided address of this type and family remains.
        let is_same = |one: &&NodeAddress| one.kind == found.kind && is_ipv4(&one.address) == is_ipv4(ip);
        sorted.push(found);
        let others = instance.addresses.iter().filter(|one| is_same(one) && one.address != *ip);
        let dropped: Vec<&NodeAddress> = others.collect();
        sorted.retain(|one| !dropped.contains(one));
    }
    let is_shadowed = |one: &NodeAddress| {
        sorted.iter().any(|kept| kept.kind == one.kind && is_ipv4(&kept.address) == is_ipv4(&one.address))
    };
    let rest: Vec<&NodeAddress> = instance.addresses.iter().filter(|one| !is_shadowed(one)).collect();
    let mut all: Vec<Value> =
        sorted.into_iter().chain(rest).map(|one| json!({"type": one.kind, "address": one.address})).collect();
    if !all.iter().any(|one| one["type"] == "Hostname") {
        all.extend(list(node, "/status/addresses").filter(|one| one["type"] == "Hostname").cloned());
    }
    Ok(all)
}

/// Returns the family of an address; `None` for a name.
fn is_ipv4(address: &str) -> Option<bool> {
    address.parse::<std::net::IpAddr>().ok().map(|address| address.is_ipv4())
}
