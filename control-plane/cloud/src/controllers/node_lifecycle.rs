//! The node lifecycle controller: deletes nodes whose instance is gone, and taints those whose instance is shut down.
//!
//! Only a node that is not Ready is asked about. An error of the cloud changes nothing: a node is deleted only if the
//! cloud answered that its instance does not exist.

use serde_json::{Value, json};

use super::node::UNINITIALIZED;
use super::{Action, Event, Kind, has_taint, taints_without};
use crate::objects::{is_ready, key, string};
use crate::provider::{Error, Instance};

/// The taint of a node whose instance is shut down.
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// Reports whether the cloud must be asked about a node.
pub fn needs_instance(node: &Value) -> bool {
    !is_ready(node) && !has_taint(node, UNINITIALIZED)
}

/// Reports whether a node may need a write: it is not Ready, or it has the taint of an instance that was shut down.
pub fn is_concerned(node: &Value) -> bool {
    needs_instance(node) || has_taint(node, SHUTDOWN)
}

/// Returns the writes for a node. The instance is `None` if it was not asked for.
pub fn reconcile(node: &Value, instance: Option<&Result<Option<Instance>, Error>>) -> Vec<Action> {
    match instance {
        Some(Ok(None)) => {
            let name = corten_meta::name(node).to_owned();
            let message = format!("Deleting node {name} because it does not exist in the cloud provider");
            let event = Event::about(Kind::Node, node, false, "DeletingNode", message);
            let uid = string(node, "/metadata/uid").to_owned();
            vec![Action::Event(event), Action::DeleteNode { name, uid }]
        }
        Some(Ok(Some(instance))) if instance.is_shut_down => match has_taint(node, SHUTDOWN) {
            true => Vec::new(),
            false => {
                let mut taints = taints_without(node, SHUTDOWN);
                taints.push(json!({"key": SHUTDOWN, "effect": "NoSchedule"}));
                vec![taint(node, taints)]
            }
        },
        Some(Err(_)) => Vec::new(),
        Some(Ok(Some(_))) | None => match has_taint(node, SHUTDOWN) && is_known_up(node, instance) {
            true => vec![taint(node, taints_without(node, SHUTDOWN))],
            false => Vec::new(),
        },
    }
}

/// Reports whether a node runs: it is Ready, or its instance is up.
fn is_known_up(node: &Value, instance: Option<&Result<Option<Instance>, Error>>) -> bool {
    is_ready(node) || matches!(instance, Some(Ok(Some(instance))) if !instance.is_shut_down)
}

fn taint(node: &Value, taints: Vec<Value>) -> Action {
    let version = &node["metadata"]["resourceVersion"];
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
    Action::Patch { kind: Kind::Node, key: key(node), patch, is_status: false }
}
