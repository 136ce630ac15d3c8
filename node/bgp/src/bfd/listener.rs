//! The port of BFD: one socket for each address family receives the packets of all peers.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, UdpSocket as StdSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::socket::{
    self, AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrStorage,
    sockopt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::warn;

use super::packet::Packet;
use crate::prefix::Family;

/// The port of sessions over one hop (RFC 5881).
pub const PORT: u16 = 3784;
/// The TTL of packets that no router forwarded.
const NEIGHBOR_TTL: i32 = 255;
/// The packets of a peer that may wait. More are a flood, and are dropped.
const WAITING: usize = 16;
/// The most bytes of a packet: authentication, which is not supported, is the rest.
const LONGEST: usize = 256;

type Peers = Arc<Mutex<BTreeMap<IpAddr, mpsc::Sender<Packet>>>>;

/// A socket, the task that reads it, and the peers whose packets it takes.
pub struct Listener {
    peers: Peers,
    _reader: JoinSet<()>,
}

impl Listener {
    /// Opens the port for one address family.
    pub fn open(family: Family) -> io::Result<Listener> {
        let socket = UdpSocket::from_std(bind(family)?)?;
        let peers = Peers::default();
        let mut reader = JoinSet::new();
        reader.spawn(read(socket, peers.clone()));
        Ok(Listener { peers, _reader: reader })
    }

    /// Returns the packets that a peer sends from now on.
    pub fn packets_of(&self, peer: IpAddr) -> mpsc::Receiver<Packet> {
        let (sender, receiver) = mpsc::channel(WAITING);
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).insert(peer, sender);
        receiver
    }
}

fn bind(family: Family) -> io::Result<StdSocket> {
    let domain = match family {
        Family::Ipv4 => AddressFamily::Inet,
        Family::Ipv6 => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(domain, SockType::Datagram, flags, None)?;
    match family {
        Family::Ipv4 => {
            socket::setsockopt(&socket, sockopt::Ipv4RecvTtl, &true)?;
            socket::bind(socket.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, PORT))?;
        }
        Family::Ipv6 => {
            socket::setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
            socket::setsockopt(&socket, sockopt::Ipv6RecvHopLimit, &true)?;
            let any = std::net::SocketAddrV6::new(std::net::Ipv6Addr::UNSPECIFIED, PORT, 0, 0);
            socket::bind(socket.as_raw_fd(), &SockaddrIn6::from(any))?;
        }
    }
    Ok(StdSocket::from(socket))
}

/// Gives each packet to the session of its sender.
async fn read(socket: UdpSocket, peers: Peers) {
    loop {
        let received = socket.async_io(Interest::READABLE, || receive(socket.as_raw_fd())).await;
        match received {
            Ok(Some(datagram)) => deliver(&peers, &datagram),
            Ok(None) => {}
            Err(error) => {
                warn!("BFD's port cannot be read: {error}");
                return;
            }
        }
    }
}

/// A packet of a neighbour.
struct Datagram {
    sender: IpAddr,
    packet: Packet,
}

/// Receives one datagram; `None` if it is no packet of a neighbour.
fn receive(socket: RawFd) -> io::Result<Option<Datagram>> {
    let mut bytes = [0; LONGEST];
    let mut control = nix::cmsg_space!(i32, i32);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let message = socket::recvmsg::<SockaddrStorage>(socket, &mut slices, Some(&mut control), MsgFlags::MSG_DONTWAIT)?;
    let is_neighbor = message.cmsgs()?.any(|one| match one {
        ControlMessageOwned::Ipv4Ttl(ttl) | ControlMessageOwned::Ipv6HopLimit(ttl) => ttl == NEIGHBOR_TTL,
        _ => false,
    });
    let sender = message.address.as_ref().and_then(ip);
    let length = message.bytes;
    let (true, Some(sender)) = (is_neighbor, sender) else { return Ok(None) };
    Ok(Packet::decode(&bytes[..length]).map(|packet| Datagram { sender, packet }))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

fn deliver(peers: &Peers, datagram: &Datagram) {
    let mut peers = peers.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(peer) = peers.get(&datagram.sender) else { return };
    if let Err(mpsc::error::TrySendError::Closed(_)) = peer.try_send(datagram.packet.clone()) {
        peers.remove(&datagram.sender);
    }
}
