//! The links of overlays, and the two tables of VXLAN: the hardware address of each tunnel end (neighbours), and the
//! node of each hardware address (forwarding entries).

use std::net::IpAddr;

use futures::TryStreamExt;
use nix::errno::Errno;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{InfoData, InfoVxlan, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::{LinkUnspec, LinkVxlan, LinkWireguard};

use super::{Link, Links, is_errno};
use crate::error::Error;

/// The hardware address of a tunnel end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Neighbour {
    pub address: IpAddr,
    pub mac: [u8; 6],
}

/// The node of a hardware address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Forwarding {
    pub mac: [u8; 6],
    pub node: IpAddr,
}

/// This node's end of the overlay.
pub(crate) struct TunnelEnd {
    pub vni: u32,
    pub port: u16,
    pub mac: [u8; 6],
    /// The node's own address, whose IP family carries the packets.
    pub node: IpAddr,
    pub mtu: u32,
}

impl Links {
    /// Makes a VXLAN link without learning that is up. Replaces one with other settings.
    pub async fn ensure_vxlan(&self, name: &str, end: &TunnelEnd) -> Result<Link, Error> {
        let TunnelEnd { vni, port, mac, node, mtu } = *end;
        if !self.is_vxlan(name, end).await? {
            self.delete(name).await?;
            // Up from the first moment: a link that is made and then set up looks lost in between.
            let link = LinkVxlan::new(name, vni).port(port).learning(false).address(mac.to_vec()).up();
            // A link carries packets over one IP family, which follows from its own address.
            let link = match node {
                IpAddr::V4(_) => link,
                IpAddr::V6(node) => link.local6(node),
            };
            let added = self.handle.link().add(link.build()).execute().await;
            added.map_err(Error::link(format!("add the VXLAN link {name}")))?;
        }
        let link = self.get(name).await?;
        let change = LinkUnspec::new_with_index(link.index).mtu(mtu).up().build();
        let changed = self.handle.link().set(change).execute().await;
        changed.map_err(Error::link(format!("set link {name} up")))?;
        Ok(link)
    }

    /// Makes a link of WireGuard that is up.
    pub async fn ensure_wireguard(&self, name: &str, mtu: u32) -> Result<Link, Error> {
        if self.find(name).await?.is_none() {
            let added = self.handle.link().add(LinkWireguard::new(name).up().build()).execute().await;
            added.map_err(Error::link(format!("add the WireGuard link {name}")))?;
        }
        let link = self.get(name).await?;
        let change = LinkUnspec::new_with_index(link.index).mtu(mtu).up().build();
        let changed = self.handle.link().set(change).execute().await;
        changed.map_err(Error::link(format!("set link {name} up")))?;
        Ok(link)
    }

