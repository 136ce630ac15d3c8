//! The PROXY protocol, by which a proxy in front tells the addresses of a connection before its bytes.
//!
//! A header is read only from peers that are trusted: its sender chooses the address that policies see. A
//! header is bounded in size, and the caller bounds the time.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use corten_routing::ProxyVersion;
use tokio::io::{AsyncRead, AsyncReadExt};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The longest line of version 1, with its end.
const MAX_LINE: usize = 107;
/// The most bytes after the fixed part of version 2: addresses and extensions.
const MAX_PAYLOAD: usize = 4096;

/// The addresses of a header; none if the proxy speaks for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Reads a header of either version, and no byte beyond it.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Addresses>> {
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    if head == *SIGNATURE {
        return read_binary(stream).await;
    }
    if !head.starts_with(b"PROXY ") {
        return Err(invalid("the connection does not begin with a header of the PROXY protocol"));
    }
    let mut line = head.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() >= MAX_LINE {
            return Err(invalid("the header of the PROXY protocol is too long"));
        }
        line.push(stream.read_u8().await?);
    }
    parse_line(&line).ok_or_else(|| invalid("the header of the PROXY protocol is malformed"))
}

async fn read_binary(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Addresses>> {
    let command = stream.read_u8().await?;
    let family = stream.read_u8().await?;
    let length = usize::from(stream.read_u16().await?);
    if length > MAX_PAYLOAD {
        return Err(invalid("the header of the PROXY protocol is too long"));
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await?;
    match command {
        // LOCAL: a health check of the proxy itself.
        0x20 => Ok(None),
        0x21 => {
            parse_binary(family, &payload).ok_or_else(|| invalid("the addresses of the PROXY protocol are malformed"))
        }
        _ => Err(invalid("the version of the PROXY protocol is not known")),
    }
}

/// Parses a line of version 1. The outer option is the line's validity.
fn parse_line(line: &[u8]) -> Option<Option<Addresses>> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix("\r\n")?;
    let mut words = line.strip_prefix("PROXY ")?.split(' ');
    match words.next()? {
        "UNKNOWN" => return Some(None),
        "TCP4" | "TCP6" => {}
        _ => return None,
    }
    let source: IpAddr = words.next()?.parse().ok()?;
    let destination: IpAddr = words.next()?.parse().ok()?;
    let source = SocketAddr::new(source, words.next()?.parse().ok()?);
    let destination = SocketAddr::new(destination, words.next()?.parse().ok()?);
    words.next().is_none().then_some(Some(Addresses { source, destination }))
}

/// Parses the addresses of version 2. The outer option is their validity.
fn parse_binary(family: u8, payload: &[u8]) -> Option<Option<Addresses>> {
    let port = |at: usize| Some(u16::from_be_bytes(payload.get(at..at + 2)?.try_into().ok()?));
    match family >> 4 {
        1 => {
            let address = |at: usize| {
                let bytes: [u8; 4] = payload.get(at..at + 4)?.try_into().ok()?;
                Some(IpAddr::V4(Ipv4Addr::from(bytes)))
            };
            let source = SocketAddr::new(address(0)?, port(8)?);
            Some(Some(Addresses { source, destination: SocketAddr::new(address(4)?, port(10)?) }))
        }
        2 => {
            let address = |at: usize| {
                let bytes: [u8; 16] = payload.get(at..at + 16)?.try_into().ok()?;
                Some(IpAddr::V6(Ipv6Addr::from(bytes)))
            };
            let source = SocketAddr::new(address(0)?, port(32)?);
            Some(Some(Addresses { source, destination: SocketAddr::new(address(16)?, port(34)?) }))
        }
        // Addresses that are no IP addresses.
        _ => Some(None),
    }
}

/// Returns the header of a connection from `source` to `destination`.
pub(crate) fn header(version: ProxyVersion, source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let (from, to) = same_family(source.ip(), destination.ip());
    match version {
        ProxyVersion::V1 => {
            let family = if from.is_ipv4() { "TCP4" } else { "TCP6" };
            format!("PROXY {family} {from} {to} {} {}\r\n", source.port(), destination.port()).into_bytes()
        }
        ProxyVersion::V2 => {
            let mut header = SIGNATURE.to_vec();
            let (family, length) = if from.is_ipv4() { (0x11, 12u16) } else { (0x21, 36) };
            header.extend([0x21, family]);
            header.extend(length.to_be_bytes());
            for address in [from, to] {
                match address {
                    IpAddr::V4(address) => header.extend(address.octets()),
                    IpAddr::V6(address) => header.extend(address.octets()),
                }
            }
            header.extend(source.port().to_be_bytes());
            header.extend(destination.port().to_be_bytes());
            header
        }
    }
}

/// Returns both addresses in one family: a header has one.
fn same_family(source: IpAddr, destination: IpAddr) -> (IpAddr, IpAddr) {
    match (source.to_canonical(), destination.to_canonical()) {
        (IpAddr::V4(source), IpAddr::V6(destination)) => (IpAddr::V6(source.to_ipv6_mapped()), IpAddr::V6(destination)),
        (IpAddr::V6(source), IpAddr::V4(destination)) => (IpAddr::V6(source), IpAddr::V6(destination.to_ipv6_mapped())),
        same => same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn parsed(mut bytes: &[u8]) -> io::Result<Option<Addresses>> {
        let read = read(&mut bytes).await;
        if read.is_ok() {
            assert_eq!(bytes, b"rest", "a byte beyond the header was read");
        }
        read
    }

    #[tokio::test]
    async fn headers_are_read_as_they_are_written() {
        for (source, destination) in [
            ("192.0.2.1:1234", "198.51.100.2:443"),
            ("[2001:db8::1]:1", "[2001:db8::2]:65535"),
            ("192.0.2.1:1234", "[2001:db8::2]:80"),
        ] {
            let source: SocketAddr = source.parse().unwrap();
            let destination: SocketAddr = destination.parse().unwrap();
            for version in [ProxyVersion::V1, ProxyVersion::V2] {
                let mut bytes = header(version, source, destination);
                bytes.extend(b"rest");
                let addresses = parsed(&bytes).await.unwrap().unwrap();
                assert_eq!(addresses.source.ip().to_canonical(), source.ip());
                assert_eq!(addresses.source.port(), source.port());
                assert_eq!(addresses.destination, destination);
            }
        }
    }

    #[tokio::test]
    async fn a_proxy_may_speak_for_itself() {
        assert_eq!(parsed(b"PROXY UNKNOWN\r\nrest").await.unwrap(), None);
        let mut local = SIGNATURE.to_vec();
        local.extend(b"\x20\x00\x00\x00rest");
        assert_eq!(parsed(&local).await.unwrap(), None);
    }

    #[tokio::test]
    async fn malformed_headers_are_refused() {
        let mut long = SIGNATURE.to_vec();
        long.extend(b"\x21\x11\xff\xff");
        let mut short = SIGNATURE.to_vec();
        short.extend(b"\x21\x11\x00\x02ab");
        let endless = [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat();
        for bytes in [
            b"GET / HTTP/1.1\r\n\r\n".as_slice(),
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
            b"PROXY TCP9 1.2.3.4 5.6.7.8 1 2\r\n",
            &long,
            &short,
            &endless,
        ] {
            assert!(parsed(bytes).await.is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
