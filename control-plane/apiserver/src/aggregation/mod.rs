//! Aggregation: group versions of other API servers, behind this one.
//!
//! One task watches APIServices and their Services: it writes their availability, fetches the documents of remote
//! servers (discovery, OpenAPI), and registers the group versions of custom resources. Requests use only the resulting
//! table. They are authenticated and authorized here like all others, and forwarded under this server's own identity
//! with the user in headers (`forward.rs`).

mod availability;
pub(crate) mod documents;
mod forward;
mod measured;
mod registration;
mod remote;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use corten_managed_fields::own_status;
use corten_meta::{Object, Status, Value};
use corten_store::Expect;
use futures::future::join_all;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

pub use forward::forward;
pub use remote::Remote;

use crate::config::{Config, ProxyClient};
use crate::discovery::{Published, RemoteDocuments, RemoteVersion};
use crate::metrics::{Exposition, UNAVAILABLE_API_SERVICE};
use crate::registry::Registry;
use availability::{Condition, check};
use measured::Measured;

pub const GROUP: &str = "apiregistration.k8s.io";
pub const PLURAL: &str = "apiservices";

/// The interval of checking remote servers.
const PERIOD: Duration = Duration::from_secs(30);
/// The delay of a retry after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// The time for which changes are gathered before they are reconciled.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// A remote server, its availability and its documents.
#[derive(Clone)]
pub struct Known {
    pub remote: Arc<Remote>,
    pub available: bool,
    /// The documents of the server when it was last available.
    pub documents: Arc<RemoteDocuments>,
}

impl Known {
    fn published(&self) -> RemoteVersion {
        RemoteVersion {
            group: self.remote.group.clone(),
            version: self.remote.version.clone(),
            group_priority: self.remote.group_priority,
            version_priority: self.remote.version_priority,
            available: self.available,
            documents: Arc::clone(&self.documents),
        }
    }
}

/// The remote group versions, by group and version.
type Table = BTreeMap<(String, String), Known>;

/// The controller of APIServices, and the router of requests to remote servers.
pub struct Aggregation {
    registry: Arc<Registry>,
    published: Arc<Published>,
    /// The roots that verify servers without a CA bundle of their own.
    trusted_roots: String,
    /// The identity of this server towards aggregated ones.
    client: ArcSwapOption<ProxyClient>,
    table: ArcSwap<Table>,
    /// The group versions of metrics that MetricSources have.
    measured: Measured,
    /// Wakes the task when the group versions of custom resources have changed.
    changed: Arc<Notify>,
}

impl Aggregation {
    pub fn new(
        config: &Config,
        registry: Arc<Registry>,
        published: Arc<Published>,
        changed: Arc<Notify>,
    ) -> Aggregation {
        Aggregation {
            registry,
            published,
            trusted_roots: config.trusted_roots.clone(),
            client: ArcSwapOption::from(config.proxy_client.clone().map(Arc::new)),
            table: ArcSwap::default(),
            measured: Measured::default(),
            changed,
        }
    }

    /// Replaces the identity of this server towards aggregated ones.
    pub fn renew(&self, client: ProxyClient) {
        self.client.store(Some(Arc::new(client)));
        self.changed.notify_one();
    }

    /// Returns the remote server of a path, if it has one.
    pub fn route(&self, path: &str) -> Option<Known> {
        let table = self.table.load();
        if table.is_empty() {
            return None;
        }
        let mut parts = path.trim_matches('/').split('/');
        if parts.next() != Some("apis") {
            return None;
        }
        table.get(&(parts.next()?.to_owned(), parts.next()?.to_owned())).cloned()
    }

    /// Reports whether this server answers a path from MetricSources.
    pub fn measures(&self, path: &str) -> bool {
        self.measured.has(path)
    }

    pub fn render_metrics(&self, out: &mut Exposition) {
        let family = &UNAVAILABLE_API_SERVICE;
        out.family(family);
        for ((group, version), known) in self.table.load().iter() {
            out.sample(family, &[&format!("{version}.{group}")], f64::from(u8::from(!known.available)));
        }
    }

    /// Watches APIServices until shutdown.
    pub async fn run(&self, shutdown: &CancellationToken) {
        let changes = |group: &str, plural: &str| Some(self.registry.cache(group, "v1", plural)?.changes());
        let services = changes("", "services");
        let slices = changes("discovery.k8s.io", "endpointslices");
        let registered = changes(GROUP, PLURAL);
        let (Some(mut services), Some(mut slices), Some(mut registered)) = (services, slices, registered) else {
            return;
        };
        loop {
            // The kind of MetricSources comes and goes as every custom resource.
            let mut sources = self.sources_changed();
            [&mut services, &mut slices, &mut registered].into_iter().for_each(watch::Receiver::mark_unchanged);
            let reconciled = tokio::select! {
                () = shutdown.cancelled() => return,
                reconciled = self.reconcile() => reconciled,
            };
            let failed = reconciled.is_err();
            if let Err(status) = reconciled {
                tracing::warn!(message = status.message, "APIServices could not be brought up to date; trying again");
            }
            // Endpoints change often; they matter only if there are remote servers.
            let remote = !self.table.load().is_empty();
            let ended = tokio::select! {
                () = shutdown.cancelled() => return,
                changed = registered.changed() => changed.is_err(),
                changed = services.changed(), if remote => changed.is_err(),
                changed = slices.changed(), if remote => changed.is_err(),
                () = next(&mut sources) => false,
                () = self.changed.notified() => false,
                () = tokio::time::sleep(if failed { RETRY } else { PERIOD }), if remote || failed => false,
            };
            if ended {
                return;
            }
            tokio::time::sleep(DEBOUNCE).await;
        }
    }

