//! The messages of the kernel's family `IPVS`, and of the link that holds the addresses; pure. Numbers are of
//! `linux/ip_vs.h`, `linux/if_link.h` and `linux/if_addr.h`; those of the first are in native byte order, but addresses
//! and ports in network byte order.

use std::net::IpAddr;

use corten_nftables::{NESTED, Protocol, attributes, find, put};

use crate::rules::Target;

const COMMAND_SERVICE: u16 = 1;
const COMMAND_DESTINATION: u16 = 2;
const SERVICE_FAMILY: u16 = 1;
const SERVICE_PROTOCOL: u16 = 2;
const SERVICE_ADDRESS: u16 = 3;
const SERVICE_PORT: u16 = 4;
const SERVICE_SCHEDULER: u16 = 6;
const SERVICE_FLAGS: u16 = 7;
const SERVICE_TIMEOUT: u16 = 8;
const SERVICE_NETMASK: u16 = 9;
const DESTINATION_ADDRESS: u16 = 1;
const DESTINATION_PORT: u16 = 2;
const DESTINATION_METHOD: u16 = 3;
const DESTINATION_WEIGHT: u16 = 4;
const DESTINATION_UPPER: u16 = 5;
const DESTINATION_LOWER: u16 = 6;
const DESTINATION_ACTIVE: u16 = 7;
const DESTINATION_INACTIVE: u16 = 8;
const DESTINATION_FAMILY: u16 = 11;
/// The flag of Services whose clients stay with their endpoint.
const PERSISTENT: u32 = 1;
/// Round robin; a destination of weight 0 gets no connections.
const SCHEDULER: &[u8] = b"rr\0";
/// Translation, which the kernel calls masquerading.
const TRANSLATE: u32 = 0;

const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const LINK_KIND: u16 = 1;
const ADDRESS: u16 = 1;
const ADDRESS_LOCAL: u16 = 2;
/// The flag that skips duplicate address detection: no other host has the address.
const NO_DETECTION: u8 = 2;

/// An address that IPVS serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Virtual {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
}

/// The kernel's state of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub target: Target,
    pub weight: u32,
    pub connections: u32,
}

fn family(address: IpAddr) -> u16 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u16
}

/// Encodes an address as the kernel's union of both families.
fn union(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}

fn named(service: &Virtual) -> Vec<u8> {
    let mut named = Vec::new();
    put(&mut named, SERVICE_FAMILY, &family(service.address).to_ne_bytes());
    put(&mut named, SERVICE_PROTOCOL, &(service.protocol as u16).to_ne_bytes());
    put(&mut named, SERVICE_ADDRESS, &union(service.address));
    put(&mut named, SERVICE_PORT, &service.port.to_be_bytes());
    named
}

/// Makes a message that names a Service.
pub(super) fn service_key(service: &Virtual) -> Vec<u8> {
    let mut message = Vec::new();
    put(&mut message, COMMAND_SERVICE | NESTED, &named(service));
    message
}

