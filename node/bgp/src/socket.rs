//! The TCP connection to a peer: MD5 signatures (RFC 2385), the TTL that proves a neighbour (RFC 5082), and a deadline.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use nix::libc;
use tokio::net::{TcpSocket, TcpStream};

use crate::error::Error;

/// The time limit of a connection attempt. The kernel drops segments with a wrong signature without an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest key of a signature.
pub(crate) const LONGEST_KEY: usize = 80;
/// The traffic class of routing protocols.
const INTERNETWORK_CONTROL: libc::c_int = 0xc0;

/// The connection to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: SocketAddr,
    /// The local address of the connection; the kernel chooses one otherwise.
    pub source: Option<IpAddr>,
    /// The key of TCP MD5 signatures.
    pub password: Option<String>,
    /// Whether packets of the peer must have a TTL of 255: the peer is a neighbour.
    pub ttl_security: bool,
}

/// The kernel's `struct tcp_md5sig`.
#[repr(C)]
struct Signature {
    address: libc::sockaddr_storage,
    flags: u8,
    prefix_length: u8,
    key_length: u16,
    interface: libc::c_int,
    key: [u8; LONGEST_KEY],
}

/// Connects to a peer.
pub async fn connect(endpoint: &Endpoint) -> Result<TcpStream, Error> {
    let socket = match endpoint.address.is_ipv4() {
        true => TcpSocket::new_v4(),
        false => TcpSocket::new_v6(),
    };
    let socket = socket.map_err(Error::Connect)?;
    if let Some(password) = &endpoint.password {
        sign(socket.as_raw_fd(), endpoint.address.ip(), password.as_bytes())
            .map_err(|source| Error::SocketOption { option: "MD5 signature", source })?;
    }
    classify(socket.as_raw_fd(), endpoint)?;
    if let Some(source) = endpoint.source {
        socket.bind(SocketAddr::new(source, 0)).map_err(Error::Connect)?;
    }
    match tokio::time::timeout(PATIENCE, socket.connect(endpoint.address)).await {
        Ok(connected) => connected.map_err(Error::Connect),
        Err(_) => Err(Error::NoAnswer(PATIENCE.as_secs())),
    }
}

/// Sets the traffic class, and the TTL of a neighbour if it is wanted.
fn classify(socket: RawFd, endpoint: &Endpoint) -> Result<(), Error> {
    let is_ipv4 = endpoint.address.is_ipv4();
    let set = |option: &'static str, level, name, value| {
        set_number(socket, level, name, value).map_err(|source| Error::SocketOption { option, source })
    };
    match is_ipv4 {
        true => set("traffic class", libc::IPPROTO_IP, libc::IP_TOS, INTERNETWORK_CONTROL)?,
        false => set("traffic class", libc::IPPROTO_IPV6, libc::IPV6_TCLASS, INTERNETWORK_CONTROL)?,
    }
    if !endpoint.ttl_security {
        return Ok(());
    }
    /// Linux' number of IPV6_MINHOPCOUNT.
    const IPV6_MINHOPCOUNT: libc::c_int = 73;
    match is_ipv4 {
        true => {
            set("TTL", libc::IPPROTO_IP, libc::IP_TTL, 255)?;
            set("least TTL", libc::IPPROTO_IP, libc::IP_MINTTL, 255)
        }
        false => {
            set("hop limit", libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 255)?;
            set("least hop limit", libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT, 255)
        }
    }
}

fn set_number(socket: RawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the value lives until the call returns, and its length is its own.
    let result = unsafe {
        libc::setsockopt(
            socket,
            level,
            name,
            std::ptr::from_ref(&value).cast(),
            std::mem::size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the kernel sign segments to a peer, and refuse segments of the peer that are not signed with the key.
pub(crate) fn sign(socket: RawFd, peer: IpAddr, key: &[u8]) -> io::Result<()> {
    if key.len() > LONGEST_KEY {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the password is longer than 80 bytes"));
    }
    // SAFETY: the structure is plain old data, for which all zeros is a value.
    let mut signature: Signature = unsafe { std::mem::zeroed() };
    let address = nix::sys::socket::SockaddrStorage::from(SocketAddr::new(peer, 0));
    let length = nix::sys::socket::SockaddrLike::len(&address) as usize;
    // SAFETY: a sockaddr_storage has room for every address, and the two do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(
            nix::sys::socket::SockaddrLike::as_ptr(&address).cast::<u8>(),
            std::ptr::from_mut(&mut signature.address).cast::<u8>(),
            length,
        );
    }
    signature.key_length = key.len() as u16;
    signature.key[..key.len()].copy_from_slice(key);
    // SAFETY: the structure is the one that the kernel expects, and it lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_MD5SIG,
            std::ptr::from_ref(&signature).cast(),
            std::mem::size_of_val(&signature) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
