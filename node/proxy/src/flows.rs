//! UDP flows of endpoints that are gone.
//!
//! Conntrack keeps a UDP flow at the endpoint of its first packet for as long as the client sends.
//! After the elements of a UDP port changed, flows to it that lead to none of its endpoints are
//! deleted, so that their next packet chooses again. TCP needs none of it: its peers notice.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use corten_nftables::{Conntrack, Data, Element, Flow, Protocol};

use crate::claims::Change;
use crate::error::Error;
use crate::rules::Rules;
use crate::sets::Name;

type Target = (Ipv4Addr, u16);

/// The endpoints of UDP addresses; a node port has the address 0.0.0.0.
pub(crate) type Endpoints = BTreeMap<Target, BTreeSet<Target>>;

/// The UDP addresses whose elements a change touches, each with no endpoints yet.
pub(crate) fn changed(change: &Change) -> Endpoints {
    change.add.iter().chain(&change.delete).filter_map(entry).map(|(service, _)| (service, BTreeSet::new())).collect()
}

/// Adds the endpoints that a Service has now for the changed addresses.
pub(crate) fn complete(changed: &mut Endpoints, rules: &Rules) {
    for (service, endpoint) in rules.elements.iter().filter_map(entry) {
        if let Some(endpoints) = changed.get_mut(&service) {
            endpoints.insert(endpoint);
        }
    }
}

/// The address and endpoint of an element of @endpoints, if it is of UDP.
fn entry((name, element): &(Name, Element)) -> Option<(Target, Target)> {
    let key = element.key.as_bytes();
    if *name != Name::Endpoints || key.get(4) != Some(&(Protocol::Udp as u8)) {
        return None;
    }
    let Some(Data::Value(value)) = &element.data else { return None };
    let value = value.as_bytes();
    let address = |bytes: &[u8], at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?));
    let port = |bytes: &[u8], at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    Some(((address(key, 0)?, port(key, 8)?), (address(value, 0)?, port(value, 4)?)))
}

/// Whether a flow goes to a changed address and leads to none of its endpoints.
fn is_stale(flow: &Flow, changed: &Endpoints) -> bool {
    let (IpAddr::V4(destination), IpAddr::V4(answered_by)) = (flow.destination.0, flow.answered_by.0) else {
        return false;
    };
    let port = flow.destination.1;
    let node_port = || changed.get(&(Ipv4Addr::UNSPECIFIED, port)).filter(|_| destination != answered_by);
    let endpoints = changed.get(&(destination, port)).or_else(node_port);
    endpoints.is_some_and(|endpoints| !endpoints.contains(&(answered_by, flow.answered_by.1)))
}

/// Deletes the stale flows; says how many.
pub(crate) fn delete_stale(changed: &Endpoints) -> Result<usize, Error> {
    if changed.is_empty() {
        return Ok(0);
    }
    Ok(Conntrack::open()?.delete_matching(Protocol::Udp as u8, |flow| is_stale(flow, changed))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_stale_when_their_endpoint_is_none_of_the_address() {
        let at = |address: &str, port: u16| (address.parse::<Ipv4Addr>().unwrap(), port);
        let changed: Endpoints = BTreeMap::from([
            (at("10.96.0.10", 53), BTreeSet::from([at("10.244.0.2", 5353)])),
            (at("0.0.0.0", 30053), BTreeSet::from([at("10.244.0.2", 5353)])),
        ]);
        for (name, destination, answered_by, stale) in [
            ("its endpoint", ("10.96.0.10", 53), ("10.244.0.2", 5353), false),
            ("another endpoint", ("10.96.0.10", 53), ("10.244.0.3", 5353), true),
            ("another port", ("10.96.0.10", 53), ("10.244.0.2", 53), true),
            ("another address", ("10.96.0.11", 53), ("10.244.0.3", 5353), false),
            ("node port, its endpoint", ("192.0.2.1", 30053), ("10.244.0.2", 5353), false),
            ("node port, another endpoint", ("192.0.2.1", 30053), ("10.244.0.9", 5353), true),
            ("not translated", ("192.0.2.1", 30053), ("192.0.2.1", 30053), false),
        ] {
            let ip = |(address, port): (&str, u16)| (IpAddr::V4(address.parse().unwrap()), port);
            let flow = Flow {
                protocol: 17,
                source: ip(("10.244.0.7", 4000)),
                destination: ip(destination),
                answered_by: ip(answered_by),
            };
            assert_eq!(is_stale(&flow, &changed), stale, "{name}");
        }
    }
}
