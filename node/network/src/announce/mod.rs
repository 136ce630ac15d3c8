//! The addresses of Services of type LoadBalancer that come from a pool, announced on the link.
//!
//! Each address is held by one node, which every node computes for itself: of the nodes that can serve, the one whose
//! name and the address have the greatest hash. So the addresses of a lost node move to others, and all others stay.
//! The holder adds the address to a link, which makes the kernel answer ARP or neighbour solicitations for it, and
//! announces to the neighbours that it has moved. The Service proxy takes the packets that arrive.
//!
//! An address has a lifetime of a minute in the kernel, which the holder renews: the addresses of a killed holder
//! expire by themselves, and the next start takes them back at once.
//!
//! Only addresses of the pool, and those on our own link, are added or deleted.

pub(crate) mod gratuitous;
mod holders;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use corten_api::{ADDRESS_POOLS, AddressPool, NETWORK_GROUP, NETWORK_VERSION};
use corten_client::{Cache, Caches, Change, Client, Resource, Subscription};
use corten_meta::Key;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::error::Error;
use crate::links::Links;
use holders::{Candidates, Claim};

/// The lifetime of an address that its holder does not renew: a killed holder releases nothing.
const LIFETIME: Duration = Duration::from_secs(60);
/// The interval at which a holder renews its addresses.
const RENEWAL: Duration = Duration::from_secs(20);
/// The wait after a failure.
const RETRY: Duration = Duration::from_secs(10);
/// The time until the repeated announcement, because a single frame may be lost.
const REPEAT: Duration = Duration::from_secs(1);
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The node's name, and the addresses that it may hold.
#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: String,
    /// The ranges of the pool, both ends included.
    pub pool: Vec<(IpAddr, IpAddr)>,
    /// Whether the API server has AddressPools, whose addresses are held too.
    pub has_pools: bool,
    /// The link that holds the addresses. Default `corten.lb`.
    pub link: String,
}

impl Config {
    pub fn new(node_name: impl Into<String>, pool: Vec<(IpAddr, IpAddr)>) -> Config {
        Config { node_name: node_name.into(), pool, has_pools: false, link: "corten.lb".to_owned() }
    }

    fn in_pool(&self, address: IpAddr) -> bool {
        self.pool
            .iter()
            .any(|(first, last)| *first <= address && address <= *last && address.is_ipv4() == first.is_ipv4())
    }
}

/// Holds this node's addresses until shutdown, then releases them, so that other nodes may hold them.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) -> Result<(), Error> {
    let caches = Caches::new(client, shutdown.clone());
    let services = caches.of::<Service>();
    let nodes = caches.of::<Node>();
    let slices = caches.of::<EndpointSlice>();
    let resource = Resource::new(NETWORK_GROUP, NETWORK_VERSION, ADDRESS_POOLS, false);
    let pools = config.has_pools.then(|| caches.dynamic(&resource));
    caches.synced().await;
    let mut of_services = services.subscribe();
    let mut of_nodes = nodes.subscribe();
    let mut of_slices = slices.subscribe();
    let mut of_pools = pools.as_ref().map(|pools| pools.subscribe());
    let static_config = config;
    let links = Links::open()?;
    // The addresses of an earlier run are unknown: the first pass adopts or deletes them.
    let mut held = None;
    let mut renewal = tokio::time::interval(RENEWAL);
    renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        while of_services.try_next().is_some() || of_nodes.try_next().is_some() || of_slices.try_next().is_some() {}
        while of_pools.as_mut().is_some_and(|pools| pools.try_next().is_some()) {}
        let config = with_pools(&static_config, pools.as_deref());
        if shutdown.is_cancelled() {
            break;
        }
        let claims: Vec<Claim> =
            services.all().iter().filter_map(|object| Claim::of(&object.value(), |ip| config.in_pool(ip))).collect();
        let candidates = Candidates::of(nodes.all().iter().map(|node| node.value()));
        let local = local_nodes(&claims, &slices);
        let wanted = holders::held_by(&config.node_name, &claims, &candidates, &local);
        let complete = match apply(&links, &config, &wanted, &mut held).await {
            Ok(()) => true,
            Err(error) => {
                warn!("cannot hold the addresses of load balancers: {error}");
                false
            }
        };
        tokio::select! {
            change = of_services.next() => if change.is_none() { break },
            change = of_nodes.next() => if change.is_none() { break },
            change = of_slices.next() => if change.is_none() { break },
            change = next_of(&mut of_pools) => if change.is_none() { break },
            _ = renewal.tick() => held = None,
            () = tokio::time::sleep(RETRY), if !complete => {}
            () = shutdown.cancelled() => break,
        }
    }
    cleanup(&with_pools(&static_config, pools.as_deref())).await
}

