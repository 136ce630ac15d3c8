//! Gratuitous ARP and unsolicited neighbour advertisements: the frames by which neighbours learn that an address has
//! moved.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::links::Uplink;

const BROADCAST: [u8; 6] = [0xff; 6];
/// The multicast group of all nodes of a link, as a hardware address and as an address.
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ICMPV6: u8 = 58;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// The flag by which the advertisement overrides a neighbour's cache.
const OVERRIDE: u8 = 0x20;

/// Announces to the neighbours on a link that these addresses are here.
pub(crate) fn announce(uplink: &Uplink, addresses: &[IpAddr]) -> io::Result<()> {
    // SAFETY: socket takes no pointers; the descriptor is checked before it is owned.
    let descriptor =
        unsafe { nix::libc::socket(nix::libc::AF_PACKET, nix::libc::SOCK_RAW | nix::libc::SOCK_CLOEXEC, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // SAFETY: a sockaddr_ll is plain old data, for which all zeros is a value.
    let mut to: nix::libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = nix::libc::AF_PACKET as u16;
    to.sll_ifindex = uplink.index as i32;
    to.sll_halen = 6;
    for address in addresses {
        let frame = match address {
            IpAddr::V4(address) => arp(uplink.mac, *address),
            IpAddr::V6(address) => advertisement(uplink.mac, *address),
        };
        to.sll_addr[..6].copy_from_slice(&frame[..6]);
        // SAFETY: the frame and the address live until the call returns, and their lengths are their own.
        let sent = unsafe {
            nix::libc::sendto(
                socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                std::ptr::from_ref(&to).cast(),
                std::mem::size_of_val(&to) as nix::libc::socklen_t,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Makes an ARP request of an address for itself, sent by broadcast.
fn arp(mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let mut frame = [&BROADCAST[..], &mac, &[0x08, 0x06]].concat();
    // Ethernet, IPv4, the lengths of their addresses, a request.
    frame.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&address.octets());
    frame.extend_from_slice(&[0; 6]);
    frame.extend_from_slice(&address.octets());
    frame
}

/// Makes an unsolicited neighbour advertisement, to all nodes of the link.
fn advertisement(mac: [u8; 6], address: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend_from_slice(&address.octets());
    // The option of the target's hardware address: type, length in units of eight bytes, address.
    message.extend_from_slice(&[2, 1]);
    message.extend_from_slice(&mac);
    let length = message.len() as u8;
    let pseudo = [&address.octets()[..], &ALL_NODES.octets(), &[0, 0, 0, length, 0, 0, 0, ICMPV6], &message].concat();
    message[2..4].copy_from_slice(&checksum(&pseudo).to_be_bytes());

    let mut frame = [&ALL_NODES_MAC[..], &mac, &[0x86, 0xdd]].concat();
    // Version 6, the length of the payload, its protocol, and the hop limit that proves a neighbour.
    frame.extend_from_slice(&[0x60, 0, 0, 0, 0, length, ICMPV6, 255]);
    frame.extend_from_slice(&address.octets());
    frame.extend_from_slice(&ALL_NODES.octets());
    frame.extend_from_slice(&message);
    frame
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    #[test]
    fn a_frame_announces_an_address_by_broadcast() {
        let frame = arp(MAC, Ipv4Addr::new(192, 0, 2, 7));
        assert_eq!(frame.len(), 42);
        assert_eq!(frame[..6], [0xff; 6]);
        assert_eq!(frame[12..14], [0x08, 0x06]);
        assert_eq!((&frame[28..32], &frame[38..42]), (&[192, 0, 2, 7][..], &[192, 0, 2, 7][..]));
    }

    #[test]
    fn an_advertisement_is_complete_and_has_a_valid_checksum() {
        let address: Ipv6Addr = "2001:db8::7".parse().unwrap();
        let frame = advertisement(MAC, address);
        assert_eq!((frame.len(), frame[21]), (14 + 40 + 32, 255));
        let message = &frame[54..];
        let pseudo = [&address.octets()[..], &ALL_NODES.octets(), &[0, 0, 0, 32, 0, 0, 0, ICMPV6], message].concat();
        assert_eq!(checksum(&pseudo), 0, "the sum over a valid checksum is zero");
        assert_eq!(message[26..], MAC);
    }
}
