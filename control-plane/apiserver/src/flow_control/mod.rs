//! Priority and fairness: who is served next when more is asked for than the server can do at once.
//!
//! A request is classified by the FlowSchemas into a flow of a priority level. Each level has its own share of the
//! server's seats; within a level flows wait in queues that are served fairly, so that one who asks too much waits
//! for itself. A request that cannot even wait is told to come back later. One task follows the objects, writes
//! their conditions, and lends the seats of quiet levels to busy ones.
//!
//! Invariant: the exempt level never waits, and the catch-all level is always there, whatever the objects say.

mod allocation;
mod debug;
mod level;
mod metrics;
mod queues;
mod schema;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use corten_meta::{Object, Status, Value};
use corten_store::Expect;
use http::HeaderValue;
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub use debug::dump;
pub use level::Seat;
pub use metrics::render as render_metrics;

use crate::bootstrap;
use crate::handlers::ownership::apply_status;
use crate::pipeline::Context;
use crate::request::RequestInfo;
use crate::server::Server;
use crate::verb::Verb;
use allocation::{Demand, allocate};
use level::{Asked, Level, Settings};
use schema::FlowSchema;

pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
const CATCH_ALL: &str = "catch-all";
/// As whom the server says that a FlowSchema names a level that is there.
pub const CONSUMER: &str = "api-priority-and-fairness-config-consumer-v1";

/// How often seats are lent and given back.
const PERIOD: Duration = Duration::from_secs(10);
/// How long a request waits at most: a quarter of the time that a request has.
const MAX_WAIT: Duration = Duration::from_secs(15);
/// How many objects of a list are worth one seat, and how many seats a list may take.
const OBJECTS_PER_SEAT: usize = 100;
const MAX_SEATS: u32 = 10;

/// What the objects say, ready to be asked.
struct Table {
    revisions: [u64; 2],
    schemas: Vec<FlowSchema>,
    levels: BTreeMap<String, Arc<Level>>,
}

/// The priority levels and the way into them.
pub struct FlowControl {
    total: u32,
    table: ArcSwap<Table>,
}

/// The level and schema that a request was put under, as its answer tells.
#[derive(Clone)]
pub struct Classified {
    pub flow_schema: HeaderValue,
    pub priority_level: HeaderValue,
}

impl FlowControl {
    /// With as many seats as this server may use at once.
    pub fn new(total: usize) -> FlowControl {
        let total = u32::try_from(total).unwrap_or(u32::MAX).max(1);
        let levels = BTreeMap::from([(CATCH_ALL.to_owned(), Arc::new(Level::new("", Settings::reject(total))))]);
        let schemas = vec![FlowSchema::catch_all()];
        FlowControl { total, table: ArcSwap::from_pointee(Table { revisions: [0; 2], schemas, levels }) }
    }

    /// Puts the request where it belongs. The answer must say so, also if it is that there is no room.
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
        (classified, Admission { level: level.cloned(), flow, asked: asked(schema, context) })
    }

    /// Each level with what waits and executes in it.
    fn dump(&self) -> Vec<(String, debug::LevelDump)> {
        self.table.load().levels.iter().map(|(name, level)| (name.clone(), level.dump())).collect()
    }

    /// Reads the objects anew, if they have changed.
    fn refresh(&self, server: &Server) -> bool {
        let revision = |plural: &str| {
            let resource = server.registry.resource(GROUP, "v1", plural);
            resource.and_then(|r| r.stored.as_ref().map(|s| s.cache.revision())).unwrap_or(0)
        };
        let revisions = [revision(SCHEMAS), revision(LEVELS)];
        let before = self.table.load_full();
        if before.revisions == revisions {
            return false;
        }
        let objects = |plural: &str| server.cached_list(GROUP, "v1", plural, "");
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

    /// Lends the seats that were not used to the levels that wanted more.
    fn lend(&self) {
        let table = self.table.load();
        let limited: Vec<&Arc<Level>> = table.levels.values().filter(|level| !level.is_exempt()).collect();
        let demands: Vec<Demand> = limited.iter().map(|level| level.take_demand()).collect();
        for (level, seats) in limited.iter().zip(allocate(self.total, &demands)) {
            level.set_limit(seats);
        }
    }
}

/// A request that knows where it belongs and has not entered yet.
pub struct Admission {
    level: Option<Arc<Level>>,
    flow: u64,
    asked: Asked,
}