/// Returns the settings with the ranges of the AddressPools that are announced on the link.
fn with_pools(config: &Config, pools: Option<&Cache>) -> Config {
    let objects = pools.map(Cache::all).unwrap_or_default();
    let pools = objects.iter().filter_map(|object| AddressPool::of(&object.value()).ok()).filter(|pool| pool.l2);
    let mut config = config.clone();
    config.pool.extend(pools.flat_map(|pool| pool.ranges).map(|range| range.bounds()));
    config
}

/// Waits for a change; forever if there is nothing to follow.
async fn next_of(subscription: &mut Option<Subscription>) -> Option<Change> {
    match subscription {
        Some(subscription) => subscription.next().await,
        None => std::future::pending().await,
    }
}

/// Releases every address of a node that is removed.
pub async fn cleanup(config: &Config) -> Result<(), Error> {
    let links = Links::open()?;
    hold_ipv6(&links, config, &BTreeSet::new()).await?;
    links.delete(&config.link).await
}

/// Returns the nodes with ready endpoints of Services with `externalTrafficPolicy: Local`.
fn local_nodes(claims: &[Claim], slices: &corten_client::Cache) -> BTreeMap<Key, BTreeSet<String>> {
    let wanted: BTreeSet<&Key> = claims.iter().filter(|claim| claim.local).map(|claim| &claim.service).collect();
    let mut found: BTreeMap<Key, BTreeSet<String>> = BTreeMap::new();
    if wanted.is_empty() {
        return found;
    }
    for slice in slices.all() {
        let Some(name) = slice.header.labels.get(SERVICE_NAME) else { continue };
        let key = Key::new(slice.header.namespace.clone(), name.clone());
        if wanted.contains(&key) {
            found.entry(key).or_default().extend(holders::ready_nodes(&slice.value()));
        }
    }
    found
}

/// Makes this node hold exactly the wanted addresses, and announces new ones to the neighbours.
async fn apply(
    links: &Links,
    config: &Config,
    wanted: &BTreeSet<IpAddr>,
    held: &mut Option<BTreeSet<IpAddr>>,
) -> Result<(), Error> {
    if held.as_ref() == Some(wanted) {
        return Ok(());
    }
    let (ipv4, ipv6): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = wanted.iter().partition(|address| address.is_ipv4());
    let mut new = hold_ipv4(links, &config.link, &ipv4).await?;
    new.extend(hold_ipv6(links, config, &ipv6).await?);
    *held = Some(wanted.clone());
    if new.is_empty() {
        return Ok(());
    }
    let uplinks = links.broadcast_links().await?;
    for round in 0..2 {
        if round > 0 {
            tokio::time::sleep(REPEAT).await;
        }
        for uplink in &uplinks {
            gratuitous::announce(uplink, &new).unwrap_or_else(|error| {
                warn!(link = uplink.index, "cannot announce a new address to neighbours: {error}");
            });
        }
    }
    Ok(())
}

/// Holds the IPv4 addresses and returns the new ones. A host answers ARP for any address it has, so they are on a link
/// of our own.
async fn hold_ipv4(links: &Links, name: &str, wanted: &BTreeSet<IpAddr>) -> Result<Vec<IpAddr>, Error> {
    let link = links.ensure_holder(name).await?;
    let present = links.addresses(link.index).await?;
    for address in present.difference(wanted) {
        links.delete_address(link.index, *address).await?;
        info!(%address, "released the address of a load balancer");
    }
    for address in wanted {
        links.lend_address(link.index, *address, LIFETIME).await?;
    }
    Ok(log_new(wanted, &present))
}

fn log_new(wanted: &BTreeSet<IpAddr>, present: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
    let new: Vec<IpAddr> = wanted.difference(present).copied().collect();
    for address in &new {
        info!(%address, "holds the address of a load balancer");
    }
    new
}

/// Holds the IPv6 addresses and returns the new ones. A host answers neighbour solicitations only for addresses of the
/// link that they arrive on, so the address is added there. Every address of the pool is ours, on whichever link it is.
async fn hold_ipv6(links: &Links, config: &Config, wanted: &BTreeSet<IpAddr>) -> Result<Vec<IpAddr>, Error> {
    if !config.pool.iter().any(|(first, _)| first.is_ipv6()) {
        return Ok(Vec::new());
    }
    let mut present = BTreeSet::new();
    for uplink in links.broadcast_links().await? {
        for address in links.addresses(uplink.index).await?.into_iter().filter(|address| config.in_pool(*address)) {
            if wanted.contains(&address) {
                links.lend_address(uplink.index, address, LIFETIME).await?;
                present.insert(address);
            } else {
                links.delete_address(uplink.index, address).await?;
                info!(%address, "released the address of a load balancer");
            }
        }
    }
    for address in wanted.difference(&present) {
        let uplink = links.uplink_towards(*address).await?;
        links.lend_address(uplink, *address, LIFETIME).await?;
    }
    Ok(log_new(wanted, &present))
}
