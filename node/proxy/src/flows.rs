//! UDP flows of deleted endpoints.
//!
//! Conntrack keeps a UDP flow at the endpoint of its first packet for as long as the client sends. After the elements
//! of a UDP port changed, flows to it that lead to none of its endpoints are deleted, so that their next packet is
//! translated anew. TCP needs none of it: its peers notice.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use corten_nftables::{Conntrack, Data, Element, Flow, IpFamily, Protocol};

use crate::claims::{Change, Claimed};
use crate::error::Error;
use crate::sets::Name;

type Target = (IpAddr, u16);

/// The endpoints of UDP addresses; a node port has the unspecified address.
pub(crate) type Endpoints = BTreeMap<Target, BTreeSet<Target>>;

/// Returns the UDP addresses of the elements in a change, each with no endpoints yet.
pub(crate) fn changed(change: &Change) -> Endpoints {
    let entries = change.add.iter().chain(&change.delete).filter_map(|(name, element)| entry(*name, element));
    entries.map(|(service, _)| (service, BTreeSet::new())).collect()
}

/// Adds the current endpoints of a Service for the changed addresses.
pub(crate) fn complete(changed: &mut Endpoints, claimed: &Claimed) {
    for (service, endpoint) in claimed.elements.iter().filter_map(|(name, element)| entry(*name, element)) {
        if let Some(endpoints) = changed.get_mut(&service) {
            endpoints.insert(endpoint);
        }
    }
}

/// Returns the address and endpoint of an element of @endpoints, if it is of UDP.
fn entry(name: Name, element: &Element) -> Option<(Target, Target)> {
    // A key is an address, a protocol, a port and an index of a register each, so its length decides the address's
    // family.
    let key = element.key.as_bytes();
    let width = key.len().checked_sub(12)?;
    if name != Name::Endpoints || key.get(width) != Some(&(Protocol::Udp as u8)) {
        return None;
    }
    let Some(Data::Value(value)) = &element.data else { return None };
    let value = value.as_bytes();
    let port = |bytes: &[u8], at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    Some(((address(key.get(..width)?)?, port(key, width + 4)?), (address(value.get(..width)?)?, port(value, width)?)))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Reports whether a flow goes to a changed address and leads to none of its endpoints.
fn is_stale(flow: &Flow, changed: &Endpoints) -> bool {
    let (destination, port) = flow.destination;
    let (answered_by, _) = flow.answered_by;
    let any = IpFamily::of(destination).unspecified();
    let node_port = || changed.get(&(any, port)).filter(|_| destination != answered_by);
    let endpoints = changed.get(&(destination, port)).or_else(node_port);
    endpoints.is_some_and(|endpoints| !endpoints.contains(&(answered_by, flow.answered_by.1)))
}

/// Deletes the stale flows; returns how many.
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
        let at = |address: &str, port: u16| (address.parse::<IpAddr>().unwrap(), port);
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
            let ip = |(address, port): (&str, u16)| (address.parse::<IpAddr>().unwrap(), port);
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
