//! The packets on a link: every frame, as a capture would show it.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::libc;

/// A packet: its transport, sender, receiver and the receiver's port, and whether it opens a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Packet {
    pub protocol: u8,
    pub from: IpAddr,
    pub to: IpAddr,
    pub port: u16,
    pub opens: bool,
}

/// A captured link of the calling thread's network namespace.
pub struct Wire(OwnedFd);

impl Wire {
    pub fn listen(link: &str) -> Wire {
        let every = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: the call has no pointers, and nothing else owns the descriptor.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, every.into()) };
        assert!(socket >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the kernel has just made it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: the address is plain old data, for which all zeros is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as _;
        address.sll_protocol = every;
        address.sll_ifindex = nix::net::if_::if_nametoindex(link).expect("the link is there") as _;
        let length = std::mem::size_of_val(&address) as u32;
        // SAFETY: the address is complete and as long as given, and the socket is open.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
        assert_eq!(bound, 0, "{}", io::Error::last_os_error());
        Wire(socket)
    }

    /// Returns the packets of TCP and UDP that have passed since, each kind once.
    pub fn passed(&self) -> BTreeSet<Packet> {
        let mut found = BTreeSet::new();
        let mut frame = [0u8; 2048];
        loop {
            // SAFETY: the buffer is as long as given.
            let length = unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
            let Ok(length) = usize::try_from(length) else { return found };
            found.extend(packet(&frame[..length]));
        }
    }
}

fn packet(frame: &[u8]) -> Option<Packet> {
    let body = frame.get(14..)?;
    let four = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(body.get(at..at + 4)?).ok()?).into());
    let six = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(body.get(at..at + 16)?).ok()?).into());
    let (protocol, from, to, end) = match frame.get(12..14)? {
        [0x08, 0x00] => (body[9], four(12)?, four(16)?, usize::from(body[0] & 15) * 4),
        [0x86, 0xdd] => (body[6], six(8)?, six(24)?, 40),
        _ => return None,
    };
    let port = u16::from_be_bytes(body.get(end + 2..end + 4)?.try_into().ok()?);
    let opens = protocol == 6 && body.get(end + 13)? & 0b1_0010 == 0b10;
    matches!(protocol, 6 | 17).then_some(Packet { protocol, from, to, port, opens })
}
