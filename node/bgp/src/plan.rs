//! The routes of this node for each peer, from the objects of the cluster. Pure.
//!
//! A node announces an address if it can serve it: it is Ready, it is not excluded from load balancers, and for a
//! Service with `externalTrafficPolicy: Local` it has a ready endpoint. A cordoned node withdraws its routes before its
//! pods are evicted, as long as another node announces the address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use corten_api::{AddressPool, Advertisement, LOAD_BALANCER_CLASS};
use corten_meta::{Key, Value};

use crate::message::LargeCommunity;
use crate::prefix::{Family, Prefix};
use crate::rib::{Path, Routes};

const EXCLUDED: &str = "/metadata/labels/node.kubernetes.io~1exclude-from-external-load-balancers";
/// The taint of a node that the cluster autoscaler removes.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// The load balancer addresses of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    pub service: Key,
    pub addresses: Vec<IpAddr>,
    /// Whether only nodes with endpoints serve it.
    pub is_local: bool,
}

impl Balancer {
    /// Returns the balancer of a Service; `None` if it has no address.
    pub fn of(service: &Value) -> Option<Balancer> {
        let string = |pointer: &str| service.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let is_of_class = ["", LOAD_BALANCER_CLASS].contains(&string("/spec/loadBalancerClass"));
        if string("/spec/type") != "LoadBalancer" || !is_of_class {
            return None;
        }
        let ingress = service.pointer("/status/loadBalancer/ingress").and_then(Value::as_array)?;
        let addresses: Vec<IpAddr> = ingress.iter().filter_map(|entry| entry["ip"].as_str()?.parse().ok()).collect();
        let is_local = string("/spec/externalTrafficPolicy") == "Local";
        let service = Key::new(string("/metadata/namespace"), string("/metadata/name"));
        (!addresses.is_empty()).then_some(Balancer { service, addresses, is_local })
    }
}

/// The nodes that may announce addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    eligible: BTreeSet<String>,
    cordoned: BTreeSet<String>,
}

impl Candidates {
    pub fn of<'a>(nodes: impl IntoIterator<Item = &'a Value>) -> Candidates {
        let mut candidates = Candidates::default();
        for node in nodes.into_iter().filter(|node| is_eligible(node)) {
            let name = corten_meta::name(node).to_owned();
            if node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true) {
                candidates.cordoned.insert(name.clone());
            }
            candidates.eligible.insert(name);
        }
        candidates
    }

    /// Reports whether a node announces an address that these nodes can serve; all eligible nodes for `None`.
    fn announces(&self, node: &str, serving: Option<&BTreeSet<String>>) -> bool {
        let can_serve = |name: &&String| serving.is_none_or(|serving| serving.contains(*name));
        if !self.eligible.iter().filter(can_serve).any(|name| name == node) {
            return false;
        }
        let has_others = self.eligible.difference(&self.cordoned).any(|name| can_serve(&name));
        !(self.cordoned.contains(node) && has_others)
    }
}

fn is_eligible(node: &Value) -> bool {
    let list = |pointer: &str| node.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let is_ready = list("/status/conditions").any(|one| one["type"] == "Ready" && one["status"] == "True");
    let is_leaving = list("/spec/taints").any(|taint| taint["key"] == TO_BE_DELETED)
        || node.pointer("/metadata/deletionTimestamp").is_some();
    is_ready && !is_leaving && node.pointer(EXCLUDED).is_none()
}

/// Returns the nodes of a slice's ready endpoints.
pub fn ready_nodes(slice: &Value) -> BTreeSet<String> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let is_ready = |endpoint: &&Value| endpoint.pointer("/conditions/ready").and_then(Value::as_bool).unwrap_or(true);
    endpoints.filter(is_ready).filter_map(|endpoint| Some(endpoint["nodeName"].as_str()?.to_owned())).collect()
}

/// The state of the cluster that routes depend on.
pub struct Cluster<'a> {
    pub node: &'a str,
    pub balancers: &'a [Balancer],
    pub candidates: &'a Candidates,
    /// The nodes with ready endpoints, of Services with `externalTrafficPolicy: Local`.
    pub serving: &'a BTreeMap<Key, BTreeSet<String>>,
    pub pools: &'a [AddressPool],
}

/// Returns the routes that a node announces to a peer.
pub fn routes(cluster: &Cluster<'_>, peer: &str) -> Routes {
    let nowhere = BTreeSet::new();
    let mut routes = Routes::new();
    for balancer in cluster.balancers {
        let serving = cluster.serving.get(&balancer.service).unwrap_or(&nowhere);
        let serving = balancer.is_local.then_some(serving);
        if !cluster.candidates.announces(cluster.node, serving) {
            continue;
        }
        for address in &balancer.addresses {
            let pool = cluster.pools.iter().find(|pool| pool.bgp && pool.contains(*address));
            let wanted = pool.map(|pool| &pool.advertisement);
            if let Some(wanted) = wanted.filter(|wanted| wanted.peers.is_empty() || wanted.peers.contains(peer)) {
                routes.insert(prefix(*address, wanted), path(wanted));
            }
        }
    }
    routes
}