    /// Returns the receiver of changes of MetricSources, if the cluster has their kind.
    fn sources_changed(&self) -> Option<watch::Receiver<u64>> {
        use corten_metric_sources::{GROUP, PLURAL, VERSION};
        Some(self.registry.cache(GROUP, VERSION, PLURAL)?.changes())
    }

    /// Reconciles the registrations, the conditions, the table and the documents. Doing it twice is harmless.
    async fn reconcile(&self) -> Result<(), Status> {
        let measured = Measured::wanted(&self.registry, &self.trusted_roots);
        let mut announced = self.published.announced();
        announced.extend(measured.iter().map(|version| (version.group.clone(), version.version.clone())));
        registration::reconcile(&self.registry, announced).await?;
        let services: Vec<(Arc<Object>, Value)> = self
            .registry
            .cached_list(GROUP, "v1", PLURAL, "")
            .into_iter()
            .map(|object| (Arc::clone(&object), object.value()))
            .filter(|(object, _)| object.header.deletion_timestamp.is_none())
            .collect();
        let before = self.table.load_full();
        let checked = join_all(services.iter().map(|(object, service)| self.one(&before, object, service))).await;
        let table: Table = checked.into_iter().flatten().map(|k| (k.remote.group_version(), k)).collect();
        let same = |a: &Known, b: &Known| {
            a.available == b.available && Arc::ptr_eq(&a.remote, &b.remote) && Arc::ptr_eq(&a.documents, &b.documents)
        };
        let unchanged = before.len() == table.len()
            && before.iter().zip(&table).all(|((at, a), (here, b))| at == here && same(a, b));
        if self.measured.replace(measured) || !unchanged {
            let published = table.values().map(Known::published).chain(self.measured.published()).collect();
            self.table.store(Arc::new(table));
            self.published.publish_remote(published);
        }
        Ok(())
    }

    /// Checks an APIService: writes its condition, and returns its remote server, if it has one.
    async fn one(&self, before: &Table, object: &Arc<Object>, service: &Value) -> Option<Known> {
        if !service.pointer("/spec/service").is_some_and(Value::is_object) {
            record(&self.registry, object, service, &Condition::local()).await;
            return None;
        }
        let known = before.get(&Remote::group_version_of(service));
        let client = self.client.load_full();
        // The TLS settings are reused as long as the APIService is unchanged.
        let remote = match known.filter(|k| k.remote.is_of(client.as_ref(), service)) {
            Some(known) => Arc::clone(&known.remote),
            None => Arc::new(Remote::new(client, &self.trusted_roots, service)),
        };
        let condition = check(&self.registry, &remote).await;
        record(&self.registry, object, service, &condition).await;
        let last = known.map(|k| Arc::clone(&k.documents)).unwrap_or_default();
        let available = condition.status == "True";
        let documents = if available { documents::fetch(&self.registry.outbound, &remote, last).await } else { last };
        Some(Known { remote, available, documents })
    }
}

/// Waits for a change; for ever if there is nothing to change, or nothing changes any more.
async fn next(changes: &mut Option<watch::Receiver<u64>>) {
    let is_open = match changes {
        Some(changes) => changes.changed().await.is_ok(),
        None => false,
    };
    if !is_open {
        std::future::pending::<()>().await;
    }
}

/// Writes the condition, if it changed.
async fn record(registry: &Registry, object: &Arc<Object>, service: &Value, condition: &Condition) {
    let now = jiff::Timestamp::now();
    let Some(mut new) = condition.set_in(service, now) else { return };
    let written = async {
        let resource = registry.required(GROUP, "v1", PLURAL)?;
        // The group versions of this server itself are always available; their status has no field manager.
        if service.pointer("/spec/service").is_some_and(Value::is_object) {
            own_status(&resource.kind, service, &mut new, now);
        }
        registry.write(&resource, &new, Expect::ModRevision(object.revision), Vec::new()).await
    };
    // A conflicting write of another client is a change that is reconciled again.
    if let Err(status) = written.await {
        tracing::warn!(message = status.message, "the condition of an APIService could not be written");
    }
}
