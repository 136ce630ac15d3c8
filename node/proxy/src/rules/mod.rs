//! The elements of one Service in the kernel: the pure decision of the proxy.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use corten_nftables::{Element, Index, IpFamily, Port, Protocol, Value};

use crate::chains::{Entry, FIRST_LOCAL, Pick, Refusal, Shape};
use crate::service::{Service, ServicePort};
use crate::sets::Name;
use crate::slice::{Endpoint, Slice};
use crate::topology::{NodeTopology, usable};

/// Elements of sets, and the chains that they lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    pub elements: BTreeSet<(Name, Element)>,
    pub shapes: BTreeSet<Shape>,
}

pub(crate) type Target = (IpAddr, u16);

/// Returns the elements of a Service with these slices, for a node of this topology.
pub(crate) fn desired<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a Slice> + Clone,
    topology: &NodeTopology,
) -> Rules {
    let mut rules = Rules::default();
    for port in &service.ports {
        let Served { cluster, local, any, own } = served(port, slices.clone(), topology);
        PortRules { service, port, cluster, local, any }.contribute(&mut rules);
        // A local pod that is sent to itself must see the node as its client, else it answers itself directly.
        rules.elements.extend(own.into_iter().map(|address| (Name::Hairpin, Element::key((address, address)))));
    }
    rules
}

/// The endpoints that serve a port, for a node of this topology.
pub(crate) struct Served {
    /// The endpoints for traffic that may go anywhere.
    pub cluster: Vec<Target>,
    /// The endpoints for traffic that must stay on this node.
    pub local: Vec<Target>,
    /// Whether any endpoint serves it, here or elsewhere.
    pub any: bool,
    /// The addresses of those endpoints that are pods of this node.
    pub own: BTreeSet<IpAddr>,
}

pub(crate) fn served<'a>(
    port: &ServicePort,
    slices: impl Iterator<Item = &'a Slice>,
    topology: &NodeTopology,
) -> Served {
    let (all, ports): (Vec<&Endpoint>, Vec<u16>) = endpoints_of(port, slices).into_iter().unzip();
    let chosen = usable(&all, topology);
    let target = |endpoint: &&Endpoint| {
        let index = all.iter().position(|candidate| std::ptr::eq(*candidate, *endpoint));
        (endpoint.address, index.map_or(0, |index| ports[index]))
    };
    let local = chosen.cluster.iter().chain(&chosen.local).filter(|endpoint| endpoint.is_local(topology));
    Served {
        own: local.map(|endpoint| endpoint.address).collect(),
        cluster: chosen.cluster.iter().map(target).collect(),
        local: chosen.local.iter().map(target).collect(),
        any: chosen.any,
    }
}

/// Returns the endpoints that serve a port, each with its port number; sorted, so that equal input in any order gives
/// equal rules.
fn endpoints_of<'a>(port: &ServicePort, slices: impl Iterator<Item = &'a Slice>) -> Vec<(&'a Endpoint, u16)> {
    let mut found = Vec::new();
    for slice in slices {
        let served = slice.ports.iter().filter(|served| served.name == port.name && served.protocol == port.protocol);
        for served in served {
            found.extend(slice.endpoints.iter().map(|endpoint| (endpoint, served.port)));
        }
    }
    // While a pod moves between slices it can be in two; the ready one counts.
    found.sort_by_key(|(endpoint, port)| (endpoint.address, *port, !endpoint.ready, !endpoint.serving));
    found.dedup_by_key(|(endpoint, port)| (endpoint.address, *port));
    found
}

/// The endpoints of this node, or of the whole cluster.
struct Scope {
    local: bool,
    /// Whether traffic leads to these endpoints.
    wanted: bool,
}

/// The sets of traffic from outside.
struct ExternalSets {
    services: Name,
    unavailable: Name,
}

/// One port of a Service with its endpoints.
struct PortRules<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    cluster: Vec<Target>,
    local: Vec<Target>,
    any: bool,
}

