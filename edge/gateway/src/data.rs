//! The data half's way to its configuration: every node resolves the objects itself, and serves the result.
//!
//! The API server may go away: the watches then stay open or are tried again, and the table stays as it is. What the
//! node serves it reports in its Lease, so that a Gateway is programmed only when every node has it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use corten_client::{Cache, Client, Error, Patch, Resource as Kind};
use corten_meta::{Key, Object, Value};
use corten_routing::{BackendKey, Configuration, Endpoint, Endpoints, ListenerKey};
use imbl::ordmap::DiffItem;
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::objects::{Objects, ServicePort};
use crate::resolve::{self, Live, NAMESPACE, Resolution};
use crate::world::{View, World, endpoint_slices};

/// The annotation of a node's Lease with the Gateways that it serves, and their generations.
pub const SERVES: &str = "corten.dev/serves";
/// The annotation of a node's Lease with the key sets that lack keys of tokens, and the times when they were missed.
pub const MISSED_KEYS: &str = "corten.dev/missed-keys";
/// The pause between two reports of one key set.
const MISSED_PAUSE: Duration = Duration::from_secs(60);
/// The duration of a node's Lease.
pub const LEASE_SECONDS: i64 = 40;
const RENEW_PERIOD: Duration = Duration::from_secs(10);
/// Changes that come within this time after a resolution are resolved together.
const SETTLE: Duration = Duration::from_millis(5);
/// The time limit of the first table for the Secrets that it needs: a host whose certificate is still to come refuses
/// its clients.
pub const FIRST_SECRETS: Duration = Duration::from_secs(2);
/// The pause before ports that could not be bound are tried again, and before a failed write of the Lease is.
const RETRY: Duration = Duration::from_secs(1);
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The listeners whose ports cannot be bound, once a configuration is served.
pub type Applied<'a> = Pin<Box<dyn Future<Output = Vec<ListenerKey>> + Send + 'a>>;

/// The names of key sets that lack keys of tokens, once there is one.
pub type UnknownKeys<'a> = Pin<Box<dyn Future<Output = BTreeSet<Arc<str>>> + Send + 'a>>;

/// The proxy that serves a configuration. The binary plugs it in.
pub trait DataHalf: Send + Sync {
    /// Sets the endpoints of a backend.
    fn set_endpoints(&self, backend: &BackendKey, endpoints: &Endpoints);

    /// Serves a configuration, and returns the listeners whose ports cannot be bound.
    fn apply<'a>(&'a self, configuration: &'a Configuration) -> Applied<'a>;

    /// Waits for tokens with keys that their key sets lack, and returns these sets.
    fn unknown_keys(&self) -> UnknownKeys<'_>;

    /// Returns the time limit of the first configuration for the Secrets that it needs. A listener without a certificate
    /// accepts no connection, so one that another process still serves can wait.
    fn patience(&self) -> Duration {
        FIRST_SECRETS
    }
}

/// Returns the resource of Leases.
pub fn leases() -> Kind {
    Kind::new("coordination.k8s.io", "v1", "leases", true)
}

/// The signals that end the data half of a node.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// The end of the data half: its Lease is deleted.
    pub shutdown: CancellationToken,
    /// The takeover by another process, which writes the Lease from now on. Routes and endpoints are followed as before.
    pub retired: CancellationToken,
}

