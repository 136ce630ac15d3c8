//! Conversion between the versions of a resource: by the kind itself, or by the webhook of a CustomResourceDefinition.
//!
//! A stored object has its version in its bytes, and it need not be today's storage version: the
//! CustomResourceDefinition may have changed it. So the object decides, never only the table.

use std::sync::Arc;

use corten_api::Kind;
use corten_meta::{Object, Status, Value};
use futures::{StreamExt, TryStreamExt};

use super::conversion_webhook::failed;
use super::resource::Resource;
use crate::cache::{Item, projected};

/// The number of objects of a list that are converted at the same time.
const CONCURRENCY: usize = 32;

/// Returns the apiVersion of an object's bytes. Encoded objects begin with it.
fn version_of(object: &Object) -> &str {
    let rest = object.bytes.strip_prefix(b"{\"apiVersion\":\"").unwrap_or_default();
    let end = rest.iter().position(|b| *b == b'"').unwrap_or(0);
    std::str::from_utf8(&rest[..end]).unwrap_or_default()
}

/// The last byte of an object that is stored without the defaults of its storage version, as a conversion made it. The
/// marker shows this without parsing; the defaults are set when the object is read. JSON parsers ignore it.
const INCOMPLETE: u8 = b'\n';

/// Returns the error about an object of a version that no longer exists.
fn unreadable(object: &Object) -> Status {
    failed(format!("request to convert CR from an invalid group/version: {}", version_of(object)))
}

impl Resource {
    /// Returns whether an object may need to be converted before it is served.
    pub fn is_converted(&self) -> bool {
        self.is_spoke() || self.versions.len() > 1
    }

    /// Returns whether objects may be served in another form than the stored one: those of another version, and those
    /// of a custom resource, whose versions and schema change. Selectors match such objects as they are served.
    pub fn is_selected_as_served(&self) -> bool {
        self.is_spoke() || !self.versions.is_empty()
    }

    /// Returns whether a webhook converts it.
    pub fn has_webhook(&self) -> bool {
        self.webhook.is_some()
    }

    /// Returns whether this version is not the storage version.
    pub fn is_spoke(&self) -> bool {
        self.stored.as_ref().is_some_and(|s| s.hub.group != self.kind.group || s.hub.version != self.kind.version)
    }

    /// Returns whether this is a built-in version that is converted to the storage version and back. A field of one
    /// part of the object may affect another part on that way.
    pub fn is_built_in_spoke(&self) -> bool {
        self.is_spoke() && self.kind.serving().has_conversions
    }

    /// Returns whether an object is stored as it would be written now: in the storage version, and with today's schema.
    fn is_stored_as_now(&self, object: &Object) -> bool {
        let in_version = || self.stored.as_ref().is_some_and(|s| s.hub.api_version() == version_of(object));
        (self.versions.len() < 2 || in_version()) && self.reread(object).is_none()
    }

    /// Returns whether an unchanged object would also be stored unchanged: the version of the write may lack fields of
    /// the stored one.
    pub async fn stays_as_stored(&self, value: &Value, current: &Object) -> Result<bool, Status> {
        match self.is_spoke() && !self.kind.serving().is_stored_with_defaults {
            true => Ok(self.stored_object(value.clone()).await?.bytes == current.bytes),
            false => Ok(self.is_stored_as_now(current)),
        }
    }

    /// Returns whether an object is stored in a version that its CustomResourceDefinition no longer has, so that it
    /// cannot be read.
    pub fn is_unreadable(&self, object: &Object) -> bool {
        let is_in = |kind: &Arc<Kind>| {
            let stored_in = version_of(object).split_once('/');
            stored_in.is_some_and(|(group, version)| group == kind.group && version == kind.version)
        };
        !self.versions.is_empty() && !self.versions.iter().any(is_in)
    }

