//! The speaker's task: follows the objects of the cluster, keeps one session for each BGPPeer that selects this node,
//! and reports the state of each as an event and in the peer's status.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use corten_api::{
    ADDRESS_POOLS, AddressPool, AddressRange, BGP_NAMESPACE, BGP_PEERS, BgpPeer, NETWORK_GROUP, NETWORK_VERSION,
};
use corten_client::{Cache, Caches, Client, EventRecorder, EventType, ObjectRef, Patch, Resource};
use corten_meta::{Key, Object, Value};
use k8s_openapi::api::core::v1::{Node, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::bfd::{self, Listener};
use crate::machine::Settings;
use crate::plan::{self, Balancer, Candidates, Cluster};
use crate::prefix::Family;
use crate::rib::Routes;
use crate::session::{self, Channels, Ending, Peer, Status};
use crate::socket::{Endpoint, LONGEST_KEY};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The key of the password in its Secret.
const PASSWORD: &str = "password";
/// The interval at which passwords are read again. A node may read the Secrets that peers name, but not watch all.
const PASSWORD_INTERVAL: Duration = Duration::from_secs(60);
/// The time limit of the sessions' endings.
const FAREWELL: Duration = Duration::from_secs(5);
/// The number of state changes that may wait to be reported.
const REPORTS: usize = 64;

/// The settings of a node's speaker.
#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: String,
    pub node_addresses: Vec<IpAddr>,
    /// The pool of the flag `--load-balancer-pool`, beside the AddressPools.
    pub pool: Vec<AddressRange>,
    /// The file whose existence at shutdown means that the node leaves and does not only restart.
    pub leaving: Option<PathBuf>,
}

/// Runs the speaker until shutdown.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) {
    let caches = Caches::new(client.clone(), shutdown.clone());
    let sources = Sources::open(&caches);
    tokio::select! {
        () = caches.synced() => {}
        () = shutdown.cancelled() => return,
    }
    let recorder = EventRecorder::new(client.clone(), "bgp-speaker", &config.node_name);
    let (reports, mut reported) = mpsc::channel(REPORTS);
    let mut speaker = Speaker {
        config,
        client,
        recorder,
        reports,
        sessions: BTreeMap::new(),
        refused: BTreeMap::new(),
        listeners: BTreeMap::new(),
    };
    let mut changes = sources.subscribe();
    let mut passwords = tokio::time::interval(PASSWORD_INTERVAL);
    loop {
        while changes.iter_mut().any(|one| one.try_next().is_some()) {}
        speaker.reconcile(&sources).await;
        let [services, nodes, slices, pools, peers] = &mut changes;
        tokio::select! {
            _ = services.next() => {}
            _ = nodes.next() => {}
            _ = slices.next() => {}
            _ = pools.next() => {}
            _ = peers.next() => {}
            Some(report) = reported.recv() => speaker.report(&sources, report).await,
            _ = passwords.tick() => {}
            () = shutdown.cancelled() => break,
        }
    }
    drop(reported);
    speaker.stop().await;
}

/// The caches that the speaker reads.
struct Sources {
    services: Arc<Cache>,
    nodes: Arc<Cache>,
    slices: Arc<Cache>,
    pools: Arc<Cache>,
    peers: Arc<Cache>,
}

impl Sources {
    fn open(caches: &Caches) -> Sources {
        let custom = |plural: &str| caches.dynamic(&Resource::new(NETWORK_GROUP, NETWORK_VERSION, plural, false));
        Sources {
            services: caches.of::<Service>(),
            nodes: caches.of::<Node>(),
            slices: caches.of::<EndpointSlice>(),
            pools: custom(ADDRESS_POOLS),
            peers: custom(BGP_PEERS),
        }
    }

    fn subscribe(&self) -> [corten_client::Subscription; 5] {
        [&self.services, &self.nodes, &self.slices, &self.pools, &self.peers].map(|cache| cache.subscribe())
    }

