//! Connection tracking: finds and deletes flows.
//!
//! The kernel keeps sending a UDP flow to the endpoint it chose for the first packet, for as long as packets come. When
//! that endpoint is deleted its flows must be deleted too; only their owner can know.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::attributes::{Attribute, Attributes, find};
use crate::error::Error;
use crate::socket::{Received, Socket};
use crate::uapi;

/// A tracked flow: its client, its original destination, and the address that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    pub protocol: u8,
    pub source: (IpAddr, u16),
    /// The address the client sent to, before translation.
    pub destination: (IpAddr, u16),
    /// The address that answers, after translation.
    pub answered_by: (IpAddr, u16),
}

/// Access to the connection tracking table of one network namespace.
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    pub fn open() -> Result<Conntrack, Error> {
        Ok(Conntrack { socket: Socket::open()? })
    }

    /// Returns every flow of a protocol.
    pub fn flows(&mut self, protocol: u8) -> Result<Vec<Flow>, Error> {
        let kind = uapi::SUBSYS_CTNETLINK << 8 | uapi::CT_GET;
        let received = self.socket.dump(kind, uapi::NFPROTO_UNSPEC, &[])?;
        Ok(received.iter().filter_map(flow).filter(|flow| flow.protocol == protocol).collect())
    }

    /// Deletes one flow; one that has ended is no error.
    pub fn delete(&mut self, flow: &Flow) -> Result<(), Error> {
        let kind = uapi::SUBSYS_CTNETLINK << 8 | uapi::CT_DELETE;
        let family = if flow.source.0.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let attributes = original_tuple(flow);
        match self.socket.command(kind, family as u8, attributes.as_bytes(), "delete a tracked flow") {
            Err(error) if error.is_not_found() => Ok(()),
            result => result,
        }
    }

    /// Deletes the flows of a protocol that match; returns how many.
    pub fn delete_matching(&mut self, protocol: u8, matches: impl Fn(&Flow) -> bool) -> Result<usize, Error> {
        let doomed: Vec<Flow> = self.flows(protocol)?.into_iter().filter(matches).collect();
        for flow in &doomed {
            self.delete(flow)?;
        }
        Ok(doomed.len())
    }
}

fn original_tuple(flow: &Flow) -> Attributes {
    let address = |put: Attributes, v4, v6, address: IpAddr| match address {
        IpAddr::V4(address) => put.bytes(v4, &address.octets()),
        IpAddr::V6(address) => put.bytes(v6, &address.octets()),
    };
    let ip = address(Attributes::new(), uapi::CTA_IP_V4_SRC, uapi::CTA_IP_V6_SRC, flow.source.0);
    let ip = address(ip, uapi::CTA_IP_V4_DST, uapi::CTA_IP_V6_DST, flow.destination.0);
    let protocol = Attributes::new()
        .u8(uapi::CTA_PROTO_NUM, flow.protocol)
        .u16(uapi::CTA_PROTO_SRC_PORT, flow.source.1)
        .u16(uapi::CTA_PROTO_DST_PORT, flow.destination.1);
    let tuple = Attributes::new().nest(uapi::CTA_TUPLE_IP, ip).nest(uapi::CTA_TUPLE_PROTO, protocol);
    Attributes::new().nest(uapi::CTA_TUPLE_ORIG, tuple)
}

struct Tuple {
    protocol: u8,
    source: (IpAddr, u16),
    destination: (IpAddr, u16),
}

pub(crate) fn flow(message: &Received) -> Option<Flow> {
    let original = tuple(&find(&message.attributes, uapi::CTA_TUPLE_ORIG)?)?;
    let reply = tuple(&find(&message.attributes, uapi::CTA_TUPLE_REPLY)?)?;
    Some(Flow {
        protocol: original.protocol,
        source: original.source,
        destination: original.destination,
        answered_by: reply.source,
    })
}

fn tuple(attribute: &Attribute<'_>) -> Option<Tuple> {
    let ip = find(attribute.payload, uapi::CTA_TUPLE_IP)?;
    let protocol = find(attribute.payload, uapi::CTA_TUPLE_PROTO)?;
    let port = |kind| find(protocol.payload, kind).and_then(|port| port.u16()).unwrap_or_default();
    Some(Tuple {
        protocol: *find(protocol.payload, uapi::CTA_PROTO_NUM)?.payload.first()?,
        source: (address(&ip, uapi::CTA_IP_V4_SRC, uapi::CTA_IP_V6_SRC)?, port(uapi::CTA_PROTO_SRC_PORT)),
        destination: (address(&ip, uapi::CTA_IP_V4_DST, uapi::CTA_IP_V6_DST)?, port(uapi::CTA_PROTO_DST_PORT)),
    })
}

fn address(ip: &Attribute<'_>, v4: u16, v6: u16) -> Option<IpAddr> {
    if let Some(address) = find(ip.payload, v4) {
        return <[u8; 4]>::try_from(address.payload).ok().map(|octets| Ipv4Addr::from(octets).into());
    }
    let address = find(ip.payload, v6)?;
    <[u8; 16]>::try_from(address.payload).ok().map(|octets| Ipv6Addr::from(octets).into())
}