/// Serves the cluster's Gateways and Ingresses on a node until shutdown.
pub async fn run(node: String, client: Client, data: Arc<dyn DataHalf>, signals: Signals) {
    let shutdown = signals.shutdown.clone();
    let Some(mut world) = World::open(client.clone(), View::Routing, shutdown.clone()).await else { return };
    let slices = Slices::new(world.caches().dynamic(&endpoint_slices()));
    tokio::select! {
        () = slices.cache.synced() => {}
        () = shutdown.cancelled() => return,
    }
    let mut changed_slices = slices.cache.subscribe_with(world.bell());
    let report = Arc::new(Report::new(node, client, Arc::clone(&data)));
    let reporter = AbortOnDropHandle::new(tokio::spawn(report.clone().run(signals)));
    let mut served = Served::new(data, slices);
    let bell = world.bell().clone();
    let mut is_stale = true;
    let mut is_first = true;
    let mut live: Option<Live> = None;
    while !shutdown.is_cancelled() {
        let mut services = BTreeSet::new();
        while let Some(change) = changed_slices.try_next() {
            services.extend([&change.old, &change.new].into_iter().flatten().filter_map(service_of));
        }
        let changed = world.take_changes();
        served.set_services(world.objects(), &services);
        let known = live.as_mut().filter(|_| !is_stale && !changed.others);
        if known.is_some() && changed.routes.is_empty() {
            // Nothing but endpoints has changed.
        } else if let Some(update) = known.and_then(|live| live.update(world.objects(), &changed.routes, None)) {
            served.apply(world.objects(), update.configuration).await;
        } else {
            let Resolution { resolved, live: resolved_live } = resolve::resolve_for(world.objects(), None);
            live = Some(resolved_live);
            world.follow(&resolved.references);
            if std::mem::take(&mut is_first) && world.is_following() {
                let _ = tokio::time::timeout(served.data.patience(), world.followed()).await;
                continue;
            }
            served.set_all(world.objects(), &resolved.configuration);
            let failed = served.apply(world.objects(), resolved.configuration).await;
            is_stale = !failed.is_empty();
            let unread = resolved.gateway_references.iter().filter(|(_, references)| !world.has_read(references));
            let unread: BTreeSet<&Key> = unread.map(|(gateway, _)| gateway).collect();
            let read = resolved.complete.into_iter().filter(|(gateway, _)| !unread.contains(gateway));
            report.set(read.collect(), &failed);
        }
        let settled = tokio::time::Instant::now() + SETTLE;
        tokio::select! {
            () = bell.notified() => tokio::time::sleep_until(settled).await,
            () = tokio::time::sleep(RETRY), if is_stale => {}
            () = shutdown.cancelled() => break,
        }
    }
    // The task ends with the token, after it has deleted the Lease.
    let _ = reporter.await;
}

fn key_of(backend: &BackendKey) -> Key {
    Key::new(backend.namespace.to_string(), backend.service.to_string())
}

fn service_of(slice: &Arc<Object>) -> Option<Key> {
    let name = slice.header.labels.get(SERVICE_NAME)?;
    Some(Key::new(slice.header.namespace.clone(), name.clone()))
}

/// The proxy with the configuration and the endpoints that it serves.
struct Served {
    data: Arc<dyn DataHalf>,
    slices: Slices,
    configuration: Configuration,
    endpoints: BTreeMap<BackendKey, Endpoints>,
}

impl Served {
    fn new(data: Arc<dyn DataHalf>, slices: Slices) -> Served {
        Served { data, slices, configuration: Configuration::default(), endpoints: BTreeMap::new() }
    }

    /// Serves a configuration, and returns the listeners whose ports cannot be bound. Endpoints come before the routes
    /// that name them, so that no request finds none.
    async fn apply(&mut self, objects: &Objects, configuration: Configuration) -> Vec<ListenerKey> {
        let served = std::mem::take(&mut self.configuration);
        let mut gone = Vec::new();
        for item in served.backends.diff(&configuration.backends) {
            match item {
                DiffItem::Add(backend, _) => self.set_endpoints(objects, backend),
                DiffItem::Update { .. } => {}
                DiffItem::Remove(backend, _) => gone.push(backend),
            }
        }
        let failed = self.data.apply(&configuration).await;
        for backend in gone {
            self.endpoints.remove(backend);
        }
        self.configuration = configuration;
        failed
    }

    /// Sets the endpoints of all backends of a configuration.
    fn set_all(&mut self, objects: &Objects, configuration: &Configuration) {
        for backend in configuration.backends.keys() {
            self.set_endpoints(objects, backend);
        }
    }

