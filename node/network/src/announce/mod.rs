//! The addresses of Services of type LoadBalancer that come from a pool, announced on the link.
//!
//! Each address is held by one node, which every node finds out for itself: of the nodes that can serve, the one whose
//! name and the address make the greatest hash. So a lost node's addresses move to others, and all else stays. The
//! holder puts the address on a link of its own, which makes the kernel answer ARP for it on every link, and tells the
//! neighbours once that it has moved. What arrives is the Service proxy's.
//!
//! Only addresses on our own link are added or deleted.

pub(crate) mod gratuitous;
mod holders;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use corten_client::{Caches, Client};
use corten_meta::Key;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::error::Error;
use crate::links::Links;
use holders::{Candidates, Claim};

/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(10);
/// Neighbours are told again after this, because a single frame may be lost.
const REPEAT: Duration = Duration::from_secs(1);
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Which node this is, and which addresses it may hold.
#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: String,
    /// The ranges of the pool, both ends included.
    pub pool: Vec<(IpAddr, IpAddr)>,
    /// The link that holds the addresses. Default `corten.lb`.
    pub link: String,
}

impl Config {
    pub fn new(node_name: impl Into<String>, pool: Vec<(IpAddr, IpAddr)>) -> Config {
        Config { node_name: node_name.into(), pool, link: "corten.lb".to_owned() }
    }

    fn in_pool(&self, address: IpAddr) -> bool {
        self.pool
            .iter()
            .any(|(first, last)| *first <= address && address <= *last && address.is_ipv4() == first.is_ipv4())
    }
}

/// Holds the addresses that are this node's until shutdown, then gives them up, so that others may have them.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) -> Result<(), Error> {
    let caches = Caches::new(client, shutdown.clone());
    let (services, nodes, slices) = (caches.of::<Service>(), caches.of::<Node>(), caches.of::<EndpointSlice>());
    caches.synced().await;
    let (mut of_services, mut of_nodes, mut of_slices) = (services.subscribe(), nodes.subscribe(), slices.subscribe());
    let links = Links::open()?;
    let mut held = BTreeSet::new();
    loop {
        while of_services.try_next().is_some() || of_nodes.try_next().is_some() || of_slices.try_next().is_some() {}
        if shutdown.is_cancelled() {
            break;
        }
        let claims: Vec<Claim> =
            services.all().iter().filter_map(|object| Claim::of(&object.value(), |ip| config.in_pool(ip))).collect();
        let candidates = Candidates::of(nodes.all().iter().map(|node| node.value()));
        let local = local_nodes(&claims, &slices);
        let wanted = holders::held_by(&config.node_name, &claims, &candidates, &local);
        let whole = match apply(&links, &config.link, &wanted, &mut held).await {
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
            () = tokio::time::sleep(RETRY), if !whole => {}
            () = shutdown.cancelled() => break,
        }
    }
    links.delete(&config.link).await
}

/// Gives up every address that a node that is to be no more still holds.
pub async fn cleanup(config: &Config) -> Result<(), Error> {
    Links::open()?.delete(&config.link).await
}

/// The nodes with ready endpoints of Services that are served by such nodes only.
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

/// Makes the link hold exactly the wanted addresses, and tells the neighbours of new ones.
async fn apply(links: &Links, name: &str, wanted: &BTreeSet<IpAddr>, held: &mut BTreeSet<IpAddr>) -> Result<(), Error> {
    if wanted == held {
        return Ok(());
    }
    let link = links.ensure_holder(name).await?;
    let present = links.addresses(link.index).await?;
    for address in present.difference(wanted) {
        links.delete_address(link.index, *address).await?;
        info!(%address, "gave up the address of a load balancer");
    }
    let new: Vec<IpAddr> = wanted.difference(&present).copied().collect();
    for address in &new {
        links.add_tunnel_address(link.index, *address).await?;
        info!(%address, "holds the address of a load balancer");
    }
    held.clone_from(wanted);
    let uplinks = links.broadcast_links().await?;
    let ipv4: Vec<Ipv4Addr> =
        new.iter().filter_map(|ip| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None }).collect();
    if !ipv4.is_empty() {
        for round in 0..2 {
            if round > 0 {
                tokio::time::sleep(REPEAT).await;
            }
            for uplink in &uplinks {
                gratuitous::announce(uplink, &ipv4).unwrap_or_else(|error| {
                    warn!(link = uplink.index, "cannot tell neighbours of a new address: {error}");
                });
            }
        }
    }
    Ok(())
}
