//! The routes to the pods of the other nodes, by one of three backends.
//!
//! - [`Backend::HostGateway`]: nodes are neighbours (one subnet, or namespaces of one machine), so plain routes are
//!   enough and no packet is encapsulated.
//! - [`Backend::Vxlan`]: packets travel in UDP between the nodes' addresses, over any network between them.
//! - [`Backend::Wireguard`]: the same, encrypted; each node publishes its key on its Node object.
//!
//! Each node has a handful of entries, which follow from its Node object alone. A change is applied to the kernel entry
//! by entry: one more node among thousands is one route, one neighbour and one forwarding entry. Only entries that we
//! made are read, added or deleted.
//!
//! Node objects are not trusted: `claims` decides which ranges and addresses are a node's. Packets for pod addresses
//! that no node has end at a fence, an unreachable route to the cluster's pod CIDR, and never follow the default route.
//! `shield` keeps every other host out of VXLAN.

mod claims;
mod plan;
mod shield;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use corten_api::{Typed, decode_object};
use corten_client::{Caches, Change, Client, EventRecorder, EventType, ObjectRef, Patch};
use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cidr::Cidr;
use crate::error::Error;
use crate::links::{Event, Events, Link, Links, TunnelEnd};
use crate::sysctl;
use crate::wireguard::{self, ANNOTATION, Key, Tunnel, Wireguard};
use claims::{Ground, Owners, Refused};
use plan::{Entry, Overlay, Peer};
use shield::Shield;

/// The time after which failed entries are retried, if no event comes before.
const RETRY: Duration = Duration::from_secs(10);
/// The interval at which the kernel is checked for deleted entries without events: neighbours, forwarding entries and
/// tunnels.
const CHECK: Duration = Duration::from_secs(60);
/// The bytes that VXLAN adds to a packet: outer Ethernet, IPv6, UDP and VXLAN headers at most.
const VXLAN_OVERHEAD: u32 = 70;
/// The links of the overlays.
pub(crate) const VXLAN_LINK: &str = "corten.vxlan";
pub(crate) const WIREGUARD_LINK: &str = "corten.wg";
const VXLAN_NETWORK: u32 = 67;
/// The port of VXLAN in the Linux kernel.
pub const VXLAN_PORT: u16 = 8472;

/// The transport of packets between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Vxlan,
    HostGateway,
    Wireguard,
}

impl Backend {
    /// Returns the bytes of the uplink's MTU that it takes.
    pub fn overhead(self) -> u32 {
        match self {
            Backend::Vxlan => VXLAN_OVERHEAD,
            Backend::HostGateway => 0,
            Backend::Wireguard => wireguard::OVERHEAD,
        }
    }
}

/// The settings of this node and its backend.
#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: String,
    pub backend: Backend,
    /// The pod CIDRs of this node.
    pub pod_cidrs: Vec<Cidr>,
    /// The node's own address: its IP family carries the overlay's packets.
    pub node_address: IpAddr,
    /// All addresses by which other nodes know this node.
    pub node_addresses: Vec<IpAddr>,
    /// The cluster's pod CIDRs and Service CIDRs.
    pub cluster_cidrs: Vec<Cidr>,
    pub service_cidrs: Vec<Cidr>,
    /// The addresses of the API servers, as far as they are known at each decision.
    pub api_servers: watch::Receiver<Vec<IpAddr>>,
}

impl Config {
    fn ground(&self) -> Ground {
        Ground {
            cluster_cidrs: self.cluster_cidrs.clone(),
            service_cidrs: self.service_cidrs.clone(),
            pod_cidrs: self.pod_cidrs.clone(),
            addresses: self.node_addresses.clone(),
            api_servers: self.api_servers.borrow().clone(),
        }
    }
}

/// Whether every wanted entry is in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    Partial,
}