    /// Sets the endpoints of Services whose slices changed.
    fn set_services(&mut self, objects: &Objects, services: &BTreeSet<Key>) {
        for service in services {
            let at = |port: u16| BackendKey {
                namespace: service.namespace.as_str().into(),
                service: service.name.as_str().into(),
                port,
            };
            let ports = self.endpoints.range(at(0)..=at(u16::MAX));
            let backends: Vec<BackendKey> = ports.map(|(backend, _)| backend.clone()).collect();
            for backend in &backends {
                self.set_endpoints(objects, backend);
            }
        }
    }

    /// Sets the endpoints of a backend if they differ from those that are served.
    fn set_endpoints(&mut self, objects: &Objects, backend: &BackendKey) {
        let service = key_of(backend);
        let ports = objects.services.get(&service).map(|service| &service.spec.ports[..]).unwrap_or_default();
        let port = ports.iter().find(|port| port.port == backend.port);
        let endpoints = port.map(|port| self.slices.endpoints(&service, port)).unwrap_or_default();
        if self.endpoints.get(backend) != Some(&endpoints) {
            self.data.set_endpoints(backend, &endpoints);
            self.endpoints.insert(backend.clone(), endpoints);
        }
    }
}

/// The EndpointSlices of the cluster, by Service.
struct Slices {
    cache: Arc<Cache>,
}

/// The index of slices by their Service.
const BY_SERVICE: &str = "service";

impl Slices {
    fn new(cache: Arc<Cache>) -> Slices {
        cache.add_index(BY_SERVICE, |slice| {
            let name = slice.header.labels.get(SERVICE_NAME);
            name.map(|name| format!("{}/{name}", slice.header.namespace)).into_iter().collect()
        });
        Slices { cache }
    }

    /// Returns the endpoints of a Service's port.
    fn endpoints(&self, service: &Key, port: &ServicePort) -> Endpoints {
        let mut endpoints = Endpoints::default();
        let mut slices = self.cache.by_index(BY_SERVICE, &format!("{}/{}", service.namespace, service.name));
        slices.sort_by(|one, other| one.header.name.cmp(&other.header.name));
        for slice in slices {
            add_slice(&slice.value(), port, &mut endpoints);
        }
        endpoints
    }
}

/// Adds the endpoints of an EndpointSlice that serve a port.
pub fn add_slice(slice: &Value, port: &ServicePort, endpoints: &mut Endpoints) {
    let mut ports = slice["ports"].as_array().into_iter().flatten();
    let named = ports.find(|one| one["name"].as_str().unwrap_or_default() == port.name);
    let Some(number) = named.and_then(|one| u16::try_from(one["port"].as_u64()?).ok()) else { return };
    for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
        let address = endpoint["addresses"][0].as_str().and_then(|text| text.parse::<IpAddr>().ok());
        let Some(address) = address else { continue };
        let condition = |name: &str, default: bool| endpoint["conditions"][name].as_bool().unwrap_or(default);
        let found =
            Endpoint { address: SocketAddr::new(address, number), node: endpoint["nodeName"].as_str().map(Arc::from) };
        if condition("ready", true) {
            endpoints.ready.push(found);
        } else if condition("serving", false) && condition("terminating", false) {
            endpoints.terminating.push(found);
        }
    }
}

/// The node's Lease: the node is ready, and serves these Gateways.
pub(crate) struct Report {
    node: String,
    client: Client,
    /// None before the first configuration: a node that serves nothing yet is not ready.
    serves: std::sync::Mutex<Option<BTreeMap<Key, i64>>>,
    changed: Notify,
    /// None if no proxy runs.
    data: Option<Arc<dyn DataHalf>>,
}

/// The key sets that lacked keys, and the times when each was reported.
#[derive(Default)]
struct Missed(BTreeMap<Arc<str>, Reported>);

struct Reported {
    at: tokio::time::Instant,
    time: String,
}

impl Missed {
    /// Adds sets, and reports whether one is to be reported now.
    fn add(&mut self, sets: BTreeSet<Arc<str>>, now: tokio::time::Instant) -> bool {
        self.0.retain(|_, reported| now - reported.at < MISSED_PAUSE);
        let mut is_new = false;
        for set in sets {
            self.0.entry(set).or_insert_with(|| {
                is_new = true;
                Reported { at: now, time: corten_meta::time::rfc3339_micro(corten_meta::time::now()) }
            });
        }
        is_new
    }

