//! SCTP by hand: kernels without it still translate it, and this shows the translation. A packet is one chunk that
//! opens an association, or the one that answers it, by raw sockets.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::libc;

const PROTOCOL: i32 = 132;
/// The tag of every association here; an answer is sent with it.
const TAG: u32 = 0x0102_0304;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Chunk {
    Init = 1,
    InitAck = 2,
}

/// A received packet: its sender, its port, and its chunk.
#[derive(Debug, PartialEq, Eq)]
pub struct Received {
    pub from: SocketAddrV4,
    pub port: u16,
    pub chunk: u8,
}

/// A socket that sees every SCTP packet of its network namespace.
pub struct Raw(OwnedFd);

impl Raw {
    pub fn open(timeout: Duration) -> Raw {
        // SAFETY: the call has no pointers, and nothing else owns the descriptor.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, PROTOCOL) };
        assert!(socket >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the kernel has just made it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let time = libc::timeval { tv_sec: timeout.as_secs() as _, tv_usec: 0 };
        let length = std::mem::size_of_val(&time) as u32;
        // SAFETY: the option is a complete timeval, and the socket is open.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                std::ptr::from_ref(&time).cast(),
                length,
            )
        };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        Raw(socket)
    }

    pub fn send(&self, from: u16, to: SocketAddrV4, chunk: Chunk) {
        let packet = packet(from, to.port(), chunk);
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as _,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: to.ip().to_bits().to_be() },
            sin_zero: [0; 8],
        };
        let data = packet.as_ptr().cast();
        let length = packet.len();
        let destination = std::ptr::from_ref(&address).cast();
        let size = std::mem::size_of_val(&address) as u32;
        // SAFETY: packet and address are complete and outlive the call.
        let sent = unsafe { libc::sendto(self.0.as_raw_fd(), data, length, 0, destination, size) };
        assert_eq!(sent, packet.len() as isize, "{}", io::Error::last_os_error());
    }

    pub fn receive(&self) -> io::Result<Received> {
        let mut buffer = [0u8; 256];
        // SAFETY: the buffer is as long as given.
        let length = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if length < 0 {
            return Err(io::Error::last_os_error());
        }
        let packet = &buffer[..length as usize];
        let body = &packet[usize::from(packet[0] & 15) * 4..];
        let source = Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]);
        let port = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
        Ok(Received { from: SocketAddrV4::new(source, port(0)), port: port(2), chunk: body[12] })
    }
}

fn packet(from: u16, to: u16, chunk: Chunk) -> Vec<u8> {
    let mut packet = [from.to_be_bytes(), to.to_be_bytes()].concat();
    // The opener of an association does not know the other side's tag yet.
    packet.extend(if chunk == Chunk::Init { 0 } else { TAG }.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend([chunk as u8, 0, 0, 20]);
    for number in [TAG, 65_536, 0x0001_0001, 1] {
        packet.extend(u32::to_be_bytes(number));
    }
    let sum = crc32c(&packet);
    packet[8..12].copy_from_slice(&sum.to_le_bytes());
    packet
}

/// Computes the checksum of SCTP; without it the kernel does not track the packet.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
}