/// The other nodes, and their entries in the kernel.
struct Router {
    config: Config,
    links: Links,
    /// The link of the overlay, if the backend has one.
    overlay: Option<Link>,
    wireguard: Option<Wireguard>,
    peers: BTreeMap<String, Peer>,
    /// The owners of claims, and the refused claims of the last decision.
    owners: Owners,
    refused: BTreeSet<Refused>,
    /// The filter of the hosts that may send through VXLAN, where that is the backend.
    shield: Shield,
    /// The recorder of refused claims, in addition to the log.
    events: Option<EventRecorder>,
    /// The entries in the kernel; `None` if unknown.
    applied: Option<BTreeSet<Entry>>,
    /// The links of our routes, present and past.
    route_links: BTreeSet<u32>,
    /// Whether other nodes may be behind other links than before.
    moved: bool,
}

impl Router {
    async fn open(config: Config) -> Result<Router, Error> {
        let links = Links::open()?;
        for (backend, link) in [(Backend::Vxlan, VXLAN_LINK), (Backend::Wireguard, WIREGUARD_LINK)] {
            if backend != config.backend {
                links.delete(link).await?;
            }
        }
        let wireguard = (config.backend == Backend::Wireguard).then(Wireguard::open).transpose()?;
        let mut router = Router {
            shield: Shield::new(config.node_address, &config.pod_cidrs, config.backend == Backend::Vxlan),
            config,
            links,
            overlay: None,
            wireguard,
            peers: BTreeMap::new(),
            owners: Owners::default(),
            refused: BTreeSet::new(),
            events: None,
            applied: None,
            route_links: BTreeSet::new(),
            moved: false,
        };
        router.shield.raise()?;
        router.ensure_overlay().await?;
        Ok(router)
    }

    /// Makes the link of the overlay exist and be up, if the backend has one.
    async fn ensure_overlay(&mut self) -> Result<(), Error> {
        self.overlay = match self.config.backend {
            Backend::Vxlan => Some(vxlan_link(&self.links, &self.config).await?),
            Backend::Wireguard => Some(wireguard_link(&self.links, &self.config).await?),
            Backend::HostGateway => None,
        };
        if self.config.pod_cidrs.iter().any(|cidr| cidr.address().is_ipv4()) {
            self.route_localhost()?;
        }
        Ok(())
    }

    /// Has the overlay carry node ports of localhost whose endpoint is on another node. The guard of the pod network
    /// drops packets of other nodes to 127.0.0.0/8.
    fn route_localhost(&self) -> Result<(), Error> {
        let link = match self.config.backend {
            Backend::Vxlan => VXLAN_LINK,
            Backend::Wireguard => WIREGUARD_LINK,
            Backend::HostGateway => return Ok(()),
        };
        sysctl::set(&format!("net/ipv4/conf/{link}/route_localnet"), "1")
    }

    /// Handles events of the kernel; returns whether the entries must be applied again.
    async fn handle_events(&mut self, events: &[Event]) -> Result<bool, Error> {
        let overlay = self.overlay.as_ref().map(|link| link.index);
        if overlay.is_some_and(|index| events.contains(&Event::LinkLost(index))) {
            warn!("the link of the overlay went down or away; it is brought back");
            self.ensure_overlay().await?;
        }
        let lost = |event: &Event| match event {
            Event::LinkLost(index) => self.route_links.contains(index) || overlay == Some(*index),
            Event::OwnRouteDeleted | Event::Missed => true,
            Event::RouteChanged => false,
        };
        // The links of other nodes matter only without an overlay.
        self.moved |= overlay.is_none() && events.contains(&Event::RouteChanged);
        Ok((events.iter().any(lost) || self.moved) && self.forget_applied())
    }

    /// Returns the key that other nodes need, if the backend has one.
    fn public_key(&mut self) -> Result<Option<Key>, Error> {
        let (Some(wireguard), Some(link)) = (&mut self.wireguard, &self.overlay) else { return Ok(None) };
        wireguard.ensure_key(link.index).map(Some)
    }

