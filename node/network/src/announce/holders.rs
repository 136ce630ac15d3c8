//! The nodes that hold the addresses of load balancers. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use corten_meta::Key;
use serde_json::Value;

const EXCLUDED: &str = "/metadata/labels/node.kubernetes.io~1exclude-from-external-load-balancers";

/// The load balancer addresses of a Service, which a node must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub service: Key,
    pub addresses: Vec<IpAddr>,
    /// Whether only nodes with endpoints serve it.
    pub local: bool,
}

impl Claim {
    /// Returns the claim of a Service; `None` without an address of the pool.
    pub fn of(service: &Value, in_pool: impl Fn(IpAddr) -> bool) -> Option<Claim> {
        let string = |pointer: &str| service.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let is_of_class = ["", corten_api::LOAD_BALANCER_CLASS].contains(&string("/spec/loadBalancerClass"));
        if string("/spec/type") != "LoadBalancer" || !is_of_class {
            return None;
        }
        let ingress = service.pointer("/status/loadBalancer/ingress").and_then(Value::as_array)?;
        let addresses = ingress.iter().filter_map(|entry| entry["ip"].as_str()?.parse().ok());
        let addresses: Vec<IpAddr> = addresses.filter(|address| in_pool(*address)).collect();
        let service = Key::new(string("/metadata/namespace"), string("/metadata/name"));
        let local = string("/spec/externalTrafficPolicy") == "Local";
        (!addresses.is_empty()).then_some(Claim { service, addresses, local })
    }
}

/// The nodes that may hold addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidates(BTreeSet<String>);

impl Candidates {
    pub fn of(nodes: impl IntoIterator<Item = Value>) -> Candidates {
        let ready = |node: &Value| {
            let conditions = node.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
            conditions.filter(|one| one["type"] == "Ready").any(|one| one["status"] == "True")
        };
        let eligible = nodes.into_iter().filter(|node| ready(node) && node.pointer(EXCLUDED).is_none());
        Candidates(eligible.filter_map(|node| Some(node.pointer("/metadata/name")?.as_str()?.to_owned())).collect())
    }
}

/// Returns the nodes of a slice's ready endpoints.
pub(crate) fn ready_nodes(slice: &Value) -> BTreeSet<String> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let ready = |endpoint: &&Value| endpoint.pointer("/conditions/ready").and_then(Value::as_bool).unwrap_or(true);
    endpoints.filter(ready).filter_map(|endpoint| Some(endpoint["nodeName"].as_str()?.to_owned())).collect()
}

/// Returns the addresses that a node holds.
pub(crate) fn held_by(
    node: &str,
    claims: &[Claim],
    candidates: &Candidates,
    local: &BTreeMap<Key, BTreeSet<String>>,
) -> BTreeSet<IpAddr> {
    let no_nodes = BTreeSet::new();
    let holds = |claim: &Claim, address: IpAddr| {
        let serving = local.get(&claim.service).unwrap_or(&no_nodes);
        let eligible = candidates.0.iter().filter(|name| !claim.local || serving.contains(*name));
        eligible.max_by_key(|name| (weight(name, address), (*name).clone())).is_some_and(|name| name == node)
    };
    let pairs = claims.iter().flat_map(|claim| claim.addresses.iter().map(move |address| (claim, *address)));
    pairs.filter(|(claim, address)| holds(claim, *address)).map(|(_, address)| address).collect()
}

fn weight(node: &str, address: IpAddr) -> u64 {
    const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const FNV_PRIME: u64 = 0x100_0000_01b3;
    let key = format!("{address}/{node}");
    let hash = key.bytes().fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    // The last byte alone changes only the low bits; mixing spreads it.
    (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(address: &str, local: bool) -> Claim {
        Claim { service: Key::new("n", address), addresses: vec![address.parse().unwrap()], local }
    }

    fn nodes(names: &[&str]) -> Candidates {
        Candidates(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn every_address_has_one_holder_and_moves_only_when_its_holder_is_lost() {
        let claims: Vec<Claim> = (1..=60).map(|last| claim(&format!("192.0.2.{last}"), false)).collect();
        let all = nodes(&["a", "b", "c"]);
        let fewer = nodes(&["a", "c"]);
        let held = |node: &str, of: &Candidates| held_by(node, &claims, of, &BTreeMap::new());
        let total: usize = ["a", "b", "c"].iter().map(|node| held(node, &all).len()).sum();
        assert_eq!(total, 60);
        assert!(["a", "b", "c"].iter().all(|node| held(node, &all).len() > 5), "they share the load");
        for node in ["a", "c"] {
            assert!(held(node, &all).is_subset(&held(node, &fewer)), "{node} keeps its addresses");
        }
        assert_eq!(held("a", &fewer).len() + held("c", &fewer).len(), 60);
    }

    #[test]
    fn local_services_are_held_where_they_are_served() {
        let claims = [claim("192.0.2.1", true)];
        let local = BTreeMap::from([(Key::new("n", "192.0.2.1"), BTreeSet::from(["b".to_owned()]))]);
        let all = nodes(&["a", "b", "c"]);
        assert_eq!(held_by("b", &claims, &all, &local).len(), 1);
        assert!(["a", "c"].iter().all(|node| held_by(node, &claims, &all, &local).is_empty()));
        assert!(held_by("b", &claims, &all, &BTreeMap::new()).is_empty(), "no node serves it");
    }

    #[test]
    fn claims_and_candidates_are_read_from_objects() {
        let service = json!({"metadata": {"namespace": "n", "name": "s"}, "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"ip": "10.0.0.1"}]}}});
        let pool = |address: IpAddr| address.to_string().starts_with("192.0.2.");
        assert_eq!(Claim::of(&service, pool).unwrap().addresses, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(Claim::of(&service, |_| false), None);
        let node = |name: &str, ready: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}, "status": {"conditions": [{"type": "Ready", "status": ready}]}});
        let excluded = json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""});
        let found =
            Candidates::of([node("a", "True", json!({})), node("b", "False", json!({})), node("c", "True", excluded)]);
        assert_eq!(found, nodes(&["a"]));
    }
}