/// The request as the dumps show it.
fn asked(schema: &FlowSchema, context: &Context) -> Asked {
    let (user, info) = (&context.user, &context.info);
    let RequestInfo { verb, path, namespace, name, group, version, resource, subresource, .. } = info;
    let slash = if group.is_empty() { "" } else { "/" };
    let group_version = [group, slash, version].concat();
    let details: [&str; 8] = [&user.name, verb.as_str(), path, namespace, name, &group_version, resource, subresource];
    Asked {
        schema: schema.name.clone(),
        flow: schema.distinguish(user, info).to_owned(),
        arrived: context.now,
        seats: 1,
        details: details.join("\n"),
    }
}

impl Admission {
    /// Waits for a seat; dropping the seat gives it to the next.
    pub async fn enter(self, server: &Server, context: &Context) -> Result<Option<Seat>, Status> {
        let Some(level) = self.level else { return Ok(None) };
        if level.is_exempt() {
            return Ok(Some(level.pass(self.asked)));
        }
        let asked = Asked { seats: seats(server, context).min(level.widest()), ..self.asked };
        match level.enter(self.flow, asked, MAX_WAIT).await {
            Some(seat) => Ok(Some(seat)),
            None => Err(Status::too_many_requests("Too many requests, please try again later.", 1)),
        }
    }
}

/// How much of the server a request takes: a list as much as it has to read, anything else one seat.
fn seats(server: &Server, context: &Context) -> u32 {
    let info = &context.info;
    if !matches!(info.verb, Verb::List | Verb::DeleteCollection) {
        return 1;
    }
    let resource = server.registry.resource(&info.group, &info.version, &info.resource);
    let count = resource.and_then(|r| r.stored.as_ref().map(|s| s.cache.count())).unwrap_or(0);
    let limit = info.query.get("limit").and_then(|l| l.parse().ok()).filter(|l| *l > 0).unwrap_or(usize::MAX);
    let read = count.min(limit);
    u32::try_from(read.div_ceil(OBJECTS_PER_SEAT)).unwrap_or(MAX_SEATS).clamp(1, MAX_SEATS)
}

/// Follows the objects until shutdown.
pub async fn run(server: Weak<Server>, shutdown: CancellationToken) {
    let Some((mut schemas, mut levels)) = server.upgrade().and_then(|s| {
        let changes = |plural: &str| {
            let resource = s.registry.resource(GROUP, "v1", plural)?;
            resource.stored.as_ref().map(|stored| stored.cache.changes())
        };
        Some((changes(SCHEMAS)?, changes(LEVELS)?))
    }) else {
        return;
    };
    let mut tick = tokio::time::interval(PERIOD);
    loop {
        schemas.mark_unchanged();
        levels.mark_unchanged();
        let Some(strong) = server.upgrade() else { return };
        reconcile(&strong).await;
        drop(strong);
        let ended = tokio::select! {
            () = shutdown.cancelled() => return,
            changed = schemas.changed() => changed.is_err(),
            changed = levels.changed() => changed.is_err(),
            _ = tick.tick() => {
                if let Some(server) = server.upgrade() {
                    server.flow_control.lend();
                }
                false
            }
        };
        if ended {
            return;
        }
    }
}

/// Takes over what the objects say now, and writes what there is to say about them.
pub async fn reconcile(server: &Server) {
    if !server.flow_control.refresh(server) {
        return;
    }
    if let Err(e) = bootstrap::restore_mandatory(server).await {
        tracing::warn!(error = %e, "the mandatory flow control objects could not be restored");
    }
    for object in server.cached_list(GROUP, "v1", SCHEMAS, "") {
        if let Err(status) = write_dangling(server, &object).await {
            tracing::warn!(message = status.message, "the condition of a FlowSchema could not be written");
        }
    }
}

/// Writes whether the level that a FlowSchema names is there.
async fn write_dangling(server: &Server, object: &Arc<Object>) -> Result<(), Status> {
    let schema = object.value();
    let level = schema.pointer("/spec/priorityLevelConfiguration/name").and_then(Value::as_str).unwrap_or_default();
    let exists = server.cached(GROUP, "v1", LEVELS, "", level).is_some();
    let now = jiff::Timestamp::now();
    let resource = server.resource(GROUP, "v1", SCHEMAS)?;
    let condition = schema::dangling(&schema, level, exists, now);
    let status = condition.map(|condition| json!({ "conditions": [condition] }));
    let Some(new) = status.and_then(|status| apply_status(&resource, &schema, &status, CONSUMER, now)) else {
        return Ok(());
    };
    // A conflict is a change that is seen here again.
    server.registry.write(&resource, &new, Expect::ModRevision(object.revision), Vec::new()).await.map(|_| ())
}
