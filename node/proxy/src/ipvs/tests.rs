//! A model of a kernel with IPVS: it reads the messages by the header's numbers, and refuses as the real one does.
//! After any messages it ends in the wanted state, and it never holds an address without endpoints.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use corten_nftables::find;

type Destinations = BTreeMap<Target, u32>;

/// The state of the kernel.
#[derive(Default, Debug)]
struct Held {
    services: BTreeMap<Virtual, (u32, Destinations)>,
    addresses: BTreeSet<IpAddr>,
    link: bool,
    /// The number of connections of each destination.
    connections: BTreeMap<(Virtual, Target), u32>,
    commands: usize,
}

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Held>>);

fn refused(code: i32) -> io::Result<Vec<Vec<u8>>> {
    Err(io::Error::from_raw_os_error(code))
}

/// Reports whether the attributes of a Service or destination are complete; otherwise they are invalid.
fn is_complete(attributes: &[u8], nest: u16, kinds: std::ops::RangeInclusive<u16>) -> bool {
    let nested = find(attributes, nest).unwrap_or_default();
    kinds.filter(|kind| !(nest == 1 && *kind == 5)).all(|kind| find(nested, kind).is_some())
}

impl Kernel for Memory {
    fn ipvs(&mut self, command: u8, _flags: u16, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut held = self.0.lock().unwrap();
        held.commands += 1;
        if command == GET_SERVICE {
            return Ok(held.services.keys().map(message::service_key).collect());
        }
        let Some(service) = message::read_service(attributes) else { return refused(libc::EINVAL) };
        if command == NEW_SERVICE || command == SET_SERVICE {
            if !is_complete(attributes, 1, 1..=9) {
                return refused(libc::EINVAL);
            }
            let timeout = find(find(attributes, 1).unwrap(), 8).unwrap().try_into().map(u32::from_ne_bytes).unwrap();
            return match (held.services.get_mut(&service), command) {
                (Some(_), NEW_SERVICE) => refused(libc::EEXIST),
                (None, SET_SERVICE) => refused(libc::ESRCH),
                (Some(known), _) => {
                    known.0 = timeout;
                    Ok(Vec::new())
                }
                (None, _) => {
                    held.services.insert(service, (timeout, Destinations::new()));
                    Ok(Vec::new())
                }
            };
        }
        let connections = held.connections.clone();
        let Some((_, destinations)) = held.services.get_mut(&service) else { return refused(libc::ESRCH) };
        let destination = message::read_destination(attributes, service.address.is_ipv4());
        match (command, destination) {
            (DELETE_SERVICE, _) => drop(held.services.remove(&service)),
            (GET_DESTINATION, _) => {
                let encode = |(target, weight): (&Target, &u32)| {
                    let mut answer = message::destination(&service, *target, *weight);
                    let active = connections.get(&(service, *target)).copied().unwrap_or(0).to_ne_bytes();
                    // The nested attributes are the last; one more makes them longer.
                    let at = message::service_key(&service).len();
                    answer.extend([&[8, 0, 7, 0][..], &active].concat());
                    let length = (answer.len() - at) as u16;
                    answer[at..at + 2].copy_from_slice(&length.to_ne_bytes());
                    answer
                };
                return Ok(destinations.iter().map(encode).collect());
            }
            (_, None) => return refused(libc::EINVAL),
            (NEW_DESTINATION, Some(found)) if destinations.contains_key(&found.target) => return refused(libc::EEXIST),
            (NEW_DESTINATION | SET_DESTINATION, Some(_)) if !is_complete(attributes, 2, 1..=6) => {
                return refused(libc::EINVAL);
            }
            (SET_DESTINATION | DELETE_DESTINATION, Some(found)) if !destinations.contains_key(&found.target) => {
                return refused(libc::ENOENT);
            }
            (DELETE_DESTINATION, Some(found)) => drop(destinations.remove(&found.target)),
            (_, Some(found)) => drop(destinations.insert(found.target, found.weight)),
        }
        Ok(Vec::new())
    }

    fn links(&mut self, kind: u16, _flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut held = self.0.lock().unwrap();
        let address = || message::read_link_address(body).unwrap().1;
        match kind {
            NEW_LINK => held.link = true,
            GET_LINK if !held.link => return refused(libc::ENODEV),
            GET_LINK => return Ok(vec![[&[0; 4][..], &7u32.to_ne_bytes(), &[0; 8]].concat()]),
            GET_ADDRESS => {
                return Ok(held.addresses.iter().map(|address| message::link_address(7, *address)).collect());
            }
            NEW_ADDRESS => {
                let address = address();
                assert!(held.services.keys().any(|service| service.address == address), "no Service serves {address}");
                held.addresses.insert(address);
            }
            DELETE_ADDRESS if !held.addresses.remove(&address()) => return refused(libc::EADDRNOTAVAIL),
            _ => {}
        }
        // The node would take the packets to an address that no Service serves.
        for address in &held.addresses {
            assert!(held.services.keys().any(|service| service.address == *address), "no Service serves {address}");
        }
        Ok(Vec::new())
    }
}

