//! The route controller: one route of the cloud's network for each pod CIDR of each node.
//!
//! Only routes that the provider lists as this cluster's, and that lead into the cluster's pod network, are deleted.

use corten_api::AddressRange;
use corten_meta::Value;
use serde_json::json;

use super::{Action, Event, Kind};
use crate::nodes::balancer_node;
use crate::objects::{key, list, string};
use crate::provider::Route;

/// Returns the routes to create and to delete, and the conditions of the nodes.
pub fn reconcile(nodes: &[Value], routes: &[Route], cluster_cidrs: &[AddressRange], now: &str) -> Vec<Action> {
    let mut actions = Vec::new();
    let wanted: Vec<Route> = nodes.iter().flat_map(wanted_routes).collect();
    let is_ours = |route: &Route| {
        let range = AddressRange::parse(&route.cidr);
        range.is_some_and(|range| cluster_cidrs.iter().any(|all| all.contains(range.bounds().0)))
    };
    for route in routes.iter().filter(|route| is_ours(route)) {
        if !wanted.iter().any(|one| is_same(one, route)) {
            actions.push(Action::DeleteRoute(route.clone()));
        }
    }
    for node in nodes {
        let own = wanted_routes(node);
        let missing: Vec<&Route> = own.iter().filter(|one| !routes.iter().any(|other| is_same(other, one))).collect();
        actions.extend(missing.into_iter().cloned().map(Action::CreateRoute));
        actions.extend(available(node, !own.is_empty(), now));
    }
    actions
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

/// Returns the patch of the condition NetworkUnavailable, after the routes of the node were made.
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

/// Returns the event about a route that could not be made.
pub fn failed(route: &Route, node: &Value, error: &str) -> Event {
    let message = format!("Could not create route {} for node {}: {error}", route.cidr, route.node.name);
    Event::about(Kind::Node, node, true, "FailedToCreateRoute", message)
}
