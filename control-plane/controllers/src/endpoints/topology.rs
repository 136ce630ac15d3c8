//! Topology aware routing: the endpoints of a Service that asks for it get hints of the zone that they serve, so that every
//! zone has a share of them that fits its share of the cluster's CPU.
//!
//! An endpoint serves its own zone if it can. Where that would leave a zone with too few of them, or where too little is
//! known of the nodes, none has a hint, and traffic goes anywhere.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::{Node, Service};
use corten_api::k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, ForZone};
use corten_client::Change;
use corten_meta::{Key, Quantity};

use super::slices::ZONE;
use crate::runtime::{ResourceType, View, decode, mentions};

const MODE: &str = "service.kubernetes.io/topology-mode";
/// The annotation of before; it is heard first.
const DEPRECATED_MODE: &str = "service.kubernetes.io/topology-aware-hints";
/// Nodes that have no part in serving.
const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// How much more traffic than its share an endpoint may get.
const OVERLOAD: f64 = 0.2;

/// Allocatable CPU in thousandths, by zone.
pub type CpuByZone = BTreeMap<String, i64>;

/// Whether the Service asks for it.
pub fn is_wanted(service: &Service) -> bool {
    let Some(annotations) = &service.metadata.annotations else { return false };
    let mode = annotations.get(DEPRECATED_MODE).or_else(|| annotations.get(MODE));
    mode.is_some_and(|mode| mode == "Auto" || mode == "auto")
}

/// Returns the zone of a node, empty if unknown, and its CPU; `None` for a node that does not count.
fn part_of(node: &Node) -> Option<(String, i64)> {
    let labels = node.metadata.labels.as_ref();
    if labels.is_some_and(|labels| EXCLUDED.iter().any(|excluded| labels.contains_key(*excluded))) {
        return None;
    }
    let status = node.status.as_ref()?;
    status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    let cpu =
        status.allocatable.as_ref().and_then(|all| all.get("cpu")).map_or(0, |cpu| {
            Quantity::parse(&cpu.0).ok().and_then(|cpu| i64::try_from(cpu.as_milli()).ok()).unwrap_or(0)
        });
    Some((labels.and_then(|labels| labels.get(ZONE)).cloned().unwrap_or_default(), cpu))
}

/// The CPU of every zone; none if there are not two, or if a node does not tell its zone and CPU.
pub fn cpu_by_zone(view: &dyn View) -> Option<CpuByZone> {
    let nodes = view.list(ResourceType::of::<Node>(), "");
    let mut zones = CpuByZone::new();
    for (zone, cpu) in nodes.iter().filter_map(|node| part_of(&decode(node)?)) {
        if zone.is_empty() || cpu == 0 {
            return None;
        }
        *zones.entry(zone).or_default() += cpu;
    }
    Some(zones).filter(|zones| zones.len() > 1)
}

/// A node that comes, goes or changes its part concerns all Services that ask for topology aware routing.
pub fn services_of_node(view: &dyn View, change: &Change) -> Vec<Key> {
    let part = |node: &Option<_>| node.as_ref().and_then(|node| part_of(&decode::<Node>(node)?));
    if part(&change.old) == part(&change.new) {
        return Vec::new();
    }
    let services = view.list(ResourceType::of::<Service>(), "");
    services.iter().filter(|service| mentions(service, "service.kubernetes.io/topology-")).map(|it| it.key()).collect()
}

/// Gives the endpoints of one family their hints, or takes them all away.
pub fn give_hints(endpoints: &mut [&mut Endpoint], cpus: Option<&CpuByZone>) {
    let is_ready = |endpoint: &Endpoint| endpoint.conditions.as_ref().and_then(|all| all.ready).unwrap_or(true);
    endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
    let mut ready: Vec<&mut &mut Endpoint> = endpoints.iter_mut().filter(|endpoint| is_ready(endpoint)).collect();
    let Some(shares) = cpus.and_then(|cpus| shares(cpus, ready.len())) else { return };
    if ready.iter().any(|endpoint| endpoint.zone.as_deref().unwrap_or_default().is_empty()) {
        return;
    }
    let mut serving: BTreeMap<String, usize> = BTreeMap::new();
    for endpoint in &ready {
        *serving.entry(endpoint.zone.clone().unwrap_or_default()).or_default() += 1;
    }
    let mut moves = moves(&shares, &serving);
    for endpoint in &mut ready {
        let own = endpoint.zone.clone().unwrap_or_default();
        let moved = moves.iter().position(|(from, _)| *from == own).map(|at| moves.swap_remove(at).1);
        let zones = vec![ForZone { name: moved.unwrap_or(own) }];
        endpoint.hints = Some(EndpointHints { for_zones: Some(zones), for_nodes: None });
    }
}