    fn annotation(&self) -> String {
        let times: BTreeMap<&str, &str> =
            self.0.iter().map(|(set, reported)| (&**set, reported.time.as_str())).collect();
        serde_json::to_string(&times).unwrap_or_default()
    }
}

impl Report {
    fn new(node: String, client: Client, data: Arc<dyn DataHalf>) -> Report {
        Report { node, client, serves: std::sync::Mutex::default(), changed: Notify::new(), data: Some(data) }
    }

    /// Returns the report of a node that is ready and serves no Gateway.
    pub(crate) fn of_nothing(node: String, client: Client) -> Report {
        let serves = std::sync::Mutex::new(Some(BTreeMap::new()));
        let changed = Notify::new();
        changed.notify_one();
        Report { node, client, serves, changed, data: None }
    }

    /// Sets the Gateways that are served. Those with a port that cannot be bound are not.
    fn set(&self, mut complete: BTreeMap<Key, i64>, failed: &[ListenerKey]) {
        for key in failed {
            tracing::warn!(gateway = %key.owner.name, port = key.port, "cannot bind the port of a listener");
            complete.remove(&Key::new(key.owner.namespace.to_string(), key.owner.name.to_string()));
        }
        let mut serves = self.serves.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if serves.as_ref() != Some(&complete) {
            *serves = Some(complete);
            self.changed.notify_one();
        }
    }

    /// Renews the Lease until shutdown, and deletes it then; a Lease that another process writes stays.
    async fn run(self: Arc<Self>, signals: Signals) {
        tokio::select! {
            () = self.renew(&signals.shutdown) => {}
            () = signals.retired.cancelled() => return,
        }
        let options = corten_client::DeleteOptions::default();
        let deleted = self.client.dynamic(&leases());
        let deleted = deleted.delete(NAMESPACE, &self.node, &options);
        // The API server may be gone already; the Lease then expires.
        let _ = tokio::time::timeout(Duration::from_secs(2), deleted).await;
    }

    /// Renews the Lease, and writes it at once when the Gateways that are served change.
    pub(crate) async fn renew(&self, shutdown: &CancellationToken) {
        let mut due = tokio::time::Instant::now() + RENEW_PERIOD;
        let mut missed = Missed::default();
        loop {
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(due) => {}
                sets = self.unknown_keys() => {
                    if !missed.add(sets, tokio::time::Instant::now()) {
                        continue;
                    }
                }
                () = shutdown.cancelled() => break,
            }
            let serves = self.serves.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
            let Some(serves) = serves else {
                due = tokio::time::Instant::now() + RENEW_PERIOD;
                continue;
            };
            let pause = match self.write(&serves, &missed).await {
                Ok(()) => RENEW_PERIOD,
                // The namespace may not be there yet.
                Err(error) => {
                    tracing::info!(%error, "the Lease of this node cannot be written");
                    RETRY
                }
            };
            due = tokio::time::Instant::now() + pause;
        }
    }

    async fn unknown_keys(&self) -> BTreeSet<Arc<str>> {
        match &self.data {
            Some(data) => data.unknown_keys().await,
            None => std::future::pending().await,
        }
    }

    async fn write(&self, serves: &BTreeMap<Key, i64>, missed: &Missed) -> Result<(), Error> {
        let list: BTreeMap<String, i64> =
            serves.iter().map(|(key, generation)| (key.to_string(), *generation)).collect();
        let now = corten_meta::time::rfc3339_micro(corten_meta::time::now());
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self.node,
                "namespace": NAMESPACE,
                "annotations": {
                    SERVES: serde_json::to_string(&list).unwrap_or_default(),
                    MISSED_KEYS: missed.annotation(),
                },
            },
            "spec": {"holderIdentity": self.node, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now},
        });
        let leases = self.client.dynamic(&leases());
        match leases.send_patch(NAMESPACE, &self.node, &Patch::Merge(lease.clone())).await {
            Err(error) if error.is_not_found() => leases.post(NAMESPACE, &lease).await,
            written => written,
        }
    }
}
