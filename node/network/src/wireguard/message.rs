//! The messages of the kernel's family `wireguard`; pure. Numbers are of `linux/wireguard.h`, in native byte order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use corten_nftables::{NESTED, attributes, find, put};

use crate::cidr::Cidr;

/// The port where nodes listen.
pub const PORT: u16 = 51820;

const DEVICE_INDEX: u16 = 1;
const DEVICE_PRIVATE_KEY: u16 = 3;
const DEVICE_PUBLIC_KEY: u16 = 4;
const DEVICE_PORT: u16 = 6;
const DEVICE_PEERS: u16 = 8;
const PEER_PUBLIC_KEY: u16 = 1;
const PEER_FLAGS: u16 = 3;
const PEER_ENDPOINT: u16 = 4;
const PEER_RANGES: u16 = 9;
const RANGE_FAMILY: u16 = 1;
const RANGE_ADDRESS: u16 = 2;
const RANGE_LENGTH: u16 = 3;
const REMOVE_PEER: u32 = 1;
const REPLACE_RANGES: u32 = 2;

/// A public or a private key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub(crate) [u8; 32]);

impl Key {
    /// Parses the hexadecimal digits that nodes publish.
    pub fn parse(digits: &str) -> Option<Key> {
        let mut key = [0; 32];
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (index, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Key(key))
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It may be a private one.
        f.write_str("Key")
    }
}

/// A tunnel to another node: its key, its address, and the ranges that it may send from and receives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tunnel {
    pub key: Key,
    pub node: IpAddr,
    pub ranges: Vec<Cidr>,
}

/// The kernel's state of a device; a device with many peers comes in several parts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub public_key: Option<Key>,
    pub tunnels: Vec<Tunnel>,
}

pub(super) fn for_device(link: u32) -> Vec<u8> {
    let mut message = Vec::new();
    put(&mut message, DEVICE_INDEX, &link.to_ne_bytes());
    message
}

/// Makes a message that sets a device's own key and port.
pub(super) fn own(link: u32, private: &Key) -> Vec<u8> {
    let mut message = for_device(link);
    put(&mut message, DEVICE_PRIVATE_KEY, &private.0);
    put(&mut message, DEVICE_PORT, &PORT.to_ne_bytes());
    message
}

/// Makes a message that adds a tunnel, or removes it.
pub(super) fn tunnel(link: u32, tunnel: &Tunnel, exists: bool) -> Vec<u8> {
    let mut peer = Vec::new();
    put(&mut peer, PEER_PUBLIC_KEY, &tunnel.key.0);
    put(&mut peer, PEER_FLAGS, &if exists { REPLACE_RANGES } else { REMOVE_PEER }.to_ne_bytes());
    if exists {
        put(&mut peer, PEER_ENDPOINT, &endpoint(tunnel.node));
        let mut ranges = Vec::new();
        for range in &tunnel.ranges {
            put(&mut ranges, NESTED, &range_of(range));
        }
        put(&mut peer, PEER_RANGES | NESTED, &ranges);
    }
    let mut peers = Vec::new();
    let mut message = for_device(link);
    put(&mut peers, NESTED, &peer);
    put(&mut message, DEVICE_PEERS | NESTED, &peers);
    message
}

fn range_of(range: &Cidr) -> Vec<u8> {
    let (family, address) = family_and_bytes(range.address());
    let mut message = Vec::new();
    put(&mut message, RANGE_FAMILY, &family.to_ne_bytes());
    put(&mut message, RANGE_ADDRESS, &address);
    put(&mut message, RANGE_LENGTH, &[range.length()]);
    message
}

fn family_and_bytes(address: IpAddr) -> (u16, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (nix::libc::AF_INET as u16, address.octets().to_vec()),
        IpAddr::V6(address) => (nix::libc::AF_INET6 as u16, address.octets().to_vec()),
    }
}

/// Encodes a `sockaddr_in` or `sockaddr_in6`.
fn endpoint(node: IpAddr) -> Vec<u8> {
    let (family, address) = family_and_bytes(node);
    let mut bytes = [family.to_ne_bytes(), PORT.to_be_bytes()].concat();
    match node {
        IpAddr::V4(_) => bytes.extend([&address[..], &[0; 8]].concat()),
        IpAddr::V6(_) => bytes.extend([&[0; 4], &address[..], &[0; 4]].concat()),
    }
    bytes
}

