//! Custom resources: a definition becomes a kind, and the kind takes the same path as all others.
//!
//! One task follows the definitions: it accepts their names, makes kinds of their served versions, and swaps the
//! resource table and discovery. It never handles requests; those see only the table.

mod behaviour;
mod definition;
mod expressions;
mod rules;
mod schema;
mod structural;
mod validation;

pub use expressions::validate as validate_expressions;
pub use rules::usable_message;
pub use schema::unknown_fields;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use corten_api::Kind;
use corten_meta::{Object, Status, Value};
use corten_store::{Expect, Op, Range};
use tokio_util::sync::CancellationToken;

use self::definition::Taken;
use crate::registry::{Resource, Written, store_status};
use crate::server::Server;

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";

/// The kinds of definitions that did not change: among a thousand of them, one that does costs its own.
#[derive(Default)]
pub struct Kinds(Mutex<HashMap<String, Made>>);

/// The revision of a definition, and the kinds that it made.
type Made = (u64, Vec<Arc<Kind>>);

impl Kinds {
    fn of(&self, object: &Object, definition: &Value) -> Vec<Arc<Kind>> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match made.get(&object.header.name) {
            Some((revision, kinds)) if *revision == object.revision => kinds.clone(),
            _ => {
                let kinds: Vec<Arc<Kind>> = definition::kinds(definition).into_iter().map(Arc::new).collect();
                made.insert(object.header.name.clone(), (object.revision, kinds.clone()));
                kinds
            }
        }
    }

    fn forget_others(&self, definitions: &[(Arc<Object>, Value)]) {
        let names: HashSet<&str> = definitions.iter().map(|(object, _)| object.header.name.as_str()).collect();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|name, _| names.contains(name.as_str()));
    }
}

/// Follows the definitions until shutdown.
pub async fn run(server: Weak<Server>, shutdown: CancellationToken) {
    let Some(mut changes) = server.upgrade().and_then(|s| {
        let resource = s.registry.resource(GROUP, "v1", PLURAL)?;
        resource.stored.as_ref().map(|stored| stored.cache.changes())
    }) else {
        return;
    };
    loop {
        changes.mark_unchanged();
        let reconciled = match server.upgrade() {
            Some(server) => reconcile(&server).await,
            None => return,
        };
        let again = reconciled.is_err();
        if let Err(status) = reconciled {
            tracing::warn!(message = status.message, "custom resources could not be brought up to date; trying again");
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(Duration::from_secs(1)), if again => {}
        }
    }
}

/// Brings status, resource table and discovery in line with the definitions. Doing it twice is harmless.
pub async fn reconcile(server: &Server) -> Result<(), Status> {
    let resource = server.resource(GROUP, "v1", PLURAL)?;
    let mut kinds: BTreeMap<String, Arc<Kind>> = BTreeMap::new();
    let mut definitions: Vec<(Arc<Object>, Value)> = server
        .cached_list(GROUP, "v1", PLURAL, "")
        .into_iter()
        .map(|object| (object.clone(), object.value()))
        .collect();
    // Who was first keeps its names.
    definitions.sort_by_key(|(object, _)| object.header.creation_timestamp);
    for (object, definition) in &definitions {
        if object.header.deletion_timestamp.is_some() {
            clean_up(server, &resource, object, definition).await?;
            continue;
        }
        let taken = Taken::by_others(definition, definitions.iter().map(|(_, definition)| definition));
        let accepted = definition::accepted(definition, &taken, jiff::Timestamp::now());
        if let Some(accepted) = &accepted {
            accept(server, &resource, object, accepted).await?;
        }
        if !definition::is_established(accepted.as_ref().unwrap_or(definition)) {
            continue;
        }
        for kind in server.custom_kinds.of(object, definition) {
            kinds.insert(format!("{}/{}/{}", kind.group, kind.version, kind.plural), kind);
        }
    }
    server.custom_kinds.forget_others(&definitions);
    // Measured kinds come and go like custom ones, and are published with them.
    let kinds: Vec<Arc<Kind>> = kinds.into_values().chain(crate::resource_metrics::kinds(server)).collect();
    server.openapi.set_custom(&kinds);
    server.registry.set_custom(kinds).await?;
    server.publish_discovery();
    server.aggregation.registrations.notify_one();
    Ok(())
}

/// Writes the conditions and the finalizer of a definition.
async fn accept(server: &Server, resource: &Resource, object: &Object, accepted: &Value) -> Result<(), Status> {
    let expect = Expect::ModRevision(object.revision);
    match server.registry.write(resource, accepted, expect, Vec::new()).await? {
        Written::Done(_) => Ok(()),
        // Somebody changed it meanwhile, which is a change that is seen here again.
        Written::Conflict | Written::CompanionConflict => Ok(()),
    }
}

/// A definition goes after all its objects have: both in one commit.
async fn clean_up(server: &Server, resource: &Resource, object: &Object, definition: &Value) -> Result<(), Status> {
    let mut waiting: Vec<&str> = corten_meta::finalizers(definition);
    waiting.retain(|finalizer| *finalizer != definition::FINALIZER);
    let prefix = format!("{}/", definition::prefix(definition));
    let store = &server.registry.store;
    let instances = store.range(Range::prefix(prefix.as_bytes()).keys_only()).await.map_err(store_status)?;
    let gone: Vec<Op> = instances.entries.into_iter().map(|entry| Op::delete(entry.key, Expect::Any)).collect();
    if waiting.is_empty() {
        server.registry.erase(resource, "", &object.header.name, object.revision, gone).await?;
        return Ok(());
    }
    let mut rest = definition.clone();
    corten_meta::set(&mut rest, "/metadata/finalizers", serde_json::json!(waiting));
    if rest != *definition {
        server.registry.write(resource, &rest, Expect::ModRevision(object.revision), gone).await?;
    }
    Ok(())
}