    /// Refuses to read a collection while one of its objects, selected or not, cannot be read: upstream's cache of it
    /// is not filled then. Once all objects are in an existing version, this stays so, since each write uses one; but a
    /// webhook can fail on any of them.
    pub async fn check_readable(&self) -> Result<(), Status> {
        if self.versions.is_empty() || !self.has_webhook() && self.is_readable.get().is_some() {
            return Ok(());
        }
        let objects = self.storage()?.cache.list("");
        if let Some(object) = objects.iter().find(|object| self.is_unreadable(object)) {
            return Err(self.unready(&unreadable(object), 1));
        }
        let _ = self.is_readable.set(());
        if objects.iter().all(|object| self.is_known(object)) {
            return Ok(());
        }
        let _filling = self.conversion_cache.filling.lock().await;
        self.conversion_cache.forget_others(&objects);
        let filled = self.serve_all(objects).await;
        let seconds = self.conversion_cache.seconds_to_wait(filled.is_err(), tokio::time::Instant::now());
        filled.map(drop).map_err(|status| self.unready(&status, seconds))
    }

    fn unready(&self, status: &Status, seconds: i32) -> Status {
        let version = self.kind.api_version();
        let kind = &self.kind.kind;
        let why = &status.message;
        let message = format!("storage is (re)initializing: failed to list {version}, Kind={kind}: {why}");
        Status::too_many_requests(message, seconds)
    }

    /// Returns whether a list need not call the webhook for an object.
    fn is_known(&self, object: &Object) -> bool {
        self.webhook.is_none() || self.is_in_version(object) || self.conversion_cache.get(object).is_some()
    }

    /// Returns a stored object with today's schema and defaults, if these changed after it was written.
    fn reread(&self, object: &Object) -> Option<Object> {
        let is_complete = |kind: &Kind| object.revision >= kind.behaviour.defined_at();
        let is_incomplete = object.bytes.last() == Some(&INCOMPLETE);
        let version = self.versions.first().filter(|kind| is_incomplete || !is_complete(kind))?;
        let stored_in = version_of(object);
        let mut versions = std::iter::once(version).chain(&self.versions[1..]);
        let kind = versions.find(|kind| kind.api_version() == stored_in)?;
        let mut value = object.value();
        kind.default(&mut value);
        Object::from_value(&value, object.revision).ok().filter(|read| read.bytes != object.bytes)
    }

    /// Returns a stored object in the form that this version serves.
    pub async fn serve(&self, object: &Arc<Object>) -> Result<Arc<Object>, Status> {
        if let Some(project) = self.kind.behaviour.projection() {
            return Ok(projected(project, object));
        }
        if self.is_unreadable(object) {
            return Err(unreadable(object));
        }
        let object = self.reread(object).map_or_else(|| Arc::clone(object), Arc::new);
        if self.is_in_version(&object) {
            return Ok(object);
        }
        let value = self.read_stored(object.value()).await?;
        Object::from_value(&value, object.revision).map(Arc::new).map_err(|e| Status::internal(e.to_string()))
    }

    fn is_in_version(&self, object: &Object) -> bool {
        !self.is_converted() || (!self.versions.is_empty() && self.kind.api_version() == version_of(object))
    }

