//! Aggregation: group versions that another API server serves, behind this one.
//!
//! One task follows APIServices and what they lead to: it writes whether each is available, fetches what a remote
//! server has to say about itself (discovery, OpenAPI), and registers the group versions of custom resources. Requests
//! see only the table that it leaves behind. They are authenticated and authorized here like all others, and passed
//! on under this server's own identity with the user in headers (`forward.rs`).

mod availability;
pub(crate) mod documents;
mod forward;
mod registration;
mod remote;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use corten_meta::{Object, Status, Value};
use corten_store::Expect;
use futures::future::join_all;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

pub use forward::forward;
pub use remote::Remote;

use crate::config::{Config, ProxyClient};
use crate::discovery::{Published, RemoteDocuments, RemoteVersion};
use crate::managed_fields::own_status;
use crate::metrics::Exposition;
use crate::registry::Registry;
use availability::{Condition, check};

pub const GROUP: &str = "apiregistration.k8s.io";
pub const PLURAL: &str = "apiservices";

/// How often remote servers are asked whether they are still there.
const PERIOD: Duration = Duration::from_secs(30);
/// How long it takes until something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long changes are gathered before they are looked at.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// A remote server and what is known about it.
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

/// The remote group versions of a moment, by group and version.
type Table = BTreeMap<(String, String), Known>;

/// Follows APIServices and passes requests on to the servers that they name.
pub struct Aggregation {
    registry: Arc<Registry>,
    published: Arc<Published>,
    /// The roots that servers without a bundle of their own are verified by.
    trusted_roots: String,
    /// The identity of this server towards aggregated ones.
    client: ArcSwapOption<ProxyClient>,
    table: ArcSwap<Table>,
    /// Wakes the task: the group versions of custom resources have changed.
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
            changed,
        }
    }

    /// Uses this identity towards aggregated servers from now on.
    pub fn renew(&self, client: ProxyClient) {
        self.client.store(Some(Arc::new(client)));
        self.changed.notify_one();
    }

    /// The remote server of a path, if it has one.
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

    pub fn render_metrics(&self, out: &mut Exposition) {
        let name = "aggregator_unavailable_apiservice";
        out.family(name, "gauge", "Whether an API of another server is unavailable.");
        for ((group, version), known) in self.table.load().iter() {
            out.sample(name, &[("name", &format!("{version}.{group}"))], f64::from(u8::from(!known.available)));
        }
    }

    /// Follows APIServices until shutdown.
    pub async fn run(&self, shutdown: &CancellationToken) {
        let changes = |group: &str, plural: &str| Some(self.registry.cache(group, "v1", plural)?.changes());
        let services = changes("", "services");
        let slices = changes("discovery.k8s.io", "endpointslices");
        let registered = changes(GROUP, PLURAL);
        let (Some(mut services), Some(mut slices), Some(mut registered)) = (services, slices, registered) else {
            return;
        };
        loop {
            [&mut services, &mut slices, &mut registered].into_iter().for_each(watch::Receiver::mark_unchanged);
            let reconciled = tokio::select! {
                () = shutdown.cancelled() => return,
                reconciled = self.reconcile() => reconciled,
            };
            let failed = reconciled.is_err();
            if let Err(status) = reconciled {
                tracing::warn!(message = status.message, "APIServices could not be brought up to date; trying again");
            }
            // Endpoints change all the time; they matter only where there are remote servers.
            let remote = !self.table.load().is_empty();
            let ended = tokio::select! {
                () = shutdown.cancelled() => return,
                changed = registered.changed() => changed.is_err(),
                changed = services.changed(), if remote => changed.is_err(),
                changed = slices.changed(), if remote => changed.is_err(),
                () = self.changed.notified() => false,
                () = tokio::time::sleep(if failed { RETRY } else { PERIOD }), if remote || failed => false,
            };
            if ended {
                return;
            }
            tokio::time::sleep(DEBOUNCE).await;
        }
    }

    /// Brings the registrations, the conditions, the table and the documents in line. Doing it twice is harmless.
    async fn reconcile(&self) -> Result<(), Status> {
        registration::reconcile(&self.registry, self.published.announced()).await?;
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
        if !unchanged {
            let published = table.values().map(Known::published).collect();
            self.table.store(Arc::new(table));
            self.published.publish_remote(published);
        }
        Ok(())
    }

    /// Checks one APIService: writes its condition, and returns what is known if it is remote.
    async fn one(&self, before: &Table, object: &Arc<Object>, service: &Value) -> Option<Known> {
        if !service.pointer("/spec/service").is_some_and(Value::is_object) {
            record(&self.registry, object, service, &Condition::local()).await;
            return None;
        }
        let known = before.get(&Remote::group_version_of(service));
        let client = self.client.load_full();
        // A connection's settings are kept as long as the APIService says the same.
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

/// Writes the condition, if it says something new.
async fn record(registry: &Registry, object: &Arc<Object>, service: &Value, condition: &Condition) {
    let now = jiff::Timestamp::now();
    let Some(mut new) = condition.written_into(service, now) else { return };
    let written = async {
        let resource = registry.required(GROUP, "v1", PLURAL)?;
        // What this server serves itself has always been available.
        if service.pointer("/spec/service").is_some_and(Value::is_object) {
            own_status(&resource, service, &mut new, now);
        }
        registry.write(&resource, &new, Expect::ModRevision(object.revision), Vec::new()).await
    };
    // If somebody wrote meanwhile, that is a change that is seen here again.
    if let Err(status) = written.await {
        tracing::warn!(message = status.message, "the condition of an APIService could not be written");
    }
}