    /// Returns the nodes with ready endpoints of Services with `externalTrafficPolicy: Local`.
    fn serving(&self, balancers: &[Balancer]) -> BTreeMap<Key, BTreeSet<String>> {
        let local: BTreeSet<&Key> = balancers.iter().filter(|one| one.is_local).map(|one| &one.service).collect();
        let mut found: BTreeMap<Key, BTreeSet<String>> = BTreeMap::new();
        if local.is_empty() {
            return found;
        }
        for slice in self.slices.all() {
            let Some(name) = slice.header.labels.get(SERVICE_NAME) else { continue };
            let key = Key::new(slice.header.namespace.clone(), name.clone());
            if local.contains(&key) {
                found.entry(key).or_default().extend(plan::ready_nodes(&slice.value()));
            }
        }
        found
    }
}

/// A running session.
struct Running {
    peer: Peer,
    routes: watch::Sender<Routes>,
    ending: watch::Sender<Ending>,
    task: JoinHandle<()>,
}

/// A state change of the session with a peer.
struct Report {
    peer: String,
    status: Status,
}

struct Speaker {
    config: Config,
    client: Client,
    recorder: EventRecorder,
    reports: mpsc::Sender<Report>,
    sessions: BTreeMap<String, Running>,
    /// The peers that cannot be used, with the sentence that was reported.
    refused: BTreeMap<String, String>,
    /// The ports of BFD, opened with the first peer that wants it.
    listeners: BTreeMap<Family, Listener>,
}

impl Speaker {
    /// Starts, changes and ends sessions, and gives each its routes.
    async fn reconcile(&mut self, sources: &Sources) {
        let nodes: Vec<Value> = sources.nodes.all().iter().map(|node| node.value()).collect();
        let own = sources.nodes.get(&Key::new("", self.config.node_name.clone()));
        let mut wanted = BTreeMap::new();
        let labels = own.as_ref().map(|node| node.header.labels.clone()).unwrap_or_default();
        for object in sources.peers.all() {
            match self.peer(&object, &labels).await {
                Ok(Some(peer)) => {
                    self.refused.remove(&object.header.name);
                    wanted.insert(object.header.name.clone(), peer);
                }
                Ok(None) => {}
                Err(sentence) => {
                    // The session that there was goes on: the Secret may be out of reach for a moment only.
                    if let Some(running) = self.sessions.get(&object.header.name) {
                        wanted.insert(object.header.name.clone(), running.peer.clone());
                    }
                    self.refuse(&object, sentence).await;
                }
            }
        }
        self.refused.retain(|name, _| sources.peers.get(&Key::new("", name.clone())).is_some());
        self.end_others(&wanted).await;
        let balancers: Vec<Balancer> =
            sources.services.all().iter().filter_map(|service| Balancer::of(&service.value())).collect();
        let pools = self.pools(sources);
        let cluster = Cluster {
            node: &self.config.node_name,
            balancers: &balancers,
            candidates: &Candidates::of(&nodes),
            serving: &sources.serving(&balancers),
            pools: &pools,
        };
        let routes: BTreeMap<String, Routes> =
            wanted.keys().map(|name| (name.clone(), plan::routes(&cluster, name))).collect();
        for (name, peer) in wanted {
            let routes = routes.get(&name).cloned().unwrap_or_default();
            let session =
                self.sessions.entry(name.clone()).or_insert_with(|| start(name, peer, &self.listeners, &self.reports));
            session.routes.send_if_modified(|current| {
                let is_new = *current != routes;
                if is_new {
                    current.clone_from(&routes);
                }
                is_new
            });
        }
    }

    /// Returns the pools whose addresses may be announced.
    fn pools(&self, sources: &Sources) -> Vec<AddressPool> {
        let read = sources.pools.all();
        let custom = read.iter().filter_map(|object| AddressPool::of(&object.value()).ok());
        let flag = AddressPool::of_ranges("", self.config.pool.clone());
        std::iter::once(flag).chain(custom).collect()
    }

    /// Returns the peer of an object; `None` if it does not select this node.
    async fn peer(&mut self, object: &Object, labels: &BTreeMap<String, String>) -> Result<Option<Peer>, String> {
        let read = BgpPeer::of(&object.value())?;
        if !read.selects(labels) {
            return Ok(None);
        }
        let password = match &read.password_secret {
            Some(name) => Some(self.password(name).await?),
            None => None,
        };
        let own = self.config.node_addresses.iter().find_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        let settings = Settings {
            local_as: read.local_as,
            peer_as: read.peer_as,
            router_id: read.router_id.or(own).unwrap_or_else(|| router_id(&self.config.node_name)),
            hold_time: read.hold_time,
            restart_time: read.restart_time,
        };
        let endpoint = Endpoint {
            address: SocketAddr::new(read.address, read.port),
            source: read.source,
            password,
            ttl_security: read.ttl_security,
        };
        let bfd = read.bfd.map(|wanted| bfd::Settings {
            transmit_interval: wanted.transmit_interval,
            receive_interval: wanted.receive_interval,
            multiplier: wanted.detect_multiplier,
        });
        if bfd.is_some() {
            self.listen(Family::of(read.address))?;
        }
        Ok(Some(Peer { settings, endpoint, node_addresses: self.config.node_addresses.clone(), bfd }))
    }

