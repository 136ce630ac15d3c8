//! Priority and fairness: decides which request is served next when the server has too many.
//!
//! The FlowSchemas classify a request into a flow of a priority level. Each level has its own share of the server's
//! seats; within a level flows wait in queues that are served fairly, so that a client with too many requests delays
//! only itself. A request whose queue is full gets a 429. One task watches the objects, writes their conditions, and
//! lends the seats of quiet levels to busy ones.
//!
//! Invariant: requests of the exempt level never wait, and the catch-all level always exists, whatever the objects
//! contain.

mod allocation;
mod debug;
mod level;
mod metrics;
mod queues;
mod schema;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use corten_access::Verb;
use corten_managed_fields::apply_status;
use corten_meta::{Object, Status, Value};
use corten_store::Expect;
use http::HeaderValue;
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub use debug::dump;
pub use level::Seat;
pub use metrics::render as render_metrics;

use crate::bootstrap;
use crate::bootstrap::flow_control::CONSUMER;
use crate::context::{Classified, Context};
use crate::core::Core;
use crate::registry::Registry;
use crate::request::RequestInfo;
use allocation::{Demand, allocate};
use level::{Level, RequestDump, Settings};
use schema::FlowSchema;

pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
const CATCH_ALL: &str = "catch-all";

/// The period of lending and returning seats.
const PERIOD: Duration = Duration::from_secs(10);
/// The maximum wait of a request: a quarter of its timeout.
const MAX_WAIT: Duration = Duration::from_secs(15);
/// The number of a list's objects per seat, and the maximum seats of a list.
const OBJECTS_PER_SEAT: usize = 100;
const MAX_SEATS: u32 = 10;

/// The decoded FlowSchemas and levels.
struct Table {
    revisions: [u64; 2],
    schemas: Vec<FlowSchema>,
    levels: BTreeMap<String, Arc<Level>>,
}

/// The priority levels and the classification of requests.
pub struct FlowControl {
    total: u32,
    table: ArcSwap<Table>,
}

impl FlowControl {
    /// Makes the priority levels for `total` seats.
    pub fn new(total: usize) -> FlowControl {
        let total = u32::try_from(total).unwrap_or(u32::MAX).max(1);
        let levels = BTreeMap::from([(CATCH_ALL.to_owned(), Arc::new(Level::new("", Settings::reject(total))))]);
        let schemas = vec![FlowSchema::catch_all()];
        FlowControl { total, table: ArcSwap::from_pointee(Table { revisions: [0; 2], schemas, levels }) }
    }

    /// Classifies the request. The answer must have the classification in its headers, also if it is a 429.
    pub fn classify(&self, context: &Context) -> (Classified, Admission) {
        let table = self.table.load();
        let info = &context.info;
        let found = table
            .schemas
            .iter()
            .find(|schema| table.levels.contains_key(&schema.level) && schema.matches(&context.user, info));
        static FALLBACK: LazyLock<FlowSchema> = LazyLock::new(FlowSchema::catch_all);
        let schema = found.unwrap_or_else(|| &FALLBACK);
        let level = table.levels.get(&schema.level).or_else(|| table.levels.get(CATCH_ALL));
        let uid = |uid: &str| HeaderValue::from_str(uid).unwrap_or(HeaderValue::from_static(""));
        let level_uid = level.map(|level| level.uid()).unwrap_or_default();
        let classified = Classified { flow_schema: uid(&schema.uid), priority_level: uid(&level_uid) };
        let flow = schema.flow(&context.user, info);
        (classified, Admission { level: level.cloned(), flow, request: request(schema, context) })
    }

    /// Returns each level with its waiting and executing requests.
    fn dump(&self) -> Vec<(String, level::LevelDump)> {
        self.table.load().levels.iter().map(|(name, level)| (name.clone(), level.dump())).collect()
    }

    /// Reads the objects again if they changed, and reports whether they did.
    fn refresh(&self, registry: &Registry) -> bool {
        let revision = |plural: &str| registry.cache(GROUP, "v1", plural).map_or(0, |cache| cache.revision());
        let revisions = [revision(SCHEMAS), revision(LEVELS)];
        let before = self.table.load_full();
        if before.revisions == revisions {
            return false;
        }
        let objects = |plural: &str| registry.cached_list(GROUP, "v1", plural, "");
        let settings: Vec<(String, String, Settings)> = objects(LEVELS)
            .iter()
            .map(|o| (o.header.name.clone(), o.header.uid.clone(), Settings::from_value(&o.value())))
            .collect();
        let shares: u32 = settings.iter().map(|(_, _, settings)| settings.shares).sum();
        let mut levels = BTreeMap::new();
        for (name, uid, mut settings) in settings {
            settings.share_of(self.total, shares);
            let level = match before.levels.get(&name) {
                Some(level) => {
                    level.change(&uid, settings);
                    Arc::clone(level)
                }
                None => Arc::new(Level::new(&uid, settings)),
            };
            levels.insert(name, level);
        }
        levels.entry(CATCH_ALL.to_owned()).or_insert_with(|| Arc::new(Level::new("", Settings::reject(1))));
        let mut schemas: Vec<FlowSchema> = objects(SCHEMAS).iter().map(|o| FlowSchema::from_object(o)).collect();
        schemas.sort_unstable_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        self.table.store(Arc::new(Table { revisions, schemas, levels }));
        true
    }

