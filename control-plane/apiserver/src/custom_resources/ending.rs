//! The end of a definition: first its objects, each after its own finalizers, then itself.
//!
//! Nothing here waits. What somebody's finalizer still holds is looked at again when an object of the resource changes.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use corten_meta::{Object, Status, Value};
use corten_store::{Expect, Op, Range, Revision};
use tokio::sync::watch;

use super::definition;
use super::known::Known;
use crate::managed_fields::own_status;
use crate::registry::{Registry, Resource, store_status};

/// Tells when an object changes that holds up a definition.
pub type Changes = watch::Receiver<Revision>;

async fn keys(registry: &Registry, definition: &Value) -> Result<Vec<bytes::Bytes>, Status> {
    let prefix = format!("{}/", definition::prefix(definition));
    let range = Range::prefix(prefix.as_bytes()).keys_only();
    let objects = registry.store.range(range).await.map_err(store_status)?;
    Ok(objects.entries.into_iter().map(|entry| entry.key).collect())
}

/// Ends definitions that are on their way out. Gives what to wait for if objects of theirs are held.
pub async fn end_all(registry: &Registry, ending: Vec<Arc<Known>>) -> Result<Vec<Changes>, Status> {
    let definitions = registry.required(super::GROUP, "v1", super::PLURAL)?;
    let mut held = Vec::new();
    for known in ending {
        held.extend(end(registry, &definitions, &known).await?);
    }
    Ok(held)
}

/// Deletes the objects of a definition, and it after the last of them. This is done once: others may hold the definition
/// for longer, and until they let it go it is served, and may get new objects.
async fn end(registry: &Registry, definitions: &Resource, ending: &Known) -> Result<Option<Changes>, Status> {
    let definition = ending.object.value();
    if !corten_meta::finalizers(&definition).contains(&corten_api::CUSTOM_RESOURCE_CLEANUP) {
        return Ok(None);
    }
    let Some(resource) = served(registry, ending, &definition) else {
        // Nobody could take a finalizer from an object that is not served.
        let gone = keys(registry, &definition).await?.into_iter().map(|key| Op::delete(key, Expect::Any));
        return finish(registry, definitions, &ending.object, &definition, gone.collect()).await.map(|()| None);
    };
    if tell(registry, definitions, &ending.object, &definition).await? {
        // That it was told is a change which is seen here again.
        return Ok(None);
    }
    let stored = resource.storage()?;
    let changes = stored.cache.changes();
    // Before the objects are looked at: whose create comes too late to be seen here sees this.
    stored.cache.is_ending.store(true, Ordering::SeqCst);
    registry.caches.fresh().await?;
    let objects = stored.cache.list("");
    let place = |object: &Arc<Object>| stored.path(&object.header.namespace, &object.header.name).into_bytes();
    let places: HashSet<Vec<u8>> = objects.iter().map(place).collect();
    for object in &objects {
        delete(registry, &resource, object).await?;
    }
    // What lies where none of its objects can be was left by a definition of another scope.
    let left = keys(registry, &definition).await?;
    let (known, strange): (Vec<_>, Vec<_>) = left.into_iter().partition(|key| places.contains(key.as_ref()));
    if known.is_empty() {
        let gone = strange.into_iter().map(|key| Op::delete(key, Expect::Any)).collect();
        finish(registry, definitions, &ending.object, &definition, gone).await?;
        // While others hold it, it may get new ones.
        let is_held = corten_meta::finalizers(&definition).len() > 1;
        stored.cache.is_ending.store(!is_held, Ordering::SeqCst);
        return Ok(None);
    }
    Ok(Some(changes))
}

/// The resource in the version that its objects are stored in, so that none needs converting; or in another.
fn served(registry: &Registry, known: &Known, definition: &Value) -> Option<Arc<Resource>> {
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array)?;
    let is_stored = |version: &str| versions.iter().any(|v| v["name"] == version && v["storage"] == true);
    let find = |kind: &Arc<corten_api::Kind>| registry.resource(&kind.group, &kind.version, &kind.plural);
    let kinds = known.kinds(definition);
    let stored = kinds.iter().filter(|kind| is_stored(&kind.version)).find_map(find);
    stored.or_else(|| kinds.iter().find_map(find))
}

/// Removes an object, or marks it as on its way out. Who changed it meanwhile brings it here again.
async fn delete(registry: &Registry, resource: &Resource, object: &Arc<Object>) -> Result<(), Status> {
    let header = &object.header;
    // Nobody could take a finalizer from an object that cannot be read.
    if header.finalizers.is_empty() || resource.is_unreadable(object) {
        registry.erase(resource, &header.namespace, &header.name, object.revision, Vec::new()).await?;
        return Ok(());
    }
    if header.deletion_timestamp.is_some() {
        return Ok(());
    }
    let mut value = resource.serve(object).await?.value();
    let now = corten_meta::time::rfc3339(jiff::Timestamp::now());
    corten_meta::set(&mut value, "/metadata/deletionTimestamp", now.into());
    corten_meta::set(&mut value, "/metadata/deletionGracePeriodSeconds", 0.into());
    let generation = corten_meta::generation(&value) + 1;
    corten_meta::set(&mut value, "/metadata/generation", generation.into());
    registry.write(resource, &value, Expect::ModRevision(object.revision), Vec::new()).await?;
    Ok(())
}

/// Says that objects are being deleted, unless that was said.
async fn tell(
    registry: &Registry,
    definitions: &Resource,
    object: &Object,
    definition: &Value,
) -> Result<bool, Status> {
    let message = "CustomResource deletion is in progress";
    let Some(mut new) = definition::terminating(definition, true, "InstanceDeletionInProgress", message) else {
        return Ok(false);
    };
    own_status(definitions, definition, &mut new, jiff::Timestamp::now());
    registry.write(definitions, &new, Expect::ModRevision(object.revision), Vec::new()).await?;
    Ok(true)
}

/// Lets a definition without objects go, unless others hold it.
async fn finish(
    registry: &Registry,
    definitions: &Resource,
    object: &Object,
    definition: &Value,
    gone: Vec<Op>,
) -> Result<(), Status> {
    let mut waiting: Vec<&str> = corten_meta::finalizers(definition);
    waiting.retain(|finalizer| *finalizer != corten_api::CUSTOM_RESOURCE_CLEANUP);
    if waiting.is_empty() {
        registry.erase(definitions, "", &object.header.name, object.revision, gone).await?;
        return Ok(());
    }
    let (reason, message) = match definition::is_established(definition) {
        true => ("InstanceDeletionCompleted", "removed all instances"),
        false => ("NeverEstablished", "resource was never established"),
    };
    let told = definition::terminating(definition, false, reason, message);
    let mut rest = told.unwrap_or_else(|| definition.clone());
    own_status(definitions, definition, &mut rest, jiff::Timestamp::now());
    corten_meta::set(&mut rest, "/metadata/finalizers", serde_json::json!(waiting));
    registry.write(definitions, &rest, Expect::ModRevision(object.revision), gone).await?;
    Ok(())
}
