//! The link that holds announced addresses, and the links on which they are announced.

use std::collections::BTreeSet;
use std::net::IpAddr;

use futures::TryStreamExt;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::{LinkBridge, LinkUnspec};

use super::{Link, Links};
use crate::error::Error;

/// A link whose neighbours receive announcements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uplink {
    pub index: u32,
    pub mac: [u8; 6],
}

impl Links {
    /// Makes a link that leads nowhere and is up: a bridge without ports, which every kernel that carries pods has.
    pub async fn ensure_holder(&self, name: &str) -> Result<Link, Error> {
        if self.find(name).await?.is_none() {
            let added = self.handle.link().add(LinkBridge::new(name).build()).execute().await;
            added.map_err(Error::link(format!("add the link {name}")))?;
        }
        let link = self.get(name).await?;
        let change = LinkUnspec::new_with_index(link.index).up().build();
        self.handle.link().set(change).execute().await.map_err(Error::link(format!("set link {name} up")))?;
        Ok(link)
    }

    async fn address_messages(&self, link: u32) -> Result<Vec<AddressMessage>, Error> {
        let found = self.handle.address().get().set_link_index_filter(link).execute();
        found.try_collect().await.map_err(Error::link("list addresses"))
    }

    /// Returns the global addresses of a link.
    pub async fn addresses(&self, link: u32) -> Result<BTreeSet<IpAddr>, Error> {
        let messages = self.address_messages(link).await?;
        Ok(messages.iter().filter_map(address).filter(|address| !is_link_local(*address)).collect())
    }

    pub async fn delete_address(&self, link: u32, removed: IpAddr) -> Result<(), Error> {
        for message in self.address_messages(link).await? {
            if address(&message) == Some(removed) {
                let deleted = self.handle.address().del(message).execute().await;
                deleted.map_err(Error::link(format!("delete address {removed}")))?;
            }
        }
        Ok(())
    }

    /// Returns the links with neighbours: those that are up, broadcast, and not ours.
    pub async fn broadcast_links(&self) -> Result<Vec<Uplink>, Error> {
        let all: Vec<LinkMessage> =
            self.handle.link().get().execute().try_collect().await.map_err(Error::link("list links"))?;
        Ok(all.iter().filter_map(uplink).collect())
    }
}

fn address(message: &AddressMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    })
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn uplink(message: &LinkMessage) -> Option<Uplink> {
    let flags = message.header.flags;
    let mut mac = None;
    let mut own = false;
    let mut port = false;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(address) => mac = address.as_slice().try_into().ok(),
            LinkAttribute::IfName(name) => own |= name.starts_with("corten"),
            LinkAttribute::Controller(_) => port = true,
            _ => {}
        }
    }
    let carries = flags.contains(LinkFlags::Up) && flags.contains(LinkFlags::Broadcast) && !own && !port;
    mac.filter(|_| carries).map(|mac| Uplink { index: message.header.index, mac })
}