/// Reads one part of the kernel's state of a device, and adds it to the device. A peer that has no endpoint, or one
/// that none of ours could have, gets no ranges, so that it is made anew or removed.
pub(crate) fn read(part: &[u8], device: &mut Device) {
    let key = |bytes: &[u8]| bytes.try_into().ok().map(Key);
    device.public_key = device.public_key.or_else(|| find(part, DEVICE_PUBLIC_KEY).and_then(key));
    for (_, peer) in find(part, DEVICE_PEERS).into_iter().flat_map(attributes) {
        let Some(key) = find(peer, PEER_PUBLIC_KEY).and_then(key) else { continue };
        let node = find(peer, PEER_ENDPOINT).and_then(node_of).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let ranges = find(peer, PEER_RANGES).into_iter().flat_map(attributes);
        let mut ranges: Vec<Cidr> = ranges.filter_map(|(_, range)| cidr_of(range)).collect();
        ranges.sort_unstable();
        // A peer whose ranges do not fit one part goes on in the next.
        match device.tunnels.iter_mut().find(|known| known.key == key) {
            Some(known) => {
                known.ranges.extend(ranges);
                known.ranges.sort_unstable();
            }
            None => device.tunnels.push(Tunnel { key, node, ranges }),
        }
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)));
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)))).ok()
}

fn node_of(endpoint: &[u8]) -> Option<IpAddr> {
    ip(if endpoint.len() == 16 { endpoint.get(4..8)? } else { endpoint.get(8..24)? })
}

fn cidr_of(range: &[u8]) -> Option<Cidr> {
    Cidr::new(ip(find(range, RANGE_ADDRESS)?)?, *find(range, RANGE_LENGTH)?.first()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(node: &str) -> Tunnel {
        let ranges = ["10.244.1.0/24", "fd00:1::/64"].map(|range| range.parse().unwrap());
        Tunnel { key: Key([7; 32]), node: node.parse().unwrap(), ranges: ranges.to_vec() }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_tunnel_has_the_kernels_format() {
        let encoded: String = tunnel(3, &example("192.0.2.7"), true).iter().map(|byte| format!("{byte:02x}")).collect();
        let index = "0800010003000000";
        let key = "07".repeat(32);
        let endpoint = "140004000200ca6cc00002070000000000000000";
        let four = "1c0000800600010002000000080002000af401000500030018000000";
        let six = "28000080060001000a00000014000200fd000001000000000000000000000000".to_owned() + "0500030040000000";
        let peer = format!("24000100{key}0800030002000000{endpoint}48000980{four}{six}");
        assert_eq!(encoded, format!("{index}90000880{}0080{peer}", "8c00"));
        let gone: String = tunnel(3, &example("192.0.2.7"), false).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(gone, format!("{index}340008803000008024000100{key}0800030001000000"));
    }

    #[test]
    fn a_written_device_is_read_back_also_in_parts() {
        for node in ["192.0.2.7", "2001:db8::7"] {
            let mut device = Device::default();
            let mut part = tunnel(3, &example(node), true);
            put(&mut part, DEVICE_PUBLIC_KEY, &[9; 32]);
            read(&part, &mut device);
            assert_eq!(device, Device { public_key: Some(Key([9; 32])), tunnels: vec![example(node)] });
            let more = Tunnel { ranges: vec!["10.1.0.0/16".parse().unwrap()], ..example(node) };
            read(&tunnel(3, &more, true), &mut device);
            assert_eq!(device.tunnels.len(), 1);
            assert_eq!(device.tunnels[0].ranges.len(), 3);
        }
        let message = tunnel(3, &example("192.0.2.7"), true);
        for length in 0..message.len() {
            read(&message[..length], &mut Device::default());
        }
    }

    #[test]
    fn keys_are_hexadecimal() {
        let digits = "0a".repeat(32);
        assert_eq!(Key::parse(&digits).map(|key| key.to_string()), Some(digits));
        for bad in ["", "0a", &"0g".repeat(32), &"é".repeat(32)] {
            assert_eq!(Key::parse(bad), None, "{bad}");
        }
    }
}
