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
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use corten_meta::{Object, Status, Value};
use corten_store::Expect;
use futures::future::join_all;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use documents::Documents;
pub use forward::forward;
pub use remote::Remote;

use crate::cache::ResourceCache;
use crate::handlers::ownership::own_status;
use crate::metrics::Exposition;
use crate::server::Server;
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
    /// What it said about itself when it was last available.
    pub documents: Arc<Documents>,
}

/// The remote group versions of a moment.
#[derive(Default)]
pub struct Aggregation {
    table: ArcSwap<BTreeMap<(String, String), Known>>,
    /// Wakes the task: the group versions of custom resources have changed.
    pub registrations: Arc<Notify>,
}

impl Aggregation {
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

    /// All remote group versions.
    pub fn known(&self) -> Vec<Known> {
        self.table.load().values().cloned().collect()
    }
}

/// Follows APIServices until shutdown.
pub async fn run(server: Weak<Server>, shutdown: CancellationToken) {
    let Some((mut services, mut slices, mut registered)) = server.upgrade().and_then(|s| {
        let cache = |group: &str, plural: &str| {
            Some(Arc::clone(&s.registry.resource(group, "v1", plural)?.stored.as_ref()?.cache))
        };
        let changes = |cache: Arc<ResourceCache>| cache.changes();
        Some((
            changes(cache("", "services")?),
            changes(cache("discovery.k8s.io", "endpointslices")?),
            changes(cache(GROUP, PLURAL)?),
        ))
    }) else {
        return;
    };
    loop {
        [&mut services, &mut slices, &mut registered]
            .into_iter()
            .for_each(tokio::sync::watch::Receiver::mark_unchanged);
        let Some(strong) = server.upgrade() else { return };
        let reconciled = tokio::select! {
            () = shutdown.cancelled() => return,
            reconciled = reconcile(&strong) => reconciled,
        };
        let failed = reconciled.is_err();
        if let Err(status) = reconciled {
            tracing::warn!(message = status.message, "APIServices could not be brought up to date; trying again");
        }
        // Endpoints change all the time; they matter only to those who have remote servers.
        let remote = !strong.aggregation.table.load().is_empty();
        let registrations = Arc::clone(&strong.aggregation.registrations);
        // The task must not be what keeps the server alive.
        drop(strong);
        let ended = tokio::select! {
            () = shutdown.cancelled() => return,
            changed = registered.changed() => changed.is_err(),
            changed = services.changed(), if remote => changed.is_err(),
            changed = slices.changed(), if remote => changed.is_err(),
            () = registrations.notified() => false,
            () = tokio::time::sleep(if failed { RETRY } else { PERIOD }), if remote || failed => false,
        };
        if ended {
            return;
        }
        tokio::time::sleep(DEBOUNCE).await;
    }
}

/// Brings the registrations, the conditions, the table and the documents in line. Doing it twice is harmless.
async fn reconcile(server: &Server) -> Result<(), Status> {
    registration::reconcile(server).await?;
    let services: Vec<(Arc<Object>, Value)> = server
        .cached_list(GROUP, "v1", PLURAL, "")
        .into_iter()
        .map(|object| (Arc::clone(&object), object.value()))
        .filter(|(object, _)| object.header.deletion_timestamp.is_none())
        .collect();
    let before = server.aggregation.table.load_full();
    let checked = join_all(services.iter().map(|(object, service)| one(server, &before, object, service))).await;
    let table: BTreeMap<_, _> = checked.into_iter().flatten().map(|k| (k.remote.group_version(), k)).collect();
    let same = |a: &Known, b: &Known| {
        a.available == b.available && Arc::ptr_eq(&a.remote, &b.remote) && Arc::ptr_eq(&a.documents, &b.documents)
    };
    let unchanged =
        before.len() == table.len() && before.iter().zip(&table).all(|((at, a), (here, b))| at == here && same(a, b));
    if !unchanged {
        server.aggregation.table.store(Arc::new(table));
        server.openapi.set_remote(&server.aggregation.known());
        server.publish_discovery();
    }
    Ok(())
}

/// Looks at one APIService: writes its condition, and returns what is known if it is remote.
async fn one(
    server: &Server,
    before: &BTreeMap<(String, String), Known>,
    object: &Arc<Object>,
    service: &Value,
) -> Option<Known> {
    if !service.pointer("/spec/service").is_some_and(Value::is_object) {
        record(server, object, service, &Condition::local()).await;
        return None;
    }
    let known = Remote::group_version_of(service);
    let known = before.get(&known);
    // What connects to it is kept as long as the APIService says the same.
    let remote = match known.filter(|k| k.remote.is_of(server, service)) {
        Some(known) => Arc::clone(&known.remote),
        None => Arc::new(Remote::new(server, service)),
    };
    let condition = check(server, &remote).await;
    record(server, object, service, &condition).await;
    let last = known.map(|k| Arc::clone(&k.documents)).unwrap_or_default();
    let documents = if condition.status == "True" { documents::fetch(server, &remote, last).await } else { last };
    Some(Known { remote, available: condition.status == "True", documents })
}

/// Writes the condition, if it says something new.
async fn record(server: &Server, object: &Arc<Object>, service: &Value, condition: &Condition) {
    let now = jiff::Timestamp::now();
    let Some(mut new) = condition.written_into(service, now) else { return };
    let written = async {
        let resource = server.resource(GROUP, "v1", PLURAL)?;
        // What this server serves itself has always been available.
        if service.pointer("/spec/service").is_some_and(Value::is_object) {
            own_status(&resource, service, &mut new, now);
        }
        server.registry.write(&resource, &new, Expect::ModRevision(object.revision), Vec::new()).await
    };
    // If somebody wrote meanwhile, that is a change that is seen here again.
    if let Err(status) = written.await {
        tracing::warn!(message = status.message, "the condition of an APIService could not be written");
    }
}