    /// Updates a node; returns whether the entries must be applied again.
    fn set(&mut self, name: &str, node: Option<&Node>) -> bool {
        let peer = node.filter(|_| name != self.config.node_name).map(Peer::of);
        if self.peers.get(name) == peer.as_ref() {
            return false;
        }
        match peer {
            Some(peer) => drop(self.peers.insert(name.to_owned(), peer)),
            None => drop(self.peers.remove(name)),
        }
        true
    }

    /// Returns the other nodes with the claims that count.
    fn trusted_peers(&mut self) -> Vec<Peer> {
        let decision = claims::decide(&self.config.ground(), &self.peers, &self.owners);
        self.owners = decision.owners;
        let before = std::mem::replace(&mut self.refused, decision.refused);
        self.refused.difference(&before).for_each(|refused| self.report(refused));
        decision.peers
    }

    fn report(&self, refused: &Refused) {
        warn!("{refused}");
        let Some(events) = &self.events else { return };
        let name = refused.node.clone();
        // As the kubelet names a node in events: by its name.
        let node = ObjectRef { kind: "Node".to_owned(), uid: name.clone(), name, ..ObjectRef::default() };
        let node = ObjectRef { api_version: "v1".to_owned(), ..node };
        events.event(&node, EventType::Warning, refused.claim.event(), refused.to_string());
    }

    fn wanted(&self, peers: &[Peer]) -> BTreeSet<Entry> {
        let ipv4 = self.config.node_address.is_ipv4();
        let wireguard = self.wireguard.is_some();
        let overlay = self.overlay.as_ref().map(|link| Overlay { link: link.index, ipv4, wireguard });
        let fences = self.config.cluster_cidrs.iter().copied().map(Entry::Fence);
        plan::wanted(peers, overlay).into_iter().chain(fences).collect()
    }

    /// Reconciles our entries with the nodes. Logs and skips a node that cannot be reached, so that it does not cut off
    /// the others.
    async fn apply(&mut self) -> Result<Outcome, Error> {
        let peers = self.trusted_peers();
        self.shield.admit(peers.iter().flat_map(|peer| &peer.addresses).copied())?;
        let wanted = self.wanted(&peers);
        let mut present = match self.applied.take() {
            Some(applied) => applied,
            None => self.present().await?,
        };
        if std::mem::take(&mut self.moved) {
            // Adding a route again moves it to the link that leads to its node now.
            present.retain(|entry| !wanted.contains(entry) || !entry.is_by_uplink());
        }
        let mut outcome = Outcome::Complete;
        for entry in wanted.difference(&present.clone()) {
            match self.add(entry).await {
                Ok(()) => {
                    info!("added {entry}");
                    present.retain(|other| !entry.replaces(other));
                    present.insert(entry.clone());
                }
                Err(error) => {
                    warn!("cannot add {entry}: {error}");
                    outcome = Outcome::Partial;
                }
            }
        }
        for entry in present.clone().difference(&wanted) {
            self.delete(entry).await?;
            present.remove(entry);
            info!("deleted {entry}");
        }
        self.applied = (outcome == Outcome::Complete).then_some(present);
        Ok(outcome)
    }

    /// Checks the overlay's link, and reads the kernel's entries anew; always returns true.
    async fn check_again(&mut self) -> bool {
        if let Err(error) = self.ensure_overlay().await {
            warn!("the link of the overlay is missing: {error}");
        }
        self.shield.forget_applied();
        self.forget_applied()
    }

    /// Forgets the kernel's entries, so that they are read anew; always returns true.
    fn forget_applied(&mut self) -> bool {
        self.applied = None;
        true
    }

    async fn present(&mut self) -> Result<BTreeSet<Entry>, Error> {
        let overlay = self.overlay.as_ref().map(|link| link.index);
        let mut found = BTreeSet::new();
        for (route, link) in self.links.node_routes(overlay).await? {
            found.insert(Entry::Route(route));
            self.route_links.extend(link);
        }
        found.extend(self.links.fences().await?.into_iter().map(Entry::Fence));
        if let (Some(link), Some(wireguard)) = (overlay, &mut self.wireguard) {
            found.extend(wireguard.device(link)?.tunnels.into_iter().map(Entry::Tunnel));
        } else if let Some(link) = overlay {
            found.extend(self.links.neighbours(link).await?.into_iter().map(Entry::Neighbour));
            found.extend(self.links.forwardings(link).await?.into_iter().map(Entry::Forwarding));
        }
        Ok(found)
    }

