//! The kernel's events of links and routes, so that the routes of a link are restored with it.
//!
//! When a link goes down the kernel drops its routes without an event for them, and does not restore them: only the
//! link itself has an event. Messages are read by their fixed parts; nothing here decides how to react to them.

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use tokio::io::unix::AsyncFd;

use super::routes::ROUTE_PROTOCOL_NUMBER;
use crate::error::Error;

/// The groups RTNLGRP_LINK, RTNLGRP_IPV4_ROUTE and RTNLGRP_IPV6_ROUTE.
const GROUPS: u32 = 1 << 0 | 1 << 6 | 1 << 10;
const NEW_LINK: u16 = 16;
const DELETED_LINK: u16 = 17;
const NEW_ROUTE: u16 = 24;
const DELETED_ROUTE: u16 = 25;
const HEADER: usize = 16;
const ROUTE_HEADER: usize = 12;
const ROUTE_DESTINATION: u16 = 1;
const MAIN_TABLE: u8 = 254;
const UNICAST: u8 = 1;
/// The protocols of routes that lead to neighbours: those of the kernel, of administrators, and of DHCP clients.
/// Routing daemons change their own by the thousand, and no node is found by them.
const NEIGHBOURLY: [u8; 4] = [2, 3, 4, 16];

/// An event of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A link went down, or was deleted.
    LinkLost(u32),
    /// A route of ours was deleted, perhaps by us.
    OwnRouteDeleted,
    /// A route changed that may lead to other nodes.
    RouteChanged,
    /// The kernel dropped events because too many happened.
    Missed,
}

/// The events of one network namespace.
pub(crate) struct Events(AsyncFd<Socket>);

impl Events {
    /// Listens in the calling thread's network namespace.
    pub fn open() -> Result<Events, Error> {
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(Error::Netlink)?;
        socket.bind(&SocketAddr::new(0, GROUPS)).map_err(Error::Netlink)?;
        socket.set_non_blocking(true).map_err(Error::Netlink)?;
        // SAFETY: a netlink socket is open and stays the same descriptor until it is dropped, and the `AsyncFd` owns it.
        unsafe { AsyncFd::register(socket) }.map(Events).map_err(|error| Error::Netlink(error.into()))
    }

    /// Waits for events, and returns all that have happened by then; never an empty list.
    pub async fn next(&self) -> Result<Vec<Event>, Error> {
        loop {
            let mut ready = self.0.readable().await.map_err(Error::Netlink)?;
            let mut events = Vec::new();
            drain(self.0.get_ref(), &mut events)?;
            ready.clear_ready();
            if !events.is_empty() {
                events.sort_unstable();
                events.dedup();
                return Ok(events);
            }
        }
    }
}

/// Reads all pending events.
fn drain(socket: &Socket, events: &mut Vec<Event>) -> Result<(), Error> {
    let mut buffer = Vec::with_capacity(64 * 1024);
    loop {
        buffer.clear();
        match socket.recv(&mut buffer, 0) {
            Ok(_) => events.extend(read(&buffer)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => events.push(Event::Missed),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Netlink(error)),
        }
    }
}

/// Returns the events of one datagram; a truncated message ends it.
pub(crate) fn read(mut rest: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(length) = number(rest, 0).map(|length| length as usize) {
        let (Some(kind), Some(body)) = (rest.get(4..6), rest.get(HEADER..length)) else { break };
        events.extend(match u16::from_ne_bytes([kind[0], kind[1]]) {
            kind @ (NEW_LINK | DELETED_LINK) => link(body, kind == DELETED_LINK),
            kind @ (NEW_ROUTE | DELETED_ROUTE) => route(body, kind == DELETED_ROUTE),
            _ => None,
        });
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    events
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses an `ifinfomsg`.
fn link(body: &[u8], deleted: bool) -> Option<Event> {
    let up = number(body, 8)? & nix::libc::IFF_UP as u32 != 0;
    (deleted || !up).then_some(Event::LinkLost(number(body, 4)?))
}

/// Parses a `rtmsg`.
fn route(body: &[u8], deleted: bool) -> Option<Event> {
    let table = *body.get(4)?;
    let protocol = *body.get(5)?;
    let kind = *body.get(7)?;
    if table != MAIN_TABLE {
        return None;
    }
    if protocol == ROUTE_PROTOCOL_NUMBER {
        return deleted.then_some(Event::OwnRouteDeleted);
    }
    if kind != UNICAST {
        return None;
    }
    (NEIGHBOURLY.contains(&protocol) && !is_link_local(body)).then_some(Event::RouteChanged)
}

/// Reports whether a route leads to the link-local neighbours, as every link has one in IPv6; no node is found by it.
fn is_link_local(body: &[u8]) -> bool {
    let mut rest = body.get(ROUTE_HEADER..).unwrap_or_default();
    while let Some([low, high, kind_low, kind_high]) = rest.first_chunk().copied() {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let Some(payload) = rest.get(4..length) else { return false };
        if u16::from_ne_bytes([kind_low, kind_high]) == ROUTE_DESTINATION {
            return payload.len() == 16 && payload[..2] == [0xfe, 0x80];
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    fn link_message(kind: u16, index: u32, flags: u32) -> Vec<u8> {
        message(kind, &[&[0; 4][..], &index.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 4]].concat())
    }

    fn route_message(kind: u16, table: u8, protocol: u8, destination: &[u8]) -> Vec<u8> {
        let header = [2, 24, 0, 0, table, protocol, 0, UNICAST, 0, 0, 0, 0];
        let length = (4 + destination.len() as u16).to_ne_bytes();
        message(kind, &[&header[..], &[8, 0, 4, 0, 3, 0, 0, 0], &length, &[1, 0], destination].concat())
    }

    #[test]
    fn messages_of_the_kernel_become_events() {
        let up = nix::libc::IFF_UP as u32;
        let near = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (name, message, expected) in [
            ("up", link_message(NEW_LINK, 3, up), None),
            ("down", link_message(NEW_LINK, 3, 0), Some(Event::LinkLost(3))),
            ("away", link_message(DELETED_LINK, 3, up), Some(Event::LinkLost(3))),
            ("ours came", route_message(NEW_ROUTE, 254, 67, &[10, 244, 1, 0]), None),
            ("ours went", route_message(DELETED_ROUTE, 254, 67, &[10, 244, 1, 0]), Some(Event::OwnRouteDeleted)),
            ("a subnet came", route_message(NEW_ROUTE, 254, 2, &[192, 0, 2, 0]), Some(Event::RouteChanged)),
            ("a static one went", route_message(DELETED_ROUTE, 254, 4, &[192, 0, 2, 0]), Some(Event::RouteChanged)),
            ("another table", route_message(NEW_ROUTE, 255, 2, &[192, 0, 2, 0]), None),
            ("a routing daemon", route_message(NEW_ROUTE, 254, 186, &[192, 0, 2, 0]), None),
            ("link-local", route_message(NEW_ROUTE, 254, 2, &near), None),
        ] {
            assert_eq!(read(&message), expected.into_iter().collect::<Vec<_>>(), "{name}");
            for length in 0..message.len() {
                read(&message[..length]);
            }
        }
        let both = [link_message(NEW_LINK, 3, 0), link_message(NEW_LINK, 4, 0)].concat();
        assert_eq!(read(&both), [Event::LinkLost(3), Event::LinkLost(4)]);
    }
}
