//! Custom resources: a definition becomes a kind, and the kind takes the same path as all others.
//!
//! One task follows the definitions: it accepts their names, makes kinds of their served versions, and swaps the
//! resource table and discovery. It never handles requests; those see only the table.

mod behaviour;
mod correlation;
mod defaults;
mod definition;
mod embedded;
mod ending;
mod expressions;
mod formats;
mod lists;
mod marks;
mod numbers;
mod rules;
mod scale;
mod schema;
mod selectable;
mod structural;
mod validation;

pub use definition::validate_bundle;
pub use embedded::coerce;
pub use expressions::validate as validate_expressions;
pub use rules::usable_message;
pub use schema::unknown_fields;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use corten_api::Kind;
use corten_meta::{Object, Status, Value};
use corten_store::Expect;
use tokio::sync::RwLock;
use tokio_util::sync::CancellationToken;

use self::definition::{Names, Taken};
use crate::follow::{Reconcile, follow};
use crate::handlers::ownership::own_status;
use crate::registry::{Resource, Written};
use crate::server::Server;

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";

/// Why nothing is created any more.
pub const TERMINATING: &str = "create not allowed while custom resource definition is terminating";

/// What is known of definitions that did not change: among a thousand of them, one that does costs its own.
#[derive(Default)]
pub struct Kinds {
    known: Mutex<HashMap<String, Arc<Known>>>,
    /// Held for writing from the moment that definitions become established until discovery lists their kinds.
    establishing: RwLock<()>,
}

/// A definition as it was last looked at.
pub struct Known {
    object: Arc<Object>,
    names: Names,
    /// Whether requests for its objects are answered.
    is_served: bool,
    is_terminating: bool,
    made: Mutex<Made>,
}

/// What was made of a definition's spec and the names that it is served under: another status makes nothing new.
#[derive(Clone, Default)]
struct Made {
    names: Value,
    kinds: Vec<Arc<Kind>>,
}

impl Known {
    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kinds of the definition with the status that it has, or is about to have.
    fn kinds(&self, definition: &Value) -> Vec<Arc<Kind>> {
        let (mut made, names) = (self.made(), definition::served_names(definition));
        if made.names != *names {
            let kinds = definition::kinds(definition, self.object.revision);
            *made = Made { names: names.clone(), kinds: kinds.into_iter().map(Arc::new).collect() };
        }
        made.kinds.clone()
    }
}

impl Kinds {
    fn of(&self, object: &Arc<Object>) -> Arc<Known> {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.get(&object.header.name);
        if let Some(known) = before.filter(|known| known.object.revision == object.revision) {
            return Arc::clone(known);
        }
        let definition = object.value();
        let same = |known: &&Arc<Known>| {
            let (old, new) = (&known.object.header, &object.header);
            old.uid == new.uid && old.generation == new.generation
        };
        let made = Mutex::new(before.filter(same).map(|known| known.made().clone()).unwrap_or_default());
        let (names, is_served) = (Names::of(&definition), definition::is_served(&definition));
        let is_terminating = definition::is_terminating(&definition);
        let known = Arc::new(Known { object: Arc::clone(object), names, is_served, is_terminating, made });
        known.kinds(&definition);
        all.insert(object.header.name.clone(), Arc::clone(&known));
        known
    }

    /// The names of the definitions whose objects are being deleted.
    pub fn terminating(&self) -> HashSet<String> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|(_, known)| known.is_terminating).map(|(name, _)| name.clone()).collect()
    }

    /// The group versions that the definitions name, be they established or not.
    pub fn announced(&self) -> BTreeSet<(String, String)> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let kinds = all.values().flat_map(|known| known.made().kinds.clone()).filter(|kind| !kind.verbs.is_empty());
        kinds.map(|kind| (kind.group.clone(), kind.version.clone())).collect()
    }

    /// Waits until discovery lists the kinds of every definition that is established.
    pub async fn settled(&self) {
        drop(self.establishing.read().await);
    }

    fn forget_others(&self, definitions: &[Arc<Known>]) {
        let names: HashSet<&str> = definitions.iter().map(|known| known.object.header.name.as_str()).collect();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).retain(|name, _| names.contains(name.as_str()));
    }
}

/// Follows the definitions until shutdown.
pub async fn run(server: Weak<Server>, shutdown: CancellationToken) {
    let look: Reconcile = |server| Box::pin(async { ending::end_all(server, reconcile(server).await?).await });
    follow(server, (GROUP, PLURAL), look, shutdown).await;
}

