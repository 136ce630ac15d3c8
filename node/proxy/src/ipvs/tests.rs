//! A kernel with IPVS that stands in memory: it reads the messages by the header's numbers, and refuses what the real one
//! refuses. Whatever is said to it, it ends with what is wanted, and never serves an address that nobody serves.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use corten_nftables::find;

type Destinations = BTreeMap<Target, u32>;

/// What the kernel holds.
#[derive(Default, Debug)]
struct Held {
    services: BTreeMap<Virtual, (u32, Destinations)>,
    addresses: BTreeSet<IpAddr>,
    link: bool,
    /// Connections of each destination.
    connections: BTreeMap<(Virtual, Target), u32>,
    commands: usize,
}

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Held>>);

fn refused(code: i32) -> io::Result<Vec<Vec<u8>>> {
    Err(io::Error::from_raw_os_error(code))
}

/// The attributes that a whole Service or destination must have, or it is invalid.
fn is_whole(attributes: &[u8], nest: u16, kinds: std::ops::RangeInclusive<u16>) -> bool {
    let nested = find(attributes, nest).unwrap_or_default();
    kinds.filter(|kind| !(nest == 1 && *kind == 5)).all(|kind| find(nested, kind).is_some())
}

impl Kernel for Memory {
    fn ipvs(&mut self, command: u8, _flags: u16, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut held = self.0.lock().unwrap();
        held.commands += 1;
        if command == GET_SERVICE {
            return Ok(held.services.keys().map(message::about).collect());
        }
        let Some(service) = message::read_service(attributes) else { return refused(libc::EINVAL) };
        if command == NEW_SERVICE || command == SET_SERVICE {
            if !is_whole(attributes, 1, 1..=9) {
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
        let told = message::read_destination(attributes, service.address.is_ipv4());
        match (command, told) {
            (DELETE_SERVICE, _) => drop(held.services.remove(&service)),
            (GET_DESTINATION, _) => {
                let told = |(target, weight): (&Target, &u32)| {
                    let mut answer = message::destination(&service, *target, *weight);
                    let active = connections.get(&(service, *target)).copied().unwrap_or(0).to_ne_bytes();
                    // The nested attributes are the last; one more makes them longer.
                    let at = message::about(&service).len();
                    answer.extend([&[8, 0, 7, 0][..], &active].concat());
                    let length = (answer.len() - at) as u16;
                    answer[at..at + 2].copy_from_slice(&length.to_ne_bytes());
                    answer
                };
                return Ok(destinations.iter().map(told).collect());
            }
            (_, None) => return refused(libc::EINVAL),
            (NEW_DESTINATION, Some(told)) if destinations.contains_key(&told.target) => return refused(libc::EEXIST),
            (NEW_DESTINATION | SET_DESTINATION, Some(_)) if !is_whole(attributes, 2, 1..=6) => {
                return refused(libc::EINVAL);
            }
            (SET_DESTINATION | DELETE_DESTINATION, Some(told)) if !destinations.contains_key(&told.target) => {
                return refused(libc::ENOENT);
            }
            (DELETE_DESTINATION, Some(told)) => drop(destinations.remove(&told.target)),
            (_, Some(told)) => drop(destinations.insert(told.target, told.weight)),
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
                assert!(held.services.keys().any(|service| service.address == address), "who would serve {address}?");
                held.addresses.insert(address);
            }
            DELETE_ADDRESS if !held.addresses.remove(&address()) => return refused(libc::EADDRNOTAVAIL),
            _ => {}
        }
        // Whatever comes to an address that nobody serves would be the node's.
        for address in &held.addresses {
            assert!(held.services.keys().any(|service| service.address == *address), "{address} is nobody's");
        }
        Ok(Vec::new())
    }
}

/// The wants of one Service: ports of its own address, how long clients stay, and who serves.
fn wants(number: u8, ports: &[(u16, u8)], affinity: Option<u32>) -> Vec<Wanted> {
    let want = |(port, endpoints): &(u16, u8)| {
        let protocol = if port % 2 == 0 { Protocol::Udp } else { Protocol::Tcp };
        let service = Virtual { address: [10, 96, 0, number].into(), port: *port, protocol };
        (service, affinity, (0..*endpoints).map(|last| ([10, 244, 0, last].into(), 8080)).collect())
    };
    ports.iter().filter(|(_, endpoints)| *endpoints > 0).map(want).collect()
}

fn key(number: u8) -> ServiceKey {
    ServiceKey { namespace: "default".to_owned(), name: format!("s{number}") }
}

/// What the kernel should serve: those with a weight.
fn serving(held: &Held) -> BTreeMap<Virtual, (u32, BTreeSet<Target>)> {
    let positive =
        |all: &Destinations| all.iter().filter(|(_, weight)| **weight > 0).map(|(target, _)| *target).collect();
    held.services.iter().map(|(service, (timeout, all))| (*service, (*timeout, positive(all)))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Services come, change and go, the proxy restarts and somebody takes everything away, in any order.
    #[test]
    fn the_kernel_ends_with_what_is_wanted(
        steps in prop::collection::vec(
            (0u8..4, prop::collection::btree_map(80u16..84, 0u8..4, 0..3), prop::option::of(1u32..3), 0u8..8), 1..30)
    ) {
        let kernel = Memory::default();
        let mut ipvs = Ipvs::with(IpVersion::V4, Box::new(kernel.clone())).unwrap();
        let mut wanted: BTreeMap<u8, Vec<Wanted>> = BTreeMap::new();
        for (number, ports, affinity, event) in steps {
            let ports: Vec<(u16, u8)> = ports.into_iter().collect();
            wanted.insert(number, wants(number, &ports, affinity));
            let mut say_all = event == 0;
            match event {
                0 => ipvs = Ipvs::with(IpVersion::V4, Box::new(kernel.clone())).unwrap(),
                1 => {
                    let mut held = kernel.0.lock().unwrap();
                    (held.addresses, held.services) = Default::default();
                    drop(held);
                    say_all = !ipvs.check().unwrap();
                }
                _ => prop_assert!(ipvs.check().unwrap(), "nobody else changed anything"),
            }
            for (known, wants) in wanted.iter().filter(|(known, _)| say_all || **known == number) {
                ipvs.replace(&key(*known), wants).unwrap();
            }
            ipvs.finish().unwrap();
            let expected: BTreeMap<_, _> = wanted.values().flatten()
                .map(|(service, affinity, targets)| {
                    (*service, (affinity.unwrap_or(0), targets.iter().copied().collect::<BTreeSet<_>>()))
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
fn an_endpoint_leaves_with_its_last_connection_and_one_of_udp_at_once() {
    let kernel = Memory::default();
    let mut ipvs = Ipvs::with(IpVersion::V4, Box::new(kernel.clone())).unwrap();
    ipvs.replace(&key(1), &wants(1, &[(80, 2), (81, 2)], None)).unwrap();
    let gone: Target = ([10, 244, 0, 1].into(), 8080);
    let of = |port: u16| *kernel.0.lock().unwrap().services.keys().find(|service| service.port == port).unwrap();
    let weight = |port: u16| {
        let service = of(port);
        kernel.0.lock().unwrap().services[&service].1.get(&gone).copied()
    };
    let (tcp, udp) = (81, 80);
    let connection = (of(tcp), gone);
    kernel.0.lock().unwrap().connections.insert(connection, 1);
    ipvs.replace(&key(1), &wants(1, &[(80, 1), (81, 1)], None)).unwrap();
    assert_eq!((weight(udp), weight(tcp)), (None, Some(0)));
    assert!(ipvs.check().unwrap());
    assert_eq!(weight(tcp), Some(0), "it has a connection");
    kernel.0.lock().unwrap().connections.clear();
    assert!(ipvs.check().unwrap());
    assert_eq!(weight(tcp), None);
    let before = kernel.0.lock().unwrap().commands;
    ipvs.replace(&key(1), &wants(1, &[(80, 1), (81, 1)], None)).unwrap();
    assert_eq!(kernel.0.lock().unwrap().commands, before, "what stands is not said again");
}

#[test]
fn the_kernel_has_it_or_the_refusal_says_so() {
    match supports_ipvs() {
        Ok(()) => {}
        Err(Error::NoIpvs(reason)) => assert_eq!(reason.raw_os_error(), Some(libc::ENOENT)),
        Err(other) => panic!("{other}"),
    }
}
