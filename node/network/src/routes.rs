//! Routes to the pods of the other nodes: each node's pod CIDR by way of its address.
//!
//! Nodes are neighbours (one subnet, or namespaces of one machine), so plain routes are enough and
//! no packet is wrapped. Only routes with our protocol number are read, added or deleted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use corten_client::{Caches, Client};
use k8s_openapi::api::core::v1::Node;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cidr::Cidr;
use crate::error::Error;
use crate::links::{Links, Route};

/// How long routes that could not be made wait for their repetition: links come and go without a
/// word to us.
const RETRY: Duration = Duration::from_secs(10);

/// Which node this is.
#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: String,
}

/// Whether every wanted route stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Whole,
    Partial,
}

/// The routes that the nodes call for: one a foreign node that has an IPv4 pod CIDR and address.
fn desired<'a>(nodes: impl IntoIterator<Item = &'a Node>, own: &str) -> BTreeMap<Cidr, Route> {
    let others = nodes.into_iter().filter(|node| node.metadata.name.as_deref() != Some(own));
    others.filter_map(route).map(|route| (route.destination, route)).collect()
}

fn route(node: &Node) -> Option<Route> {
    let spec = node.spec.as_ref()?;
    let cidrs = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    let destination = cidrs.filter_map(|cidr| cidr.parse::<Cidr>().ok()).find(|cidr| cidr.address().is_ipv4())?;
    let addresses = node.status.as_ref()?.addresses.iter().flatten();
    let via = addresses.filter(|address| address.type_ == "InternalIP").find_map(|address| {
        match address.address.parse() {
            Ok(IpAddr::V4(address)) => Some(address),
            _ => None,
        }
    })?;
    Some(Route { destination, via })
}

/// Makes our routes stand as wanted. A node that cannot be reached is told and passed over, so that
/// it does not cut off the others.
async fn apply(links: &Links, wanted: &BTreeMap<Cidr, Route>) -> Result<Outcome, Error> {
    let mut outcome = Outcome::Whole;
    let present = links.node_routes().await?;
    for route in present.iter().filter(|route| wanted.get(&route.destination) != Some(route)) {
        links.delete_node_route(route).await?;
        info!(destination = %route.destination, via = %route.via, "deleted the route to a node's pods");
    }
    for route in wanted.values().filter(|route| !present.contains(route)) {
        match links.add_node_route(route).await {
            Ok(()) => info!(destination = %route.destination, via = %route.via, "added the route to a node's pods"),
            Err(error) => {
                warn!(destination = %route.destination, "cannot add the route to a node's pods: {error}");
                outcome = Outcome::Partial;
            }
        }
    }
    Ok(outcome)
}

/// Keeps the routes to the pods of the other nodes until shutdown. They stay then, because pods do.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) -> Result<(), Error> {
    let caches = Caches::new(client, shutdown.clone());
    let nodes = caches.of::<Node>();
    nodes.synced().await;
    let mut changes = nodes.subscribe();
    let links = Links::open()?;
    loop {
        while changes.try_next().is_some() {}
        if shutdown.is_cancelled() {
            return Ok(());
        }
        let wanted = desired(&nodes.typed_list::<Node>(""), &config.node_name);
        let outcome = apply(&links, &wanted).await.unwrap_or_else(|error| {
            warn!("cannot keep the routes to the other nodes' pods: {error}");
            Outcome::Partial
        });
        tokio::select! {
            change = changes.next() => if change.is_none() { return Ok(()) },
            () = tokio::time::sleep(RETRY), if outcome == Outcome::Partial => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

/// Makes the routes to the pods of these nodes stand, once.
pub async fn reconcile<'a>(config: &Config, nodes: impl IntoIterator<Item = &'a Node>) -> Result<Outcome, Error> {
    apply(&Links::open()?, &desired(nodes, &config.node_name)).await
}

/// Deletes every route that we made.
pub async fn cleanup() -> Result<(), Error> {
    apply(&Links::open()?, &BTreeMap::new()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_api::Typed;

    fn node(name: &str, cidr: &str, address: (&str, &str)) -> Node {
        let text = format!(
            r#"{{"metadata":{{"name":"{name}"}},"spec":{{"podCIDR":"{cidr}"}},
                "status":{{"addresses":[{{"type":"{}","address":"{}"}}]}}}}"#,
            address.0, address.1
        );
        Node::decode(text.as_bytes()).unwrap()
    }

    #[test]
    fn every_other_node_with_range_and_address_is_a_route() {
        let nodes = [
            node("self", "10.244.0.0/24", ("InternalIP", "192.0.2.1")),
            node("b", "10.244.1.0/24", ("InternalIP", "192.0.2.2")),
            node("no-range", "", ("InternalIP", "192.0.2.3")),
            node("no-address", "10.244.2.0/24", ("Hostname", "x")),
            node("six", "fd00::/64", ("InternalIP", "fd01::1")),
        ];
        let routes: Vec<_> =
            desired(&nodes, "self").into_values().map(|r| format!("{} via {}", r.destination, r.via)).collect();
        assert_eq!(routes, ["10.244.1.0/24 via 192.0.2.2"]);
    }
}