fn prefix(address: IpAddr, wanted: &Advertisement) -> Prefix {
    let length = match Family::of(address) {
        Family::Ipv4 => wanted.length_v4,
        Family::Ipv6 => wanted.length_v6,
    };
    length.map_or_else(|| Prefix::host(address), |length| Prefix::containing(address, length))
}

fn path(wanted: &Advertisement) -> Path {
    let large = |numbers: &[u32; 3]| {
        let [global, local_1, local_2] = *numbers;
        LargeCommunity { global, local_1, local_2 }
    };
    Path {
        communities: wanted.communities.clone(),
        large_communities: wanted.large_communities.iter().map(large).collect(),
        local_preference: wanted.local_preference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, ready: bool, spec: Value, labels: Value) -> Value {
        let status = if ready { "True" } else { "False" };
        json!({"metadata": {"name": name, "labels": labels}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": status}]}})
    }

    fn announced(nodes: &[Value], at: &str, serving: Option<&[&str]>) -> Vec<String> {
        let service = Key::new("default", "web");
        let balancer = Balancer {
            service: service.clone(),
            addresses: vec!["192.0.2.1".parse().unwrap()],
            is_local: serving.is_some(),
        };
        let serving: BTreeSet<String> = serving.unwrap_or_default().iter().map(|name| (*name).to_owned()).collect();
        let pool = json!({"metadata": {"name": "p"}, "spec": {"addresses": ["192.0.2.0/24"]}});
        let cluster = Cluster {
            node: at,
            balancers: &[balancer],
            candidates: &Candidates::of(nodes),
            serving: &BTreeMap::from([(service, serving)]),
            pools: &[AddressPool::of(&pool).unwrap()],
        };
        routes(&cluster, "router").keys().map(Prefix::to_string).collect()
    }

    #[test]
    fn ready_nodes_announce_and_unready_excluded_or_leaving_nodes_do_not() {
        let excluded = json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""});
        let leaving = json!({"taints": [{"key": TO_BE_DELETED, "effect": "NoSchedule"}]});
        let nodes = [
            node("a", true, json!({}), json!({})),
            node("b", false, json!({}), json!({})),
            node("c", true, json!({}), excluded),
            node("d", true, leaving, json!({})),
        ];
        assert_eq!(announced(&nodes, "a", None), ["192.0.2.1/32"]);
        for other in ["b", "c", "d", "absent"] {
            assert!(announced(&nodes, other, None).is_empty(), "{other}");
        }
    }

    #[test]
    fn local_services_are_announced_where_they_have_endpoints() {
        let nodes = ["a", "b"].map(|name| node(name, true, json!({}), json!({})));
        assert_eq!(announced(&nodes, "a", Some(&["a"])).len(), 1);
        assert!(announced(&nodes, "b", Some(&["a"])).is_empty());
    }

    #[test]
    fn a_cordoned_node_withdraws_while_another_serves() {
        let cordoned = json!({"unschedulable": true});
        let nodes = [node("a", true, cordoned.clone(), json!({})), node("b", true, json!({}), json!({}))];
        assert!(announced(&nodes, "a", None).is_empty());
        assert_eq!(announced(&nodes, "b", None).len(), 1);
        assert_eq!(announced(&nodes, "a", Some(&["a"])).len(), 1, "no other node has endpoints");
        assert_eq!(announced(&nodes[..1], "a", None).len(), 1, "there is no other node");
    }

    #[test]
    fn routes_have_the_attributes_of_their_pool() {
        let pool = json!({"metadata": {"name": "p"}, "spec": {"addresses": ["192.0.2.0/24", "2001:db8::/64"],
            "bgp": {"aggregationLength": 28, "communities": ["65000:1"], "peers": ["one"]}}});
        let service = json!({"metadata": {"namespace": "n", "name": "s"}, "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.17"}, {"ip": "2001:db8::1"}, {"ip": "10.0.0.1"}]}}});
        let balancers = [Balancer::of(&service).unwrap()];
        let cluster = Cluster {
            node: "a",
            balancers: &balancers,
            candidates: &Candidates::of(&[node("a", true, json!({}), json!({}))]),
            serving: &BTreeMap::new(),
            pools: &[AddressPool::of(&pool).unwrap()],
        };
        let found = routes(&cluster, "one");
        let shown: Vec<String> = found.keys().map(Prefix::to_string).collect();
        assert_eq!(shown, ["192.0.2.16/28", "2001:db8::1/128"]);
        assert!(found.values().all(|path| path.communities.len() == 1));
        assert!(routes(&cluster, "two").is_empty());
    }
}
