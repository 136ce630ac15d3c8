//! Gratuitous ARP: the frame by which neighbours learn that an address has moved.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A link on which neighbours are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uplink {
    pub index: u32,
    pub mac: [u8; 6],
}

const BROADCAST: [u8; 6] = [0xff; 6];

/// Tells the neighbours on a link that these addresses are here.
pub(crate) fn announce(uplink: &Uplink, addresses: &[Ipv4Addr]) -> io::Result<()> {
    let protocol = (libc_arp()).to_be();
    // SAFETY: socket takes no pointers; the descriptor is checked before it is owned.
    let descriptor = unsafe {
        nix::libc::socket(nix::libc::AF_PACKET, nix::libc::SOCK_RAW | nix::libc::SOCK_CLOEXEC, i32::from(protocol))
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // SAFETY: a sockaddr_ll is plain old data, for which all zeros is a value.
    let mut to: nix::libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = nix::libc::AF_PACKET as u16;
    to.sll_protocol = protocol;
    to.sll_ifindex = uplink.index as i32;
    to.sll_halen = 6;
    to.sll_addr[..6].copy_from_slice(&BROADCAST);
    for address in addresses {
        let frame = frame(uplink.mac, *address);
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

fn libc_arp() -> u16 {
    nix::libc::ETH_P_ARP as u16
}

/// An ARP request of an address for itself, to everybody.
fn frame(mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend_from_slice(&BROADCAST);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&libc_arp().to_be_bytes());
    // Ethernet, IPv4, the lengths of their addresses, a request.
    frame.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&address.octets());
    frame.extend_from_slice(&[0; 6]);
    frame.extend_from_slice(&address.octets());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_announces_an_address_to_everybody() {
        let frame = frame([2, 0, 0, 0, 0, 1], Ipv4Addr::new(192, 0, 2, 7));
        assert_eq!(frame.len(), 42);
        assert_eq!(frame[..6], [0xff; 6]);
        assert_eq!(frame[12..14], [0x08, 0x06]);
        assert_eq!((&frame[28..32], &frame[38..42]), (&[192, 0, 2, 7][..], &[192, 0, 2, 7][..]));
    }
}
