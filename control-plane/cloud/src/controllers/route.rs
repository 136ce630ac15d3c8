//! The route controller: one route of the cloud's network for each pod CIDR of each node.
//!
//! Only routes that the provider lists as this cluster's, and that lead into the cluster's pod network, are deleted. A
//! route that cannot be made is an event and the condition of its node, and keeps no other node from its routes.

use corten_api::AddressRange;
use corten_meta::Value;
use serde_json::json;

use super::{Action, Event, Kind, NewRoute};
use crate::nodes::balancer_node;
use crate::objects::{key, list, string};
use crate::provider::Route;

/// The changes of the routes. Neither list depends on another of its field; a CIDR that moves to another node is in both.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// The deletions, which come first.
    pub surplus: Vec<Vec<Action>>,
    /// The routes to create and the condition, for each node that lacks one.
    pub nodes: Vec<Vec<Action>>,
}

/// Returns the routes to create and to delete, and the conditions of the nodes.
pub fn reconcile(nodes: &[Value], routes: &[Route], cluster_cidrs: &[AddressRange], now: &str) -> Plan {
    let mut plan = Plan::default();
    let wanted: Vec<Route> = nodes.iter().flat_map(wanted_routes).collect();
    let is_ours = |route: &Route| {
        let range = AddressRange::parse(&route.cidr);
        range.is_some_and(|range| cluster_cidrs.iter().any(|all| all.contains(range.bounds().0)))
    };
    for route in routes.iter().filter(|route| is_ours(route)) {
        if !wanted.iter().any(|one| is_same(one, route)) {
            plan.surplus.push(vec![Action::DeleteRoute(route.clone())]);
        }
    }
    for node in nodes {
        let own = wanted_routes(node);
        let missing = own.iter().filter(|one| !routes.iter().any(|other| is_same(other, one))).cloned();
        let new = |route| Action::CreateRoute(Box::new(NewRoute { route, node: node.clone(), now: now.to_owned() }));
        let actions: Vec<Action> = missing.map(new).chain(available(node, !own.is_empty(), now)).collect();
        if !actions.is_empty() {
            plan.nodes.push(actions);
        }
    }
    plan
}

/// Reports whether two routes lead to the same node. A cloud knows the provider ID; the node may have another name there.
fn is_same(one: &Route, other: &Route) -> bool {
    let has_ids = !one.node.provider_id.is_empty() && !other.node.provider_id.is_empty();
    let is_same_node = match has_ids {
        true => one.node.provider_id == other.node.provider_id,
        false => one.node.name == other.node.name,
    };
    one.cidr == other.cidr && is_same_node
}

/// Returns the routes that a node wants; none before it has pod CIDRs and an instance.
fn wanted_routes(node: &Value) -> Vec<Route> {
    if string(node, "/spec/providerID").is_empty() || node.pointer("/metadata/deletionTimestamp").is_some() {
        return Vec::new();
    }
    let cidrs = list(node, "/spec/podCIDRs").filter_map(Value::as_str);
    cidrs.map(|cidr| Route { node: balancer_node(node), cidr: cidr.to_owned() }).collect()
}

/// Returns the event and the condition of a node after a call has failed to create its route.
pub fn failed(new: &NewRoute, error: &str) -> Vec<Action> {
    let NewRoute { route, node, now } = new;
    let message = format!("Could not create route {} for node {}: {error}", route.cidr, route.node.name);
    let event = Event::about(Kind::Node, node, true, "FailedToCreateRoute", message);
    std::iter::once(Action::Event(event)).chain(available(node, false, now)).collect()
}

/// Returns the patch of the condition NetworkUnavailable; `None` if it is there.
fn available(node: &Value, has_routes: bool, now: &str) -> Option<Action> {
    let (status, reason, message) = match has_routes {
        true => ("False", "RouteCreated", "RouteController created a route"),
        false => ("True", "NoRouteCreated", "RouteController failed to create a route"),
    };
    let old = list(node, "/status/conditions").find(|one| one["type"] == "NetworkUnavailable");
    if old.is_some_and(|old| old["status"] == status) {
        return None;
    }
    let mut conditions: Vec<Value> =
        list(node, "/status/conditions").filter(|one| one["type"] != "NetworkUnavailable").cloned().collect();
    conditions.push(json!({"type": "NetworkUnavailable", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": now, "lastHeartbeatTime": now}));
    let version = &node["metadata"]["resourceVersion"];
    let patch = json!({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}});
    Some(Action::Patch { kind: Kind::Node, key: key(node), patch, is_status: true })
}