/// How many endpoints each zone should have; none if a zone cannot have enough.
fn shares(cpus: &CpuByZone, endpoints: usize) -> Option<BTreeMap<&str, f64>> {
    if cpus.len() > endpoints {
        return None;
    }
    let total: i64 = cpus.values().sum();
    let mut left = endpoints as f64;
    let mut shares = BTreeMap::new();
    for (zone, cpu) in cpus {
        let desired = *cpu as f64 / total as f64 * endpoints as f64;
        let least = (desired / (1.0 + OVERLOAD)).ceil();
        left -= least;
        shares.insert(zone.as_str(), desired.max(least));
    }
    (left >= 0.0).then_some(shares)
}

/// From which zone to which an endpoint must go, one by one.
fn moves(shares: &BTreeMap<&str, f64>, serving: &BTreeMap<String, usize>) -> Vec<(String, String)> {
    let over = |zone: &str, share: f64| serving.get(zone).copied().unwrap_or(0) as f64 - share;
    let mut over: BTreeMap<&str, f64> = shares.iter().map(|(zone, share)| (*zone, over(zone, *share))).collect();
    let mut moves = Vec::new();
    loop {
        let most = |sign: f64| {
            let found = over.iter().map(|(zone, over)| (*zone, sign * over)).filter(|(_, excess)| *excess > 0.0);
            found.reduce(|best, next| if next.1 > best.1 { next } else { best })
        };
        let (Some((from, given)), Some((to, lacking))) = (most(1.0), most(-1.0)) else { return moves };
        if (given < 1.0 && lacking < 1.0) || given < 0.5 || lacking < 0.5 {
            return moves;
        }
        over.entry(from).and_modify(|over| *over -= 1.0);
        over.entry(to).and_modify(|over| *over += 1.0);
        moves.push((from.to_owned(), to.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints(zones: &[&str], cpus: &[(&str, i64)]) -> Vec<String> {
        let of = |zone: &&str| Endpoint { zone: Some((*zone).to_owned()), ..Endpoint::default() };
        let mut endpoints: Vec<Endpoint> = zones.iter().map(of).collect();
        let cpus = cpus.iter().map(|(zone, cpu)| ((*zone).to_owned(), *cpu)).collect();
        give_hints(&mut endpoints.iter_mut().collect::<Vec<_>>(), Some(&cpus));
        let zone = |endpoint: Endpoint| Some(endpoint.hints?.for_zones?.first()?.name.clone());
        endpoints.into_iter().map(|endpoint| zone(endpoint).unwrap_or_default()).collect()
    }

    #[test]
    fn endpoints_serve_their_zone_and_those_that_lack_some() {
        let even = [("a", 1000), ("b", 1000), ("c", 1000)];
        assert_eq!(hints(&["a", "b", "c"], &even), ["a", "b", "c"]);
        assert_eq!(hints(&["a", "b"], &even), ["", ""], "fewer endpoints than zones");
        assert_eq!(hints(&["a", "a", "a", "a", "b", "c"], &even), ["b", "c", "a", "a", "b", "c"]);
        assert_eq!(hints(&["a", "a", "b", "b"], &[("a", 1000), ("b", 7000)]), ["b", "a", "b", "b"]);
        assert_eq!(hints(&["a", "b", "c"], &[("a", 1000), ("b", 1000), ("c", 10_000)]), ["", "", ""], "too few for c");
        assert_eq!(hints(&["a", "", "c"], &even), ["", "", ""], "an endpoint without a zone");
    }
}