    /// Opens the port of BFD, unless it is open.
    fn listen(&mut self, family: Family) -> Result<(), String> {
        if let Entry::Vacant(vacant) = self.listeners.entry(family) {
            let listener = Listener::open(family).map_err(|error| format!("BFD cannot open its port: {error}"))?;
            vacant.insert(listener);
        }
        Ok(())
    }

    async fn password(&self, name: &str) -> Result<String, String> {
        let secret: Secret = self
            .client
            .get(BGP_NAMESPACE, name)
            .await
            .map_err(|error| format!("the Secret {BGP_NAMESPACE}/{name} cannot be read: {error}"))?;
        let bytes = secret.data.unwrap_or_default().remove(PASSWORD);
        let bytes = bytes.ok_or_else(|| format!("the Secret {BGP_NAMESPACE}/{name} has no key {PASSWORD}"))?;
        let password = String::from_utf8(bytes.0)
            .map_err(|_| format!("the password in the Secret {BGP_NAMESPACE}/{name} is not UTF-8"))?;
        match password.len() {
            1..=LONGEST_KEY => Ok(password),
            _ => Err(format!("the password in the Secret {BGP_NAMESPACE}/{name} must have 1 to {LONGEST_KEY} bytes")),
        }
    }

    /// Ends the sessions with peers that are gone or changed.
    async fn end_others(&mut self, wanted: &BTreeMap<String, Peer>) {
        let is_other = |name: &String, running: &Running| wanted.get(name) != Some(&running.peer);
        let names: Vec<String> = self
            .sessions
            .iter()
            .filter(|(name, running)| is_other(name, running))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            if let Some(running) = self.sessions.remove(&name) {
                end(running, Ending::Withdraw).await;
            }
        }
    }

    /// Reports a peer that cannot be used, once for each sentence.
    async fn refuse(&mut self, object: &Object, sentence: String) {
        let name = object.header.name.clone();
        if self.refused.get(&name) != Some(&sentence) {
            warn!(peer = name, "{sentence}");
            self.write(object, &Status::Down(sentence.clone())).await;
            self.refused.insert(name, sentence);
        }
    }

    async fn report(&self, sources: &Sources, report: Report) {
        match &report.status {
            Status::Established => info!(peer = report.peer, "the BGP session is established"),
            Status::Down(sentence) => warn!(peer = report.peer, "there is no BGP session: {sentence}"),
            Status::Liveness(is_up) => info!(peer = report.peer, is_up, "BFD changed"),
        }
        if let Some(object) = sources.peers.get(&Key::new("", report.peer)) {
            self.write(&object, &report.status).await;
        }
    }

    /// Records an event about a peer, and this node's part of its status.
    async fn write(&self, object: &Object, status: &Status) {
        let about = ObjectRef {
            api_version: format!("{NETWORK_GROUP}/{NETWORK_VERSION}"),
            kind: "BGPPeer".to_owned(),
            name: object.header.name.clone(),
            uid: object.header.uid.clone(),
            resource_version: object.revision.to_string(),
            ..ObjectRef::default()
        };
        let node = &self.config.node_name;
        let since = corten_meta::time::rfc3339(corten_meta::time::now());
        let state = match status {
            Status::Established => {
                self.recorder.event(&about, EventType::Normal, "SessionEstablished", format!("{node}: established"));
                json!({"established": true, "message": "", "since": since})
            }
            Status::Down(sentence) => {
                self.recorder.event(&about, EventType::Warning, "SessionDown", format!("{node}: {sentence}"));
                json!({"established": false, "message": sentence, "since": since})
            }
            Status::Liveness(is_up) => json!({"bfd": if *is_up { "Up" } else { "Down" }}),
        };
        let patch = Patch::Merge(json!({"status": {"nodes": {node.as_str(): state}}}));
        let peers = self.client.dynamic(&Resource::new(NETWORK_GROUP, NETWORK_VERSION, BGP_PEERS, false));
        if let Err(error) = peers.patch("", &about.name, &patch, Some("status")).await {
            warn!(peer = about.name, "the state of the BGP session cannot be written: {error}");
        }
    }

    /// Ends all sessions: so that the peers keep the routes over a restart, or without them if the node leaves.
    async fn stop(self) {
        let is_leaving = self.config.leaving.as_ref().is_some_and(|file| file.exists());
        let ending = if is_leaving { Ending::Withdraw } else { Ending::Restart };
        for running in self.sessions.values() {
            running.ending.send_replace(ending);
        }
        for (_, running) in self.sessions {
            end(running, ending).await;
        }
    }
}