    /// Lends unused seats to the levels with more demand.
    fn lend(&self) {
        let table = self.table.load();
        let limited: Vec<&Arc<Level>> = table.levels.values().filter(|level| !level.is_exempt()).collect();
        let demands: Vec<Demand> = limited.iter().map(|level| level.take_demand()).collect();
        for (level, seats) in limited.iter().zip(allocate(self.total, &demands)) {
            level.set_limit(seats);
        }
    }
}

/// A classified request that has not entered its level yet.
pub struct Admission {
    level: Option<Arc<Level>>,
    flow: u64,
    request: RequestDump,
}

fn request(schema: &FlowSchema, context: &Context) -> RequestDump {
    let user = &context.user;
    let info = &context.info;
    let RequestInfo { verb, path, namespace, name, group, version, resource, subresource, .. } = info;
    let slash = if group.is_empty() { "" } else { "/" };
    let group_version = [group, slash, version].concat();
    let details: [&str; 8] = [&user.name, verb.as_str(), path, namespace, name, &group_version, resource, subresource];
    RequestDump {
        schema: schema.name.clone(),
        flow: schema.distinguish(user, info).to_owned(),
        arrived: context.now,
        seats: 1,
        details: details.join("\n"),
    }
}

impl Admission {
    /// Waits for a seat; dropping the seat grants it to the next request.
    pub async fn enter(self, context: &Context) -> Result<Option<Seat>, Status> {
        let Some(level) = self.level else { return Ok(None) };
        if level.is_exempt() {
            return Ok(Some(level.pass(self.request)));
        }
        let request = RequestDump { seats: seats(context).min(level.max_request_seats()), ..self.request };
        match level.enter(self.flow, request, MAX_WAIT).await {
            Some(seat) => Ok(Some(seat)),
            None => Err(Status::too_many_requests("Too many requests, please try again later.", 1)),
        }
    }
}

/// Returns the seats of a request: those of a list depend on the number of its objects, other requests have one.
fn seats(context: &Context) -> u32 {
    let info = &context.info;
    if !matches!(info.verb, Verb::List | Verb::DeleteCollection) {
        return 1;
    }
    let stored = context.resource.as_ref().and_then(|resource| resource.stored.as_ref());
    let count = stored.map_or(0, |stored| stored.cache.count());
    let limit = info.query.get("limit").and_then(|l| l.parse().ok()).filter(|l| *l > 0).unwrap_or(usize::MAX);
    let read = count.min(limit);
    u32::try_from(read.div_ceil(OBJECTS_PER_SEAT)).unwrap_or(MAX_SEATS).clamp(1, MAX_SEATS)
}

impl FlowControl {
    /// Watches the objects until shutdown.
    pub async fn run(&self, core: &Core, shutdown: &CancellationToken) {
        let changes = |plural: &str| core.registry.cache(GROUP, "v1", plural).map(|cache| cache.changes());
        let (Some(mut schemas), Some(mut levels)) = (changes(SCHEMAS), changes(LEVELS)) else { return };
        let mut tick = tokio::time::interval(PERIOD);
        loop {
            schemas.mark_unchanged();
            levels.mark_unchanged();
            self.reconcile(core).await;
            let ended = tokio::select! {
                () = shutdown.cancelled() => return,
                changed = schemas.changed() => changed.is_err(),
                changed = levels.changed() => changed.is_err(),
                _ = tick.tick() => {
                    self.lend();
                    false
                }
            };
            if ended {
                return;
            }
        }
    }

    /// Applies the current objects, and writes their conditions.
    pub async fn reconcile(&self, core: &Core) {
        if !self.refresh(&core.registry) {
            return;
        }
        if let Err(e) = bootstrap::restore_mandatory(core).await {
            tracing::warn!(error = %e, "the mandatory flow control objects could not be restored");
        }
        for object in core.registry.cached_list(GROUP, "v1", SCHEMAS, "") {
            if let Err(status) = write_dangling(&core.registry, &object).await {
                tracing::warn!(message = status.message, "the condition of a FlowSchema could not be written");
            }
        }
    }
}

/// Writes whether the level that a FlowSchema names exists.
async fn write_dangling(registry: &Registry, object: &Arc<Object>) -> Result<(), Status> {
    let schema = object.value();
    let level = schema.pointer("/spec/priorityLevelConfiguration/name").and_then(Value::as_str).unwrap_or_default();
    let exists = registry.cached(GROUP, "v1", LEVELS, "", level).is_some();
    let now = jiff::Timestamp::now();
    let resource = registry.required(GROUP, "v1", SCHEMAS)?;
    let condition = schema::dangling(&schema, level, exists, now);
    let status = condition.map(|condition| json!({ "conditions": [condition] }));
    let Some(new) = status.and_then(|status| apply_status(&resource.kind, &schema, &status, CONSUMER, now)) else {
        return Ok(());
    };
    // A conflicting write is a change that is reconciled again.
    registry.write(&resource, &new, Expect::ModRevision(object.revision), Vec::new()).await.map(|_| ())
}