    async fn add(&mut self, entry: &Entry) -> Result<(), Error> {
        let link = self.overlay.as_ref().map_or(0, |link| link.index);
        match entry {
            Entry::Forwarding(forwarding) => self.links.add_forwarding(link, forwarding).await,
            Entry::Neighbour(neighbour) => self.links.add_neighbour(link, neighbour).await,
            Entry::Tunnel(tunnel) => self.set_tunnel(link, tunnel, true),
            Entry::Route(route) => self.links.add_node_route(route).await.map(|link| self.route_links.extend([link])),
            Entry::Fence(range) => self.links.add_fence(*range).await,
        }
    }

    async fn delete(&mut self, entry: &Entry) -> Result<(), Error> {
        let link = self.overlay.as_ref().map_or(0, |link| link.index);
        match entry {
            Entry::Forwarding(forwarding) => self.links.delete_forwarding(link, forwarding).await,
            Entry::Neighbour(neighbour) => self.links.delete_neighbour(link, neighbour).await,
            Entry::Tunnel(tunnel) => self.set_tunnel(link, tunnel, false),
            Entry::Route(route) => self.links.delete_node_route(route).await,
            Entry::Fence(range) => self.links.delete_fence(*range).await,
        }
    }
}

impl Router {
    fn set_tunnel(&mut self, link: u32, tunnel: &Tunnel, exists: bool) -> Result<(), Error> {
        self.wireguard.as_mut().map_or(Ok(()), |wireguard| wireguard.set_tunnel(link, tunnel, exists))
    }
}

/// Makes the WireGuard link of a node with these pods.
async fn wireguard_link(links: &Links, config: &Config) -> Result<Link, Error> {
    let mtu = links.uplink_mtu().await?.saturating_sub(wireguard::OVERHEAD);
    let link = links.ensure_wireguard(WIREGUARD_LINK, mtu).await?;
    for cidr in &config.pod_cidrs {
        links.add_tunnel_address(link.index, plan::tunnel_address(cidr)).await?;
    }
    Ok(link)
}

/// Makes the VXLAN link of a node with these pods. Its addresses are those that the other nodes route to.
async fn vxlan_link(links: &Links, config: &Config) -> Result<Link, Error> {
    // The other nodes derive the hardware address from the lowest of the ranges, as they do for each other.
    let Some(first) = config.pod_cidrs.iter().min() else { return Err(Error::NoLink(VXLAN_LINK.to_owned())) };
    let mtu = links.uplink_mtu().await?.saturating_sub(VXLAN_OVERHEAD);
    let mac = plan::tunnel_mac(first);
    let node = config.node_address;
    let end = TunnelEnd { vni: VXLAN_NETWORK, port: VXLAN_PORT, mac, node, mtu };
    let link = links.ensure_vxlan(VXLAN_LINK, &end).await?;
    for cidr in &config.pod_cidrs {
        links.add_tunnel_address(link.index, plan::tunnel_address(cidr)).await?;
    }
    Ok(link)
}