/// Returns the wanted state of one Service: ports of its own address, affinity, and endpoints.
fn wanted_ports(number: u8, ports: &[(u16, u8)], affinity: Option<u32>) -> Vec<Wanted> {
    let wanted = |(port, endpoints): &(u16, u8)| {
        let protocol = if port % 2 == 0 { Protocol::Udp } else { Protocol::Tcp };
        let service = Virtual { address: [10, 96, 0, number].into(), port: *port, protocol };
        let endpoints = (0..*endpoints).map(|last| ([10, 244, 0, last].into(), 8080)).collect();
        Wanted { service, affinity, endpoints }
    };
    ports.iter().filter(|(_, endpoints)| *endpoints > 0).map(wanted).collect()
}

fn key(number: u8) -> ServiceKey {
    ServiceKey { namespace: "default".to_owned(), name: format!("s{number}") }
}

/// Returns the destinations that the kernel should serve: those with a weight.
fn serving(held: &Held) -> BTreeMap<Virtual, (u32, BTreeSet<Target>)> {
    let positive =
        |all: &Destinations| all.iter().filter(|(_, weight)| **weight > 0).map(|(target, _)| *target).collect();
    held.services.iter().map(|(service, (timeout, all))| (*service, (*timeout, positive(all)))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Services are added, changed and deleted, the proxy restarts and another program deletes everything, in any
    /// order.
    #[test]
    fn the_kernel_ends_in_the_wanted_state(
        steps in prop::collection::vec(
            (0u8..4, prop::collection::btree_map(80u16..84, 0u8..4, 0..3), prop::option::of(1u32..3), 0u8..8), 1..30)
    ) {
        let kernel = Memory::default();
        let mut ipvs = Ipvs::with(IpFamily::V4, Box::new(kernel.clone())).unwrap();
        let mut wanted: BTreeMap<u8, Vec<Wanted>> = BTreeMap::new();
        for (number, ports, affinity, event) in steps {
            let ports: Vec<(u16, u8)> = ports.into_iter().collect();
            wanted.insert(number, wanted_ports(number, &ports, affinity));
            let mut replace_all = event == 0;
            match event {
                0 => ipvs = Ipvs::with(IpFamily::V4, Box::new(kernel.clone())).unwrap(),
                1 => {
                    let mut held = kernel.0.lock().unwrap();
                    (held.addresses, held.services) = Default::default();
                    drop(held);
                    replace_all = !ipvs.check().unwrap();
                }
                _ => prop_assert!(ipvs.check().unwrap(), "no other program changed anything"),
            }
            for (known, wanted_ports) in wanted.iter().filter(|(known, _)| replace_all || **known == number) {
                ipvs.replace(&key(*known), wanted_ports).unwrap();
            }
            ipvs.finish().unwrap();
            let expected: BTreeMap<_, _> = wanted.values().flatten()
                .map(|port| {
                    (port.service, (port.affinity.unwrap_or(0), port.endpoints.iter().copied().collect::<BTreeSet<_>>()))
                })
                .collect();
            let held = kernel.0.lock().unwrap();
            prop_assert_eq!(serving(&held), expected);
            let addresses: BTreeSet<IpAddr> = held.services.keys().map(|service| service.address).collect();
            prop_assert_eq!(&held.addresses, &addresses);
        }
    }
}

#[test]
fn an_endpoint_is_removed_with_its_last_connection_and_one_of_udp_at_once() {
    let kernel = Memory::default();
    let mut ipvs = Ipvs::with(IpFamily::V4, Box::new(kernel.clone())).unwrap();
    ipvs.replace(&key(1), &wanted_ports(1, &[(80, 2), (81, 2)], None)).unwrap();
    let ignore_missing: Target = ([10, 244, 0, 1].into(), 8080);
    let of = |port: u16| *kernel.0.lock().unwrap().services.keys().find(|service| service.port == port).unwrap();
    let weight = |port: u16| {
        let service = of(port);
        kernel.0.lock().unwrap().services[&service].1.get(&ignore_missing).copied()
    };
    let tcp = 81;
    let udp = 80;
    let connection = (of(tcp), ignore_missing);
    kernel.0.lock().unwrap().connections.insert(connection, 1);
    ipvs.replace(&key(1), &wanted_ports(1, &[(80, 1), (81, 1)], None)).unwrap();
    assert_eq!((weight(udp), weight(tcp)), (None, Some(0)));
    assert!(ipvs.check().unwrap());
    assert_eq!(weight(tcp), Some(0), "it has a connection");
    kernel.0.lock().unwrap().connections.clear();
    assert!(ipvs.check().unwrap());
    assert_eq!(weight(tcp), None);
    let before = kernel.0.lock().unwrap().commands;
    ipvs.replace(&key(1), &wanted_ports(1, &[(80, 1), (81, 1)], None)).unwrap();
    assert_eq!(kernel.0.lock().unwrap().commands, before, "an existing destination is not set again");
}

#[test]
fn the_kernel_has_ipvs_or_the_error_names_it() {
    match supports_ipvs() {
        Ok(()) => {}
        Err(Error::NoIpvs(reason)) => assert_eq!(reason.raw_os_error(), Some(libc::ENOENT)),
        Err(other) => panic!("{other}"),
    }
}
