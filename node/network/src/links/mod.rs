//! Links, addresses and routes over rtnetlink: the few operations the pod network is made of.
//!
//! Every operation may be repeated: an object that is already as wanted is left unchanged.

mod addresses;
pub(crate) mod events;
mod overlay;
mod routes;
mod shaping;

pub(crate) use addresses::Uplink;
pub(crate) use events::{Event, Events};
pub(crate) use overlay::{Forwarding, Neighbour, TunnelEnd};
pub(crate) use routes::{Route, RouteLink};

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use futures::TryStreamExt;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, CacheInfo};
use rtnetlink::packet_route::link::{
    BridgePortState, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoVeth, LinkAttribute, LinkInfo, LinkMessage,
    State,
};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteScope, RouteType};
use rtnetlink::{LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::error::Error;
use crate::sysctl;

const DEFAULT_MTU: u32 = 1500;
/// The time that a new link may take to carry packets, and the polling interval.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Access to the links of one network namespace.
pub(crate) struct Links {
    handle: rtnetlink::Handle,
    /// Moves the messages; it ends with this access.
    _connection: AbortOnDropHandle<()>,
}

/// The attributes of a link that we use.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub index: u32,
    pub name: String,
    pub mtu: u32,
    pub controller: Option<u32>,
    /// Whether the kernel has seen the carrier.
    pub up: bool,
    /// Whether the bridge forwards to it, if it is a port of one.
    pub forwarding: bool,
}

/// One end of a veth pair, in a namespace.
pub(crate) struct Peer<'a> {
    pub name: &'a str,
    pub namespace: BorrowedFd<'a>,
    pub mac: [u8; 6],
}

/// Returns a hardware address made of the last four bytes of an address, so that neighbour entries stay valid when both
/// are reused.
pub(crate) fn mac_of(address: IpAddr) -> [u8; 6] {
    let bits = match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    };
    let [a, b, c, d] = bits.to_be_bytes();
    [0x0a, 0x58, a, b, c, d]
}

pub(super) fn is_errno(error: &rtnetlink::Error, errno: nix::errno::Errno) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message) if message.raw_code() == -(errno as i32))
}