/// Brings status, resource table and discovery in line with the definitions. Doing it twice is harmless.
///
/// Gives the definitions that are on their way out.
pub async fn reconcile(server: &Server) -> Result<Vec<Arc<Known>>, Status> {
    let resource = server.resource(GROUP, "v1", PLURAL)?;
    let mut kinds: BTreeMap<String, Arc<Kind>> = BTreeMap::new();
    let mut definitions: Vec<Arc<Known>> =
        server.cached_list(GROUP, "v1", PLURAL, "").iter().map(|object| server.custom_kinds.of(object)).collect();
    // Who was first keeps its names.
    definitions.sort_by_key(|known| known.object.header.creation_timestamp);
    // Names that are given here count for the next already.
    let mut given: Vec<Names> = Vec::new();
    let mut told: Vec<(&Object, Value)> = Vec::new();
    let mut ending: Vec<Arc<Known>> = Vec::new();
    for known in &definitions {
        let object = &known.object;
        let is_ending = object.header.deletion_timestamp.is_some();
        if is_ending {
            ending.push(Arc::clone(known));
        }
        // Who holds an object or the definition back must be able to let it go.
        let (mut is_served, mut own) = (known.is_served, known.made().kinds.clone());
        if !is_ending && !known.names.are_settled() {
            let definition = object.value();
            let names = definitions.iter().map(|known| &known.names).chain(&given);
            let taken = Taken::in_group(&known.names.group, names);
            let now = jiff::Timestamp::now();
            if let Some(mut accepted) = definition::accepted(&definition, &taken, now) {
                own_status(&resource, &definition, &mut accepted, now);
                (is_served, own) = (definition::is_served(&accepted), known.kinds(&accepted));
                given.push(Names::of(&accepted));
                told.push((object, accepted));
            }
        }
        // A definition never takes the place of a built-in kind.
        if is_served && !own.iter().any(|kind| server.registry.is_built_in(&kind.group, &kind.plural)) {
            let path = |kind: &Kind| format!("{}/{}/{}", kind.group, kind.version, kind.plural);
            kinds.extend(own.into_iter().map(|kind| (path(&kind), kind)));
        }
    }
    server.custom_kinds.forget_others(&definitions);
    // Measured kinds come and go like custom ones, and are published with them.
    let kinds: Vec<Arc<Kind>> = kinds.into_values().chain(crate::resource_metrics::kinds(server)).collect();
    let usable = kinds.iter().filter(|kind| !is_unresolved(kind));
    let described: Vec<Arc<Kind>> = usable.chain(server.registry.beside()).cloned().collect();
    server.openapi.set_custom(&described);
    server.registry.set_custom(kinds).await?;
    // One that took the place of another is at its beginning.
    for known in definitions.iter().filter(|known| known.object.header.deletion_timestamp.is_none()) {
        known.made().kinds.iter().for_each(|kind| begin(server, kind));
    }
    // A client that hears that a definition is established finds its kinds in discovery, and one that finds the kinds can
    // update the definition without a conflict with this status: discovery waits meanwhile.
    let establishing = server.custom_kinds.establishing.write().await;
    let established = accept_all(server, &resource, told).await;
    server.publish_discovery();
    drop(establishing);
    server.aggregation.registrations.notify_one();
    established?;
    Ok(ending)
}

fn begin(server: &Server, kind: &Kind) {
    let resource = server.registry.resource(&kind.group, &kind.version, &kind.plural);
    if let Some(stored) = resource.as_ref().and_then(|resource| resource.stored.as_ref()) {
        stored.cache.is_ending.store(false, Ordering::SeqCst);
    }
}

/// Whether requests for a kind are heard but cannot be answered: nobody can be trusted to convert its objects.
pub fn is_unresolved(kind: &Kind) -> bool {
    let client = kind.behaviour.conversion_webhook().map(|webhook| &webhook["clientConfig"]);
    client.and_then(crate::outbound::bundle_error).is_some()
}

/// Whether the objects of a kind are being deleted, as its definition is on its way out.
pub fn is_terminating(server: &Server, kind: &Kind) -> bool {
    let definitions = server.registry.resource(GROUP, "v1", PLURAL);
    let stored = definitions.as_ref().and_then(|resource| resource.stored.as_ref());
    let name = format!("{}.{}", kind.plural, kind.group);
    let definition = stored.and_then(|stored| stored.cache.get("", &name));
    let ending = definition.filter(|definition| definition.header.deletion_timestamp.is_some());
    ending.is_some_and(|definition| definition::is_terminating(&definition.value()))
}

async fn accept_all(server: &Server, resource: &Resource, accepted: Vec<(&Object, Value)>) -> Result<(), Status> {
    for (object, accepted) in accepted {
        accept(server, resource, object, &accepted).await?;
    }
    Ok(())
}

/// Writes the conditions of a definition.
async fn accept(server: &Server, resource: &Resource, object: &Object, accepted: &Value) -> Result<(), Status> {
    let expect = Expect::ModRevision(object.revision);
    match server.registry.write(resource, accepted, expect, Vec::new()).await? {
        Written::Done(_) => Ok(()),
        // Somebody changed it meanwhile, which is a change that is seen here again.
        Written::Conflict | Written::CompanionConflict => Ok(()),
    }
}