/// Keeps the routes to the pods of the other nodes until shutdown. They stay then, because pods do. `own` is the client
/// that may write the Node object of this node.
pub async fn run(config: Config, client: Client, own: Client, shutdown: CancellationToken) -> Result<(), Error> {
    let caches = Caches::new(client, shutdown.clone());
    let nodes = caches.of::<Node>();
    nodes.synced().await;
    let mut changes = nodes.subscribe();
    let node_name = config.node_name.clone();
    // Before the first read of the kernel's entries, so that no event between the two is missed.
    let events = Events::open()?;
    let mut router = Router::open(config).await?;
    router.events = Some(EventRecorder::new(own.clone(), "corten-network", &*node_name));
    let mut key = router.public_key()?;
    let mut published = None;
    let mut outcome = Outcome::Partial;
    let mut dirty = true;
    let mut checks = tokio::time::interval_at(Instant::now() + CHECK, CHECK);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        while let Some(change) = changes.try_next() {
            dirty |= update_node(&mut router, &change);
        }
        if shutdown.is_cancelled() {
            return Ok(());
        }
        if dirty {
            // A link that was made anew has no key.
            let applied = match router.public_key() {
                Ok(current) => {
                    key = current;
                    router.apply().await
                }
                Err(error) => Err(error),
            };
            outcome = applied.unwrap_or_else(|error| {
                warn!("cannot keep the routes to the other nodes' pods: {error}");
                Outcome::Partial
            });
            dirty = false;
        }
        if let Some(key) = key.filter(|_| key != published) {
            match publish(&own, &node_name, key).await {
                Ok(()) => published = Some(key),
                Err(error) => {
                    warn!("{error}");
                    outcome = Outcome::Partial;
                }
            }
        }
        tokio::select! {
            change = changes.next() => match change {
                Some(change) => dirty |= update_node(&mut router, &change),
                None => return Ok(()),
            },
            happened = events.next() => dirty |= router.handle_events(&happened?).await.unwrap_or_else(|error| {
                warn!("{error}");
                outcome = Outcome::Partial;
                false
            }),
            () = tokio::time::sleep(RETRY), if outcome == Outcome::Partial => dirty = router.check_again().await,
            _ = checks.tick() => dirty = router.check_again().await,
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

async fn publish(own: &Client, node_name: &str, key: Key) -> Result<(), Error> {
    let patch = serde_json::json!({"metadata": {"annotations": {(ANNOTATION): key.to_string()}}});
    own.patch::<Node>("", node_name, &Patch::Merge(patch), None).await.map(drop).map_err(Error::Publish)
}

fn update_node(router: &mut Router, change: &Change) -> bool {
    let node: Option<Node> = change.new.as_ref().and_then(|object| decode_object(object).ok());
    router.set(&change.key.name, node.as_ref())
}

/// Reconciles the routes to the pods of these nodes, once.
pub async fn reconcile<'a>(config: &Config, nodes: impl IntoIterator<Item = &'a Node>) -> Result<Outcome, Error> {
    let mut router = Router::open(config.clone()).await?;
    for node in nodes {
        router.set(node.name(), Some(node));
    }
    router.apply().await
}

/// Returns how many entries a reconciliation would add or delete.
pub async fn pending<'a>(config: &Config, nodes: impl IntoIterator<Item = &'a Node>) -> Result<usize, Error> {
    let mut router = Router::open(config.clone()).await?;
    for node in nodes {
        router.set(node.name(), Some(node));
    }
    let peers = router.trusted_peers();
    let wanted = router.wanted(&peers);
    Ok(router.present().await?.symmetric_difference(&wanted).count())
}

/// Makes the fences for packets to pods that no node has, before the rest of the network is made. [`run`] keeps them.
pub async fn fence(cluster_cidrs: &[Cidr]) -> Result<(), Error> {
    let links = Links::open()?;
    for range in cluster_cidrs {
        links.add_fence(*range).await?;
    }
    Ok(())
}

/// Deletes every route that we made, and the overlay's link with all it holds.
pub async fn cleanup() -> Result<(), Error> {
    let config = Config {
        node_name: String::new(),
        backend: Backend::HostGateway,
        pod_cidrs: Vec::new(),
        node_address: Ipv4Addr::UNSPECIFIED.into(),
        node_addresses: Vec::new(),
        cluster_cidrs: Vec::new(),
        service_cidrs: Vec::new(),
        api_servers: watch::channel(Vec::new()).1,
    };
    Router::open(config).await?.apply().await.map(drop)
}
