//! The endpoints that a node uses for a Service port.
//!
//! Ready ones; if there are none, those that still serve while they terminate, so that a rolling restart loses no
//! connection. Hints narrow the cluster-wide choice to the node's zone or to the node itself, but only where every
//! ready endpoint has one and one is for this node.

use crate::slice::Endpoint;

/// The node and zone of the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeTopology {
    pub node: String,
    pub zone: Option<String>,
}

/// The endpoints of one port, by traffic policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usable<'a> {
    pub cluster: Vec<&'a Endpoint>,
    pub local: Vec<&'a Endpoint>,
    /// Whether any endpoint of the cluster could serve, also on another node.
    pub any: bool,
}

impl Endpoint {
    pub(crate) fn is_local(&self, topology: &NodeTopology) -> bool {
        self.node_name.as_deref() == Some(&topology.node)
    }

    fn is_fallback(&self) -> bool {
        !self.ready && self.serving && self.terminating
    }
}

pub(crate) fn usable<'a>(endpoints: &[&'a Endpoint], topology: &NodeTopology) -> Usable<'a> {
    let nearby = nearby(endpoints, topology);
    let endpoints = || endpoints.iter().copied();
    let cluster = first_nonempty(endpoints().filter(|endpoint| endpoint.ready && nearby(endpoint)).collect(), || {
        endpoints().filter(|endpoint| endpoint.is_fallback()).collect()
    });
    let local = || endpoints().filter(|endpoint| endpoint.is_local(topology));
    let local = first_nonempty(local().filter(|endpoint| endpoint.ready).collect(), || {
        local().filter(|endpoint| endpoint.is_fallback()).collect()
    });
    let any = endpoints().any(|endpoint| endpoint.ready || endpoint.is_fallback());
    Usable { cluster, local, any }
}

fn first_nonempty<T>(preferred: Vec<T>, otherwise: impl FnOnce() -> Vec<T>) -> Vec<T> {
    if preferred.is_empty() { otherwise() } else { preferred }
}

/// Returns the filter of the hints: same node before same zone before anywhere.
fn nearby<'a>(endpoints: &[&Endpoint], topology: &'a NodeTopology) -> impl Fn(&Endpoint) -> bool + use<'a> {
    let ready = || endpoints.iter().copied().filter(|endpoint| endpoint.ready);
    let for_node = |endpoint: &Endpoint| endpoint.node_hints.contains(&topology.node);
    let for_zone = |endpoint: &Endpoint| topology.zone.as_ref().is_some_and(|zone| endpoint.zone_hints.contains(zone));
    let by_node = ready().all(|endpoint| !endpoint.node_hints.is_empty()) && ready().any(for_node);
    let by_zone = ready().all(|endpoint| !endpoint.zone_hints.is_empty()) && ready().any(for_zone);
    move |endpoint| match (by_node, by_zone) {
        (true, _) => for_node(endpoint),
        (false, true) => for_zone(endpoint),
        (false, false) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn endpoint(last: u8, flags: &str) -> Endpoint {
        let hints =
            |prefix: &str| flags.split(' ').filter_map(|flag| flag.strip_prefix(prefix)).map(str::to_owned).collect();
        let ready = flags.contains("ready");
        Endpoint {
            address: Ipv4Addr::new(10, 244, 0, last).into(),
            node_name: Some(if flags.contains("local") { "self" } else { "other" }.to_owned()),
            ready,
            serving: ready || flags.contains("serving"),
            terminating: flags.contains("terminating"),
            zone_hints: hints("zone="),
            node_hints: hints("node="),
        }
    }

    #[test]
    fn the_choice_of_endpoints() {
        let topology = NodeTopology { node: "self".to_owned(), zone: Some("a".to_owned()) };
        for (name, endpoints, cluster, local, any) in [
            ("none", vec![], vec![], vec![], false),
            ("ready only", vec!["ready", "x", "ready local"], vec![0, 2], vec![2], true),
            ("terminating while none is ready", vec!["serving terminating", "terminating"], vec![0], vec![], true),
            ("not terminating while one is ready", vec!["serving terminating local", "ready"], vec![1], vec![0], true),
            ("zone hints", vec!["ready zone=a", "ready zone=b"], vec![0], vec![], true),
            ("zone hints not on all", vec!["ready zone=a", "ready"], vec![0, 1], vec![], true),
            ("zone hints for others", vec!["ready zone=b", "ready zone=c"], vec![0, 1], vec![], true),
            ("node hints win", vec!["ready zone=a node=other", "ready zone=b node=self"], vec![1], vec![], true),
            ("not serving", vec!["terminating local"], vec![], vec![], false),
        ] {
            let endpoints: Vec<_> = (0u8..).zip(endpoints).map(|(last, flags)| endpoint(last, flags)).collect();
            let usable = usable(&endpoints.iter().collect::<Vec<_>>(), &topology);
            let last_of = |address: IpAddr| if let IpAddr::V4(v4) = address { v4.octets()[3] } else { 0 };
            let last = |chosen: &[&Endpoint]| chosen.iter().map(|e| last_of(e.address)).collect::<Vec<_>>();
            assert_eq!((last(&usable.cluster), last(&usable.local), usable.any), (cluster, local, any), "{name}");
        }
    }
}