    async fn is_vxlan(&self, name: &str, end: &TunnelEnd) -> Result<bool, Error> {
        if self.find(name).await?.is_none() {
            return Ok(false);
        }
        let found: Vec<LinkMessage> = self
            .handle
            .link()
            .get()
            .match_name(name)
            .execute()
            .try_collect()
            .await
            .map_err(Error::link(format!("read link {name}")))?;
        let attributes = || found.iter().flat_map(|message| &message.attributes);
        let own = attributes().any(|attribute| *attribute == LinkAttribute::Address(end.mac.to_vec()));
        let infos = attributes().filter_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => Some(infos),
            _ => None,
        });
        let settings = infos.flatten().any(|info| match info {
            LinkInfo::Data(InfoData::Vxlan(data)) => {
                let local = data.iter().find_map(|info| match info {
                    InfoVxlan::Local6(address) => Some(IpAddr::from(*address)),
                    _ => None,
                });
                data.contains(&InfoVxlan::Id(end.vni))
                    && data.contains(&InfoVxlan::Port(end.port))
                    && local == Some(end.node).filter(IpAddr::is_ipv6)
            }
            _ => false,
        });
        Ok(own && settings)
    }

    /// Adds the node's own address in the overlay.
    pub async fn add_tunnel_address(&self, link: u32, address: IpAddr) -> Result<(), Error> {
        self.add_address(link, address, if address.is_ipv4() { 32 } else { 128 }).await
    }

    pub async fn add_neighbour(&self, link: u32, neighbour: &Neighbour) -> Result<(), Error> {
        let request =
            self.handle.neighbours().add(link, neighbour.address).link_layer_address(&neighbour.mac).replace();
        request.execute().await.map_err(Error::link(format!("add neighbour {}", neighbour.address)))
    }

    pub async fn delete_neighbour(&self, link: u32, neighbour: &Neighbour) -> Result<(), Error> {
        let mut message = NeighbourMessage::default();
        let (family, address) = match neighbour.address {
            IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
            IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
        };
        (message.header.family, message.header.ifindex) = (family, link);
        message.attributes.push(NeighbourAttribute::Destination(address));
        self.delete_entry(message, format!("delete neighbour {}", neighbour.address)).await
    }

    pub async fn add_forwarding(&self, link: u32, forwarding: &Forwarding) -> Result<(), Error> {
        let request = self.handle.neighbours().add_bridge(link, &forwarding.mac).destination(forwarding.node);
        let request = request.flags(NeighbourFlags::Own).state(NeighbourState::Permanent).replace();
        request.execute().await.map_err(Error::link(format!("add a forwarding entry for {}", forwarding.node)))
    }

    pub async fn delete_forwarding(&self, link: u32, forwarding: &Forwarding) -> Result<(), Error> {
        let mut message = NeighbourMessage::default();
        (message.header.family, message.header.ifindex) = (AddressFamily::Bridge, link);
        message.header.flags = NeighbourFlags::Own;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(forwarding.mac.to_vec()));
        self.delete_entry(message, format!("delete the forwarding entry for {}", forwarding.node)).await
    }

    async fn delete_entry(&self, message: NeighbourMessage, action: String) -> Result<(), Error> {
        match self.handle.neighbours().del(message).execute().await {
            Err(error) if !is_errno(&error, Errno::ENOENT) => Err(Error::link(action)(error)),
            _ => Ok(()),
        }
    }

    /// Returns the permanent neighbours of a link.
    pub async fn neighbours(&self, link: u32) -> Result<Vec<Neighbour>, Error> {
        let mut found = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            found.extend(self.entries(link, family).await?.iter().filter_map(|message| {
                let (address, mac) = parts(message);
                Some(Neighbour { address: address?, mac: mac? })
            }));
        }
        Ok(found)
    }

    /// Returns the forwarding entries of a VXLAN link.
    pub async fn forwardings(&self, link: u32) -> Result<Vec<Forwarding>, Error> {
        let entries = self.entries(link, AddressFamily::Bridge).await?;
        let entry = |message: &NeighbourMessage| {
            let (node, mac) = parts(message);
            Some(Forwarding { mac: mac?, node: node? })
        };
        Ok(entries.iter().filter_map(entry).collect())
    }

    async fn entries(&self, link: u32, family: AddressFamily) -> Result<Vec<NeighbourMessage>, Error> {
        let all = self.handle.neighbours().get().set_address_family(family).execute();
        let mut all: Vec<NeighbourMessage> = all.try_collect().await.map_err(Error::link("list neighbours"))?;
        all.retain(|message| message.header.ifindex == link && message.header.state == NeighbourState::Permanent);
        Ok(all)
    }
}

fn parts(message: &NeighbourMessage) -> (Option<IpAddr>, Option<[u8; 6]>) {
    let mut address = None;
    let mut mac = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(found)) => address = Some(IpAddr::from(*found)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(found)) => address = Some(IpAddr::from(*found)),
            // A forwarding entry has no family itself; the length of the address decides.
            NeighbourAttribute::Destination(NeighbourAddress::Other(found)) => address = of_length(found),
            NeighbourAttribute::LinkLayerAddress(found) => mac = found.as_slice().try_into().ok(),
            _ => {}
        }
    }
    (address, mac)
}

fn of_length(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
        16 => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
        _ => None,
    }
}
