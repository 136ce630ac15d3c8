//! Nodes as load balancers and routes see them.

use corten_meta::Value;

use crate::objects::{is_ready, list, string};
use crate::provider::{BalancerNode, NodeReference};

const EXCLUDED: &str = "/metadata/labels/node.kubernetes.io~1exclude-from-external-load-balancers";
/// The taint of a node that the cluster autoscaler removes.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Returns the names by which the cloud finds a node.
pub fn reference(node: &Value) -> NodeReference {
    NodeReference { name: corten_meta::name(node).to_owned(), provider_id: string(node, "/spec/providerID").to_owned() }
}

/// Returns a node as a target of load balancers and routes.
pub fn balancer_node(node: &Value) -> BalancerNode {
    let internal = list(node, "/status/addresses").filter(|one| one["type"] == "InternalIP");
    BalancerNode {
        name: corten_meta::name(node).to_owned(),
        provider_id: string(node, "/spec/providerID").to_owned(),
        internal_addresses: internal.filter_map(|one| one["address"].as_str()?.parse().ok()).collect(),
    }
}

/// Returns the nodes that take packets of load balancers, by name. A node that is not Ready stays a target where the
/// load balancer checks the health of each node itself.
pub fn targets(nodes: &[Value], checks_health: bool) -> Vec<BalancerNode> {
    let is_target = |node: &&Value| {
        let is_leaving = list(node, "/spec/taints").any(|taint| taint["key"] == TO_BE_DELETED);
        let is_deleted = node.pointer("/metadata/deletionTimestamp").is_some();
        let has_instance = !string(node, "/spec/providerID").is_empty();
        has_instance
            && !is_leaving
            && !is_deleted
            && node.pointer(EXCLUDED).is_none()
            && (checks_health || is_ready(node))
    };
    let mut targets: Vec<BalancerNode> = nodes.iter().filter(is_target).map(balancer_node).collect();
    targets.sort();
    targets
}