async fn end(running: Running, ending: Ending) {
    running.ending.send_replace(ending);
    let abort = running.task.abort_handle();
    if tokio::time::timeout(FAREWELL, running.task).await.is_err() {
        abort.abort();
    }
}

/// Starts the session with a peer, and that of BFD beside it.
fn start(name: String, peer: Peer, listeners: &BTreeMap<Family, Listener>, reports: &mpsc::Sender<Report>) -> Running {
    let (routes, routes_of_session) = watch::channel(Routes::new());
    let (ending, ending_of_session) = watch::channel(Ending::None);
    let (status, states) = mpsc::channel::<Status>(REPORTS);
    let (losses, lost) = mpsc::channel(REPORTS);
    let stop = CancellationToken::new();
    let liveness = liveness(&peer, listeners, Losses { losses, status: status.clone() }, stop.clone());
    let channels = Channels { routes: routes_of_session, ending: ending_of_session, status, lost };
    let session = session::run(peer.clone(), channels);
    let session = async move {
        session.await;
        stop.cancel();
    };
    let forward = forward(name, states, reports.clone());
    let task = tokio::spawn(async move {
        tokio::join!(session, forward, liveness);
    });
    Running { peer, routes, ending, task }
}

/// Forwards the states of a session; a peer that stays unreachable is reported once.
async fn forward(name: String, mut states: mpsc::Receiver<Status>, reports: mpsc::Sender<Report>) {
    let mut last = None;
    while let Some(status) = states.recv().await {
        if last.as_ref() == Some(&status) {
            continue;
        }
        let _ = reports.send(Report { peer: name.clone(), status: status.clone() }).await;
        if !matches!(status, Status::Liveness(_)) {
            last = Some(status);
        }
    }
}

/// The receivers of BFD's changes.
struct Losses {
    losses: mpsc::Sender<String>,
    status: mpsc::Sender<Status>,
}

/// Runs BFD with a peer that wants it, until it is stopped.
fn liveness(
    peer: &Peer,
    listeners: &BTreeMap<Family, Listener>,
    receivers: Losses,
    stop: CancellationToken,
) -> impl Future<Output = ()> + Send + use<> {
    let address = peer.endpoint.address.ip();
    let (changes, mut changed) = mpsc::channel(REPORTS);
    let session = match (&peer.bfd, listeners.get(&Family::of(address))) {
        (Some(settings), Some(listener)) => Some(bfd::Session {
            peer: address,
            source: peer.endpoint.source,
            settings: settings.clone(),
            received: listener.packets_of(address),
            changes,
        }),
        _ => None,
    };
    async move {
        let Some(session) = session else { return };
        let report = async {
            while let Some(change) = changed.recv().await {
                let _ = receivers.status.send(Status::Liveness(change == bfd::Change::Up)).await;
                if let bfd::Change::Lost(sentence) = change {
                    let _ = receivers.losses.send(sentence).await;
                }
            }
        };
        tokio::join!(session.run(stop), report);
    }
}

/// Returns a router ID for a node without an IPv4 address: a hash of its name, which is never zero.
fn router_id(name: &str) -> Ipv4Addr {
    const FNV_OFFSET: u32 = 0x811c_9dc5;
    const FNV_PRIME: u32 = 0x0100_0193;
    let hash = name.bytes().fold(FNV_OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME));
    Ipv4Addr::from(hash.max(1))
}