    /// Returns cached objects in the form that this version serves. The projection of an object is made once.
    pub async fn serve_items<'i>(
        &self,
        items: impl Iterator<Item = &'i Arc<Item>>,
    ) -> Result<Vec<Arc<Object>>, Status> {
        match self.kind.behaviour.projection() {
            Some(project) => Ok(items.map(|item| item.projected(&self.kind, project)).collect()),
            None => self.serve_all(items.map(|item| Arc::clone(&item.object)).collect()).await,
        }
    }

    /// Returns stored objects in the form that this version serves.
    pub async fn serve_all(&self, objects: Vec<Arc<Object>>) -> Result<Vec<Arc<Object>>, Status> {
        let all: Vec<_> = objects.iter().map(|object| self.serve_once(object)).collect();
        futures::stream::iter(all).buffered(CONCURRENCY).try_collect().await
    }

    /// Does the same as [`Resource::serve`], but calls the webhook only once for each state of an object.
    async fn serve_once(&self, object: &Arc<Object>) -> Result<Arc<Object>, Status> {
        if self.webhook.is_none() || self.is_in_version(object) {
            return self.serve(object).await;
        }
        if let Some(known) = self.conversion_cache.get(object) {
            return Ok(known);
        }
        let served = self.serve(object).await?;
        self.conversion_cache.keep(&served);
        Ok(served)
    }

    /// Returns an object of this version as it is read after it was stored: the storage version has other defaults.
    pub async fn as_read_again(&self, value: Value) -> Result<Value, Status> {
        if !self.is_spoke() || self.kind.serving().is_stored_with_defaults {
            return Ok(value);
        }
        let hub = &self.storage()?.hub;
        let mut stored = self.to_stored(value, hub).await?;
        hub.default(&mut stored);
        self.read_stored(stored).await
    }

    async fn read_stored(&self, mut value: Value) -> Result<Value, Status> {
        let wanted = self.kind.api_version();
        if let Some(webhook) = &self.webhook {
            value = webhook.convert(value, &wanted).await?;
        }
        self.kind.behaviour.from_stored(&mut value);
        value["apiVersion"] = wanted.into();
        self.kind.behaviour.prune(&mut value);
        self.kind.write_zeros(&mut value);
        Ok(value)
    }

    /// Refuses to delete an object of a version that can no longer be converted to the storage version, as upstream
    /// compares the deleted object with the stored one.
    pub async fn check_storable(&self, object: &Object) -> Result<(), Status> {
        match self.is_spoke() && self.has_webhook() {
            true => self.to_stored(object.value(), &self.storage()?.hub).await.map(drop),
            false => Ok(()),
        }
    }

    /// Returns an object of this version as it is stored.
    pub async fn stored_object(&self, value: Value) -> Result<Object, Status> {
        let hub = &self.storage()?.hub;
        let mut value = self.to_stored(value, hub).await?;
        let mut object = Object::from_value(&value, 0).map_err(|e| Status::internal(e.to_string()))?;
        if self.is_spoke() && !self.kind.serving().is_stored_with_defaults {
            hub.default(&mut value);
            if corten_meta::encode_object(&value) != object.bytes {
                object.bytes = [&object.bytes, [INCOMPLETE].as_slice()].concat().into();
            }
        }
        Ok(object)
    }

    /// Converts an object of this version to the storage version.
    async fn to_stored(&self, mut value: Value, hub: &Kind) -> Result<Value, Status> {
        if !self.is_spoke() {
            return Ok(value);
        }
        if let Some(webhook) = &self.webhook {
            value = webhook.convert(value, &hub.api_version()).await?;
        }
        self.kind.behaviour.to_stored(&mut value);
        value["apiVersion"] = hub.api_version().into();
        hub.behaviour.prune(&mut value);
        if hub.serving().is_stored_with_defaults {
            hub.default(&mut value);
        }
        hub.settle(&mut value);
        Ok(value)
    }

    /// Returns the stored form of an object of this version after a write of a part of it. The other part, where a
    /// conversion may lose or add fields, stays as it is stored.
    pub async fn stored_keeping(&self, value: Value, current: &Object, other: Option<&str>) -> Result<Object, Status> {
        let mut stored = self.to_stored(value, &self.storage()?.hub).await?;
        if let Some(other) = other
            && let Some(kept) = current.value().get_mut(other)
        {
            stored[other] = kept.take();
        }
        Object::from_value(&stored, 0).map_err(|e| Status::internal(e.to_string()))
    }

    /// Converts an object of this version to another version of the same resource.
    pub async fn convert(&self, mut value: Value, to: &Kind) -> Result<Value, Status> {
        let wanted = to.api_version();
        if self.kind.api_version() == wanted {
            return Ok(value);
        }
        if self.has_webhook() {
            return self.convert_by_webhook(value, to).await;
        }
        self.kind.behaviour.to_stored(&mut value);
        to.behaviour.from_stored(&mut value);
        value["apiVersion"] = wanted.into();
        Ok(value)
    }

    /// Converts an object of any version by the webhook.
    pub async fn convert_by_webhook(&self, value: Value, to: &Kind) -> Result<Value, Status> {
        let Some(webhook) = &self.webhook else { return Ok(value) };
        webhook.convert(value, &to.api_version()).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_version_of_bytes_is_read() {
        let object = Object::from_value(&json!({ "kind": "K", "apiVersion": "g/v1", "metadata": { "name": "n" } }), 1);
        assert_eq!(version_of(&object.unwrap()), "g/v1");
    }
}