/// Makes a complete Service; `affinity` is the number of seconds that a client stays with its endpoint.
pub(super) fn service(service: &Virtual, affinity: Option<u32>) -> Vec<u8> {
    let mut nested = named(service);
    let flags = if affinity.is_some() { PERSISTENT } else { 0 };
    // A client is one address: for IPv4 that is a mask, for IPv6 a length.
    let netmask = if service.address.is_ipv4() { u32::MAX } else { 128 };
    put(&mut nested, SERVICE_SCHEDULER, SCHEDULER);
    put(&mut nested, SERVICE_FLAGS, &[flags.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat());
    put(&mut nested, SERVICE_TIMEOUT, &affinity.unwrap_or(0).to_ne_bytes());
    put(&mut nested, SERVICE_NETMASK, &netmask.to_ne_bytes());
    let mut message = Vec::new();
    put(&mut message, COMMAND_SERVICE | NESTED, &nested);
    message
}

/// Makes a destination of a Service.
pub(super) fn destination(service: &Virtual, (address, port): Target, weight: u32) -> Vec<u8> {
    let mut nested = Vec::new();
    put(&mut nested, DESTINATION_ADDRESS, &union(address));
    put(&mut nested, DESTINATION_PORT, &port.to_be_bytes());
    put(&mut nested, DESTINATION_METHOD, &TRANSLATE.to_ne_bytes());
    put(&mut nested, DESTINATION_WEIGHT, &weight.to_ne_bytes());
    put(&mut nested, DESTINATION_UPPER, &[0; 4]);
    put(&mut nested, DESTINATION_LOWER, &[0; 4]);
    put(&mut nested, DESTINATION_FAMILY, &family(address).to_ne_bytes());
    let mut message = service_key(service);
    put(&mut message, COMMAND_DESTINATION | NESTED, &nested);
    message
}

fn short(bytes: &[u8], kind: u16) -> Option<[u8; 2]> {
    find(bytes, kind)?.try_into().ok()
}

fn number(bytes: &[u8], kind: u16) -> Option<u32> {
    find(bytes, kind)?.try_into().ok().map(u32::from_ne_bytes)
}

fn address(bytes: &[u8], ipv4: bool) -> Option<IpAddr> {
    match ipv4 {
        true => Some(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?.into()),
        false => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
    }
}

/// Reads a Service of the kernel; returns `None` for one of a mark or of another protocol, which is not ours.
pub(crate) fn read_service(answer: &[u8]) -> Option<Virtual> {
    let body = find(answer, COMMAND_SERVICE)?;
    let ipv4 = u16::from_ne_bytes(short(body, SERVICE_FAMILY)?) == libc::AF_INET as u16;
    let protocol = u16::from_ne_bytes(short(body, SERVICE_PROTOCOL)?);
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    Some(Virtual {
        address: address(find(body, SERVICE_ADDRESS)?, ipv4)?,
        protocol: all.into_iter().find(|known| *known as u16 == protocol)?,
        port: u16::from_be_bytes(short(body, SERVICE_PORT)?),
    })
}

/// Reads a destination of a Service of this family.
pub(crate) fn read_destination(answer: &[u8], ipv4: bool) -> Option<Destination> {
    let body = find(answer, COMMAND_DESTINATION)?;
    let port = u16::from_be_bytes(short(body, DESTINATION_PORT)?);
    let connections = [DESTINATION_ACTIVE, DESTINATION_INACTIVE].map(|kind| number(body, kind).unwrap_or(0));
    Some(Destination {
        target: (address(find(body, DESTINATION_ADDRESS)?, ipv4)?, port),
        weight: number(body, DESTINATION_WEIGHT)?,
        connections: connections[0].saturating_add(connections[1]),
    })
}

/// Makes a message for a link that is up: its name, and the kind of a new one.
pub(super) fn link(name: &str, kind: Option<&str>) -> Vec<u8> {
    let flags = kind.map_or(0, |_| libc::IFF_UP as u32).to_ne_bytes();
    let mut message = [&[0; 8][..], &flags, &flags].concat();
    put(&mut message, LINK_NAME, &[name.as_bytes(), &[0]].concat());
    if let Some(kind) = kind {
        let mut info = Vec::new();
        put(&mut info, LINK_KIND, kind.as_bytes());
        put(&mut message, LINK_INFO | NESTED, &info);
    }
    message
}

/// Reads the index of a link.
pub(crate) fn read_link(answer: &[u8]) -> Option<u32> {
    answer.get(4..8)?.try_into().ok().map(u32::from_ne_bytes)
}

/// Makes a message for a single address of a link.
pub(super) fn link_address(index: u32, address: IpAddr) -> Vec<u8> {
    let bytes = union(address);
    let (length, flags, bytes) = match address {
        IpAddr::V4(_) => (32, 0, &bytes[..4]),
        IpAddr::V6(_) => (128, NO_DETECTION, &bytes[..]),
    };
    let mut message = [&[family(address) as u8, length, flags, 0][..], &index.to_ne_bytes()].concat();
    put(&mut message, ADDRESS_LOCAL, bytes);
    put(&mut message, ADDRESS, bytes);
    message
}

/// Reads the link and the address of an address message.
pub(crate) fn read_link_address(answer: &[u8]) -> Option<(u32, IpAddr)> {
    let ipv4 = i32::from(*answer.first()?) == libc::AF_INET;
    let index = answer.get(4..8)?.try_into().ok().map(u32::from_ne_bytes)?;
    let body = answer.get(8..)?;
    // IPv6 has a local address only where there is another end.
    let bytes = attributes(body).find(|(kind, _)| *kind == ADDRESS)?.1;
    Some((index, address(bytes, ipv4)?))
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;

    fn hexadecimal(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn example(address: &str) -> Virtual {
        Virtual { address: address.parse().unwrap(), protocol: Protocol::Tcp, port: 80 }
    }

    /// The attributes that name 10.96.0.1:80 of TCP: AF_INET, 6, the union of addresses, 80 in network byte order.
    const NAMED: &str = "060001000200000006000200060000001400030\
        00a60000100000000000000000000000006000400005\
        00000";

    #[test]
    fn services_have_the_kernels_format() {
        let virtual_service = example("10.96.0.1");
        assert_eq!(hexadecimal(&service_key(&virtual_service)), format!("30000180{NAMED}"));
        let plain = "07000600727200000c00070000000000ffffffff080008000000000008000900ffffffff";
        assert_eq!(hexadecimal(&service(&virtual_service, None)), format!("54000180{NAMED}{plain}"));
        let sticky = "07000600727200000c00070001000000ffffffff08000800302a000008000900ffffffff";
        assert_eq!(hexadecimal(&service(&virtual_service, Some(10_800))), format!("54000180{NAMED}{sticky}"));
        let six = hexadecimal(&service(&example("fd00::1"), None));
        assert!(six.starts_with("54000180060001000a000000"), "{six}");
        assert!(six.ends_with("0800090080000000"), "IPv6 counts the bits of a client: {six}");
    }

    #[test]
    fn destinations_have_the_kernels_format() {
        let written = destination(&example("10.96.0.1"), ("10.244.0.5".parse().unwrap(), 8080), 1);
        let nested = "140001000af400050000000000000000000000000600020\
            01f900000080003000000000008000400010000000800050000000000080006000000000006000b0002000000";
        assert_eq!(hexadecimal(&written), format!("30000180{NAMED}48000280{nested}"));
    }

    #[test]
    fn written_messages_are_read_back() {
        for address in ["10.96.0.1", "fd00::1"] {
            let virtual_service = example(address);
            let written = service(&virtual_service, None);
            assert_eq!(read_service(&written), Some(virtual_service));
            let target = (virtual_service.address, 8080);
            let destination = destination(&virtual_service, target, 1);
            let read = read_destination(&destination, address.contains('.'));
            assert_eq!(read, Some(Destination { target, weight: 1, connections: 0 }));
            let written = link_address(7, target.0);
            assert_eq!(read_link_address(&written), Some((7, target.0)));
            for length in 0..destination.len() {
                let _ = (read_service(&destination[..length]), read_destination(&destination[..length], true));
                let _ = read_link_address(&destination[..length]);
            }
        }
        let marked = [&[8, 0, 1, 0x80][..], &[4, 0, 5, 0]].concat();
        assert_eq!(read_service(&marked), None, "a Service of a mark is not ours");
    }

    #[test]
    fn the_link_is_made_with_its_kind_and_up() {
        let made = hexadecimal(&link("kube-ipvs0", Some("dummy")));
        let header = "00000000000000000100000001000000";
        assert_eq!(made, format!("{header}0f0003006b7562652d69707673300000100012800900010064756d6d79000000"));
        assert_eq!(
            hexadecimal(&link("kube-ipvs0", None)),
            format!("{}0f0003006b7562652d69707673300000", "00".repeat(16))
        );
        let address = hexadecimal(&link_address(7, "10.96.0.1".parse().unwrap()));
        assert_eq!(address, "0220000007000000080002000a600001080001000a600001");
    }
}