impl Links {
    /// Opens the calling thread's network namespace; the current runtime serves the connection.
    pub fn open() -> Result<Links, Error> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(Error::Netlink)?;
        let connection = AbortOnDropHandle::new(tokio::spawn(connection));
        Ok(Links { handle, _connection: connection })
    }

    pub async fn find(&self, name: &str) -> Result<Option<Link>, Error> {
        let found = self.handle.link().get().match_name(name).execute().try_collect::<Vec<_>>().await;
        match found {
            Ok(links) => Ok(links.iter().map(link).next()),
            Err(error) if is_errno(&error, nix::errno::Errno::ENODEV) => Ok(None),
            Err(error) => Err(Error::link(format!("find link {name}"))(error)),
        }
    }

    pub(super) async fn get(&self, name: &str) -> Result<Link, Error> {
        self.find(name).await?.ok_or_else(|| Error::NoLink(name.to_owned()))
    }

    /// Makes a bridge that is up and holds exactly these addresses.
    pub async fn ensure_bridge(&self, name: &str, addresses: &[(IpAddr, u8)], mtu: Option<u32>) -> Result<Link, Error> {
        // A fixed hardware address: by default a bridge takes the lowest of its ports, and changes it under the pods
        // when ports are added or removed.
        let mac = addresses.first().map_or([0x0a, 0x58, 0, 0, 0, 0], |(address, _)| mac_of(*address));
        if self.find(name).await?.is_none() {
            let bridge = LinkBridge::new(name).address(mac.to_vec()).mcast_snooping(false).build();
            self.handle.link().add(bridge).execute().await.map_err(Error::link(format!("add bridge {name}")))?;
            sysctl::trust_addresses(name)?;
        }
        let bridge = self.get(name).await?;
        let mut change = LinkUnspec::new_with_index(bridge.index).address(mac.to_vec()).up();
        if let Some(mtu) = mtu {
            change = change.mtu(mtu);
        }
        let changed = self.handle.link().set(change.build()).execute().await;
        changed.map_err(Error::link(format!("set link {name} up")))?;
        // An address of an earlier range would keep a route to pods that belong to another node now.
        for old in self.addresses(bridge.index).await? {
            if !addresses.iter().any(|(kept, _)| *kept == old) {
                self.delete_address(bridge.index, old).await?;
            }
        }
        for (address, length) in addresses {
            self.add_address(bridge.index, *address, *length).await?;
        }
        Ok(bridge)
    }

    /// Makes a veth pair, its far end in another namespace.
    pub async fn add_veth(&self, name: &str, mtu: u32, peer: Peer<'_>) -> Result<Link, Error> {
        let far = LinkMessageBuilder::<LinkUnspec>::new()
            .name(peer.name.to_owned())
            .mtu(mtu)
            .address(peer.mac.to_vec())
            .setns_by_fd(peer.namespace.as_raw_fd())
            .build();
        let near = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(name.to_owned())
            .mtu(mtu)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(far)))
            .build();
        self.handle.link().add(near).execute().await.map_err(Error::link(format!("add veth {name}")))?;
        self.get(name).await
    }

    /// Makes a link a port of the bridge, in hairpin mode: a pod may reach itself through a Service. Ports cannot be
    /// isolated from each other: where the kernel has `br_netfilter`, it hands translated packets from port to port.
    pub async fn attach(&self, port: &Link, bridge: &Link) -> Result<(), Error> {
        let action = || format!("attach {} to {}", port.name, bridge.name);
        let change = LinkUnspec::new_with_index(port.index).controller(bridge.index).up().build();
        self.handle.link().set(change).execute().await.map_err(Error::link(action()))?;
        let hairpin = LinkBridgePort::new(port.index).hairpin(true).build();
        self.handle.link().set_port(hairpin).execute().await.map_err(Error::link(action()))
    }

    /// Waits until packets pass between a port and its bridge. The kernel notices a carrier some time after a link is
    /// up; packets sent before are lost, and the pod's first connection would wait a second for its retransmission.
    pub async fn await_carrier(&self, port: &str, bridge: &str) -> Result<(), Error> {
        let carries = async {
            while !(self.get(port).await?.forwarding && self.get(bridge).await?.up) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Ok(())
        };
        match tokio::time::timeout(CARRIER_TIMEOUT, carries).await {
            Ok(result) => result,
            Err(_) => {
                warn!(port, bridge, "a new link does not carry packets yet");
                Ok(())
            }
        }
    }

    pub async fn set_up(&self, name: &str) -> Result<Link, Error> {
        let link = self.get(name).await?;
        let change = LinkUnspec::new_with_index(link.index).up().build();
        let changed = self.handle.link().set(change).execute().await;
        changed.map_err(Error::link(format!("set link {name} up")))?;
        Ok(link)
    }

    /// Deletes a link; a missing one is no error.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let Some(link) = self.find(name).await? else { return Ok(()) };
        match self.handle.link().del(link.index).execute().await {
            Err(error) if !is_errno(&error, nix::errno::Errno::ENODEV) => {
                Err(Error::link(format!("delete link {name}"))(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the links attached to a bridge.
    pub async fn ports(&self, bridge: &Link) -> Result<Vec<Link>, Error> {
        let all: Vec<LinkMessage> =
            self.handle.link().get().execute().try_collect().await.map_err(Error::link("list links"))?;
        Ok(all.iter().map(link).filter(|port| port.controller == Some(bridge.index)).collect())
    }

    /// Adds an address, usable at once: no other host has it, so duplicate address detection is skipped.
    pub async fn add_address(&self, index: u32, address: IpAddr, length: u8) -> Result<(), Error> {
        self.put_address(index, (address, length), None).await
    }

    /// Adds a single address that expires unless it is added again in time.
    pub async fn lend_address(&self, index: u32, address: IpAddr, lifetime: Duration) -> Result<(), Error> {
        let length = if address.is_ipv4() { 32 } else { 128 };
        self.put_address(index, (address, length), Some(lifetime)).await
    }

    async fn put_address(
        &self,
        index: u32,
        (address, length): (IpAddr, u8),
        lifetime: Option<Duration>,
    ) -> Result<(), Error> {
        let mut request = self.handle.address().add(index, address, length).replace();
        if address.is_ipv6() {
            let message = request.message_mut();
            message.header.flags |= AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        if let Some(lifetime) = lifetime {
            let seconds = u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX);
            let mut lifetimes = CacheInfo::default();
            (lifetimes.ifa_preferred, lifetimes.ifa_valid) = (seconds, seconds);
            request.message_mut().attributes.push(AddressAttribute::CacheInfo(lifetimes));
        }
        request.execute().await.map_err(Error::link(format!("add address {address}/{length}")))
    }

    /// Adds the route `destination dev index scope link`.
    pub async fn add_link_route(&self, destination: IpAddr, index: u32) -> Result<(), Error> {
        let route = match destination {
            IpAddr::V4(address) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(address, 32)
                .output_interface(index)
                .scope(RouteScope::Link)
                .build(),
            IpAddr::V6(address) => {
                RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(address, 128).output_interface(index).build()
            }
        };
        self.replace_route(route, format!("add route {destination}")).await
    }

    /// Adds the route `default via gateway dev index`.
    pub async fn add_default_route(&self, gateway: IpAddr, index: u32) -> Result<(), Error> {
        let route = match gateway {
            IpAddr::V4(gateway) => {
                RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).output_interface(index).build()
            }
            IpAddr::V6(gateway) => {
                RouteMessageBuilder::<Ipv6Addr>::new().gateway(gateway).output_interface(index).build()
            }
        };
        self.replace_route(route, format!("add default route via {gateway}")).await
    }

    pub(super) async fn replace_route(&self, route: RouteMessage, action: String) -> Result<(), Error> {
        self.handle.route().add(route).replace().execute().await.map_err(Error::link(action))
    }

    /// Returns the MTU of the link with the default route: pods must not send packets it cannot carry.
    pub async fn uplink_mtu(&self) -> Result<u32, Error> {
        let ipv4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let ipv6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
        let mut routes: Vec<RouteMessage> = Vec::new();
        for all in [ipv4, ipv6] {
            let found = self.handle.route().get(all).execute().try_collect::<Vec<_>>().await;
            routes.extend(found.map_err(Error::link("list routes"))?);
        }
        // IPv6 has default routes that lead nowhere, by the loopback.
        let default = |route: &&RouteMessage| {
            route.header.destination_prefix_length == 0 && route.header.kind == RouteType::Unicast
        };
        let Some(index) = routes.iter().find(default).and_then(output_interface) else { return Ok(DEFAULT_MTU) };
        let found: Vec<LinkMessage> = self
            .handle
            .link()
            .get()
            .match_index(index)
            .execute()
            .try_collect()
            .await
            .map_err(Error::link("read the uplink"))?;
        Ok(found.iter().map(link).next().map_or(DEFAULT_MTU, |link| link.mtu))
    }
}

fn link(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mtu: DEFAULT_MTU,
        controller: None,
        up: false,
        forwarding: false,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Controller(index) => link.controller = Some(*index),
            LinkAttribute::OperState(state) => link.up = *state == State::Up,
            LinkAttribute::LinkInfo(infos) => link.forwarding = infos.iter().any(is_forwarding),
            _ => {}
        }
    }
    link
}

fn is_forwarding(info: &LinkInfo) -> bool {
    let LinkInfo::PortData(InfoPortData::BridgePort(port)) = info else { return false };
    port.contains(&InfoBridgePort::State(BridgePortState::Forwarding))
}

pub(super) fn output_interface(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}