impl PortRules<'_> {
    fn contribute(&self, rules: &mut Rules) {
        self.cluster_address(rules);
        let external = self.service.external_ips.iter().chain(&self.service.load_balancer_ips);
        for address in external.collect::<BTreeSet<_>>() {
            self.external_address(*address, rules);
        }
        if let Some(node_port) = self.port.node_port {
            self.node_port(node_port, rules);
        }
        if !self.service.source_ranges.is_empty() {
            self.restrictions(rules);
        }
    }

    fn cluster_address(&self, rules: &mut Rules) {
        let key = (self.service.cluster_ip, self.port.protocol, Port(self.port.port));
        let local = self.service.internal_local;
        match self.pick(Entry::Address, local) {
            Some(pick) => {
                self.lead(Name::Services, key.into(), Shape::Cluster(pick), rules);
                self.endpoints(
                    self.service.cluster_ip,
                    self.port.port,
                    [Scope { local: false, wanted: !local }, Scope { local: true, wanted: local }],
                    rules,
                );
            }
            None => refuse(Name::Unavailable, key.into(), self.no_endpoints(), rules),
        }
    }

    fn external_address(&self, address: IpAddr, rules: &mut Rules) {
        let key = (address, self.port.protocol, Port(self.port.port));
        self.external(
            Entry::Address,
            ExternalSets { services: Name::Services, unavailable: Name::Unavailable },
            key.into(),
            rules,
        );
        self.endpoints(address, self.port.port, self.external_scopes(), rules);
    }

    fn node_port(&self, node_port: u16, rules: &mut Rules) {
        let key = (self.port.protocol, Port(node_port));
        self.external(
            Entry::NodePort,
            ExternalSets { services: Name::NodePorts, unavailable: Name::UnavailableNodePorts },
            key.into(),
            rules,
        );
        self.endpoints(IpFamily::of(self.service.cluster_ip).unspecified(), node_port, self.external_scopes(), rules);
    }

    /// Returns the endpoints that traffic from outside may need: all, and those of this node.
    fn external_scopes(&self) -> [Scope; 2] {
        [Scope { local: false, wanted: true }, Scope { local: true, wanted: self.service.external_local }]
    }

    fn external(&self, entry: Entry, sets: ExternalSets, key: Value, rules: &mut Rules) {
        let all = self.pick(entry, false);
        if !self.service.external_local {
            match all {
                Some(pick) => self.lead(sets.services, key, Shape::External(pick), rules),
                None => refuse(sets.unavailable, key, self.no_endpoints(), rules),
            }
            return;
        }
        let local = self.pick(entry, true);
        if all.is_some() || local.is_some() {
            self.lead(sets.services, key.clone(), Shape::ExternalLocal { all, local }, rules);
        }
        match (all, local) {
            (_, Some(_)) => {}
            // Endpoints elsewhere serve pods and this node; the load balancer shall find another node.
            (Some(_), None) => refuse(sets.unavailable, key, Refusal::DropOutside, rules),
            (None, None) => refuse(sets.unavailable, key, self.no_endpoints(), rules),
        }
    }

    /// Returns the refusal: drop where another node could serve, reject where no node can.
    fn no_endpoints(&self) -> Refusal {
        if self.any { Refusal::Drop } else { Refusal::Reject }
    }

    fn pick(&self, entry: Entry, local: bool) -> Option<Pick> {
        let endpoints = if local { &self.local } else { &self.cluster };
        let count = endpoints.len() as u32;
        (count > 0).then_some(Pick { entry, local, count, affinity: self.service.affinity })
    }

    fn lead(&self, name: Name, key: Value, shape: Shape, rules: &mut Rules) {
        let (kind, cluster, local) = shape.numbers();
        rules.elements.insert((name, Element::value(key, (Index(0), kind, cluster, local))));
        rules.shapes.extend(shape.picks().chain([shape]));
    }

    /// Adds the endpoints of an address, for the scopes that lead there.
    fn endpoints(&self, address: IpAddr, port: u16, scopes: [Scope; 2], rules: &mut Rules) {
        let protocol = self.port.protocol;
        for scope in scopes.into_iter().filter(|scope| scope.wanted) {
            let (endpoints, first) = if scope.local { (&self.local, FIRST_LOCAL) } else { (&self.cluster, 0) };
            for (index, (endpoint, endpoint_port)) in (first..).zip(endpoints) {
                let target = (*endpoint, Port(*endpoint_port));
                let key = (address, protocol, Port(port), Index(index));
                rules.elements.insert((Name::Endpoints, Element::value(key, target)));
                if self.service.affinity.is_some() {
                    let key = (target.0, target.1, address, protocol, Port(port));
                    rules.elements.insert((Name::AffinityEndpoints, Element::key(key)));
                }
            }
        }
    }

    /// Adds the source ranges of the load balancer addresses.
    fn restrictions(&self, rules: &mut Rules) {
        let protocol: Protocol = self.port.protocol;
        for address in &self.service.load_balancer_ips {
            let key = (*address, protocol, Port(self.port.port));
            rules.elements.insert((Name::Restricted, Element::key(key)));
            for (network, length) in &self.service.source_ranges {
                let first = *network;
                let last = last_of(*network, *length);
                let range = Element::range((key.0, key.1, key.2, first), (key.0, key.1, key.2, last));
                rules.elements.insert((Name::Sources, range));
            }
        }
    }
}

/// Returns the last address of a range.
fn last_of(network: IpAddr, length: u8) -> IpAddr {
    let length = u32::from(length);
    match network {
        IpAddr::V4(first) => (first | Ipv4Addr::from_bits(u32::MAX.checked_shr(length).unwrap_or(0))).into(),
        IpAddr::V6(first) => (first | Ipv6Addr::from_bits(u128::MAX.checked_shr(length).unwrap_or(0))).into(),
    }
}

fn refuse(name: Name, key: Value, refusal: Refusal, rules: &mut Rules) {
    rules.elements.insert((name, Element::value(key, (Index(0), Index(refusal as u32)))));
}

#[cfg(test)]
mod tests;
