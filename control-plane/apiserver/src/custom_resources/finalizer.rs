//! The finalizer of CustomResourceDefinitions: deletes first the objects of a CRD, each after its own finalizers, then
//! the CRD.
//!
//! Nothing here waits. A CRD whose objects still have finalizers is reconciled again when an object of the resource
//! changes.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use corten_managed_fields::own_status;
use corten_meta::{Object, Status, Value};
use corten_store::{Expect, Op, Range, Revision};
use tokio::sync::watch;

use super::crd;
use super::known::Known;
use crate::registry::{Registry, Resource, store_status};

/// Notifies of changes of the objects that delay the deletion of a CRD.
pub type Changes = watch::Receiver<Revision>;

async fn keys(registry: &Registry, crd: &Value) -> Result<Vec<bytes::Bytes>, Status> {
    let prefix = format!("{}/", registry.caches.root().key(&crd::prefix(crd)));
    let range = Range::prefix(prefix.as_bytes()).keys_only();
    let objects = registry.store.range(range).await.map_err(store_status)?;
    Ok(objects.entries.into_iter().map(|entry| entry.key).collect())
}

/// Finalizes the CRDs that are being deleted. Returns the changes to wait for if their objects have finalizers.
pub async fn finalize_all(registry: &Registry, terminating: Vec<Arc<Known>>) -> Result<Vec<Changes>, Status> {
    let crds = registry.required(super::GROUP, "v1", super::PLURAL)?;
    let mut held = Vec::new();
    for known in terminating {
        held.extend(finalize(registry, &crds, &known).await?);
    }
    Ok(held)
}

/// Deletes the objects of a CRD, and the CRD after the last of them. This happens once: other finalizers may delay the
/// deletion of the CRD, and until they are removed it is served, and may get new objects.
async fn finalize(registry: &Registry, crds: &Resource, terminating: &Known) -> Result<Option<Changes>, Status> {
    let crd = terminating.object.value();
    if !corten_meta::finalizers(&crd).contains(&corten_api::CUSTOM_RESOURCE_CLEANUP) {
        return Ok(None);
    }
    let Some(resource) = served(registry, terminating, &crd) else {
        // No client could remove a finalizer from an object that is not served.
        let deletions = keys(registry, &crd).await?.into_iter().map(|key| Op::delete(key, Expect::Any));
        return finish(registry, crds, &terminating.object, &crd, deletions.collect()).await.map(|()| None);
    };
    if set_terminating(registry, crds, &terminating.object, &crd).await? {
        // The write of the condition is a change that is reconciled again.
        return Ok(None);
    }
    let stored = resource.storage()?;
    let changes = stored.cache.changes();
    // Before the objects are listed: a create that is too late to be in the list sees this flag.
    stored.cache.is_terminating.store(true, Ordering::SeqCst);
    registry.caches.fresh().await?;
    let objects = stored.cache.list("");
    let key = |object: &Arc<Object>| stored.path(&object.header.namespace, &object.header.name).into_bytes();
    let object_keys: HashSet<Vec<u8>> = objects.iter().map(key).collect();
    for object in &objects {
        delete(registry, &resource, object).await?;
    }
    // Keys that belong to none of its objects are left over from a CRD of another scope.
    let left = keys(registry, &crd).await?;
    let (known, leftover): (Vec<_>, Vec<_>) = left.into_iter().partition(|key| object_keys.contains(key.as_ref()));
    if known.is_empty() {
        let deletions = leftover.into_iter().map(|key| Op::delete(key, Expect::Any)).collect();
        finish(registry, crds, &terminating.object, &crd, deletions).await?;
        // While the CRD has other finalizers, it may get new objects.
        let is_held = corten_meta::finalizers(&crd).len() > 1;
        stored.cache.is_terminating.store(!is_held, Ordering::SeqCst);
        return Ok(None);
    }
    Ok(Some(changes))
}

/// Returns the resource in its storage version, so that no object needs conversion; or in another version.
fn served(registry: &Registry, known: &Known, crd: &Value) -> Option<Arc<Resource>> {
    let versions = crd.pointer("/spec/versions").and_then(Value::as_array)?;
    let is_stored = |version: &str| versions.iter().any(|v| v["name"] == version && v["storage"] == true);
    let find = |kind: &Arc<corten_api::Kind>| registry.resource(&kind.group, &kind.version, &kind.plural);
    let kinds = known.kinds(crd);
    let stored = kinds.iter().filter(|kind| is_stored(&kind.version)).find_map(find);
    stored.or_else(|| kinds.iter().find_map(find))
}

/// Removes an object, or sets its deletionTimestamp. An object that another client changed is reconciled again.
async fn delete(registry: &Registry, resource: &Resource, object: &Arc<Object>) -> Result<(), Status> {
    let header = &object.header;
    // No client could remove a finalizer from an object that cannot be decoded.
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

/// Sets the Terminating condition, and reports whether it changed.
async fn set_terminating(registry: &Registry, crds: &Resource, object: &Object, crd: &Value) -> Result<bool, Status> {
    let message = "CustomResource deletion is in progress";
    let Some(mut new) = crd::terminating(crd, true, "InstanceDeletionInProgress", message) else {
        return Ok(false);
    };
    own_status(&crds.kind, crd, &mut new, jiff::Timestamp::now());
    registry.write(crds, &new, Expect::ModRevision(object.revision), Vec::new()).await?;
    Ok(true)
}

/// Commits deletions until the rest fits into one commit together with the CRD, and returns the rest.
async fn in_commits(registry: &Registry, mut deletions: Vec<Op>) -> Result<Vec<Op>, Status> {
    let most = registry.store.max_ops() - 1;
    while deletions.len() > most {
        let rest = deletions.split_off(most);
        registry.commit_all(deletions).await.map_err(store_status)?;
        deletions = rest;
    }
    Ok(deletions)
}

/// Removes a CRD without objects, unless it has other finalizers.
async fn finish(
    registry: &Registry,
    crds: &Resource,
    object: &Object,
    crd: &Value,
    deletions: Vec<Op>,
) -> Result<(), Status> {
    let deletions = in_commits(registry, deletions).await?;
    let mut finalizers: Vec<&str> = corten_meta::finalizers(crd);
    finalizers.retain(|finalizer| *finalizer != corten_api::CUSTOM_RESOURCE_CLEANUP);
    if finalizers.is_empty() {
        registry.erase(crds, "", &object.header.name, object.revision, deletions).await?;
        return Ok(());
    }
    let (reason, message) = match crd::is_established(crd) {
        true => ("InstanceDeletionCompleted", "removed all instances"),
        false => ("NeverEstablished", "resource was never established"),
    };
    let updated = crd::terminating(crd, false, reason, message);
    let mut rest = updated.unwrap_or_else(|| crd.clone());
    own_status(&crds.kind, crd, &mut rest, jiff::Timestamp::now());
    corten_meta::set(&mut rest, "/metadata/finalizers", serde_json::json!(finalizers));
    registry.write(crds, &rest, Expect::ModRevision(object.revision), deletions).await?;
    Ok(())
}
