//! Routes to the pods of other nodes. Ours have a protocol number of their own; no other route is read or changed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt;
use nix::errno::Errno;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType};

use super::{Links, is_errno, output_interface};
use crate::cidr::Cidr;
use crate::error::Error;

/// The routing protocol number of our routes.
pub(super) const ROUTE_PROTOCOL_NUMBER: u8 = 67;
const ROUTE_PROTOCOL: RouteProtocol = RouteProtocol::Other(ROUTE_PROTOCOL_NUMBER);

/// The metric of fences: any other route to the same range is preferred.
const FENCE_METRIC: u32 = 0xff00_0000;

/// The link by which packets to another node's pods leave this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RouteLink {
    /// The link that leads to the next hop.
    Uplink,
    /// The link of this index.
    Link(u32),
}

/// A route to the pods of another node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    pub destination: Cidr,
    pub via: IpAddr,
    pub link: RouteLink,
}

impl Links {
    /// Adds the route `destination via next-hop dev link onlink proto corten`; returns the link.
    pub async fn add_node_route(&self, route: &Route) -> Result<u32, Error> {
        let index = match route.link {
            RouteLink::Uplink => self.uplink_towards(route.via).await?,
            RouteLink::Link(index) => index,
        };
        let message = message(route, Some(index))?;
        self.replace_route(message, format!("add route {}", route.destination)).await?;
        Ok(index)
    }

    pub async fn delete_node_route(&self, route: &Route) -> Result<(), Error> {
        match self.handle.route().del(message(route, None)?).execute().await {
            Err(error) if !is_errno(&error, Errno::ESRCH) => {
                Err(Error::link(format!("delete route {}", route.destination))(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns our routes, each with its link; those by the link `overlay` are marked as such.
    pub async fn node_routes(&self, overlay: Option<u32>) -> Result<Vec<(Route, Option<u32>)>, Error> {
        Ok(self.our_routes().await?.iter().filter_map(|message| our_route(message, overlay)).collect())
    }

    /// Adds the route `unreachable range proto corten`.
    pub async fn add_fence(&self, range: Cidr) -> Result<(), Error> {
        self.replace_route(fence(range)?, format!("add the fence around {range}")).await
    }

    pub async fn delete_fence(&self, range: Cidr) -> Result<(), Error> {
        match self.handle.route().del(fence(range)?).execute().await {
            Err(error) if !is_errno(&error, Errno::ESRCH) => {
                Err(Error::link(format!("delete the fence around {range}"))(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the ranges with a fence of ours.
    pub async fn fences(&self) -> Result<Vec<Cidr>, Error> {
        let all = self.our_routes().await?;
        let fences = all.iter().filter(|message| message.header.kind == RouteType::Unreachable);
        Ok(fences.filter_map(destination).collect())
    }

    async fn our_routes(&self) -> Result<Vec<RouteMessage>, Error> {
        let ipv4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let ipv6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
        let mut found = Vec::new();
        for all in [ipv4, ipv6] {
            let routes: Vec<RouteMessage> =
                self.handle.route().get(all).execute().try_collect().await.map_err(Error::link("list routes"))?;
            found.extend(routes.into_iter().filter(|route| route.header.protocol == ROUTE_PROTOCOL));
        }
        Ok(found)
    }

    /// Returns the index of the link that packets to the address leave by.
    pub async fn uplink_towards(&self, address: IpAddr) -> Result<u32, Error> {
        let no_route = || Error::NoRoute(address);
        let length = if address.is_ipv4() { 32 } else { 128 };
        let question =
            RouteMessageBuilder::<IpAddr>::new().destination_prefix(address, length).map_err(|_| no_route())?.build();
        let answer: Result<Vec<RouteMessage>, _> = self.handle.route().get(question).execute().try_collect().await;
        let answer = answer.map_err(|_| no_route())?;
        answer.first().and_then(output_interface).ok_or_else(no_route)
    }
}

fn message(route: &Route, link: Option<u32>) -> Result<RouteMessage, Error> {
    let mixed = |_| Error::NoRoute(route.via);
    // A node may be a neighbour without an address of our subnet, as the first node of a machine is to the nodes in its
    // namespaces: hence onlink.
    let builder = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(route.destination.address(), route.destination.length())
        .and_then(|builder| builder.gateway(route.via))
        .map_err(mixed)?
        .protocol(ROUTE_PROTOCOL)
        .onlink();
    Ok(match link {
        Some(index) => builder.output_interface(index).build(),
        None => builder.build(),
    })
}

fn fence(range: Cidr) -> Result<RouteMessage, Error> {
    let builder = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(range.address(), range.length())
        .map_err(|_| Error::NoRoute(range.address()))?;
    Ok(builder.protocol(ROUTE_PROTOCOL).kind(RouteType::Unreachable).priority(FENCE_METRIC).build())
}

fn address_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::from(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::from(*address)),
        _ => None,
    }
}

fn destination(message: &RouteMessage) -> Option<Cidr> {
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(address) => address_of(address),
        _ => None,
    })?;
    Cidr::new(address, message.header.destination_prefix_length)
}

fn our_route(message: &RouteMessage, overlay: Option<u32>) -> Option<(Route, Option<u32>)> {
    let via = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(address) => address_of(address),
        _ => None,
    })?;
    let destination = destination(message)?;
    let index = output_interface(message);
    let link = match index {
        Some(index) if Some(index) == overlay => RouteLink::Link(index),
        _ => RouteLink::Uplink,
    };
    Some((Route { destination, via, link }, index))
}
