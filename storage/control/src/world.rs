//! The API objects that the loops read, from caches, and the driver that they call.

use std::sync::Arc;

use corten_api::Typed;
use corten_client::{Cache, Caches, Client, Error, EventRecorder, EventType, ObjectRef, Patch};
use corten_meta::{Key, Value};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::Options;
use crate::driver::Driver;

pub struct World {
    pub driver: Arc<Driver>,
    pub client: Client,
    pub options: Arc<Options>,
    /// Ends work that has no deadline of its own.
    pub shutdown: CancellationToken,
    caches: Caches,
    recorder: EventRecorder,
}

impl World {
    pub fn open(driver: Arc<Driver>, client: Client, options: Arc<Options>, shutdown: &CancellationToken) -> World {
        let caches = Caches::new(client.clone(), shutdown.clone());
        let host = options.node.clone().unwrap_or_default();
        let component = match options.identity.as_str() {
            "" => driver.name.clone(),
            identity => format!("{}_{identity}", driver.name),
        };
        let recorder = EventRecorder::new(client.clone(), component, host);
        World { driver, client, options, shutdown: shutdown.clone(), caches, recorder }
    }

    /// Returns the cache of a kind, which is filled from its first use on.
    pub fn cache<K: Typed>(&self) -> Arc<Cache> {
        self.caches.of::<K>()
    }

    pub fn get<K: Typed>(&self, namespace: &str, name: &str) -> Option<K> {
        self.cache::<K>().typed(&Key::new(namespace, name))
    }

    pub fn all<K: Typed>(&self) -> Vec<K> {
        self.cache::<K>().typed_list("")
    }

    pub fn normal<K: Typed>(&self, about: &K, reason: &str, message: impl Into<String>) {
        self.recorder.event(&ObjectRef::of(about), EventType::Normal, reason, message);
    }

    pub fn warning<K: Typed>(&self, about: &K, reason: &str, message: impl Into<String>) {
        self.recorder.event(&ObjectRef::of(about), EventType::Warning, reason, message);
    }

    /// Patches an object, if it is still the same one.
    pub async fn patch<K: Typed>(&self, object: &K, mut patch: Value) -> Result<(), Error> {
        corten_meta::set(&mut patch, "/metadata/uid", json!(object.meta().uid));
        self.client.send_patch::<K>(object.namespace(), object.name(), &Patch::Merge(patch), None).await
    }

    pub async fn patch_status<K: Typed>(&self, object: &K, status: Value) -> Result<(), Error> {
        let patch = json!({"metadata": {"uid": object.meta().uid}, "status": status});
        self.client.send_patch::<K>(object.namespace(), object.name(), &Patch::Merge(patch), Some("status")).await
    }

    /// Adds or removes a finalizer; false if the object has it, or has it not, already.
    pub async fn finalizer<K: Typed>(&self, object: &K, finalizer: &str, wanted: bool) -> Result<bool, Error> {
        if has_finalizer(object, finalizer) == wanted {
            return Ok(false);
        }
        let mut all = object.meta().finalizers.clone().unwrap_or_default();
        all.retain(|one| one != finalizer);
        if wanted {
            all.push(finalizer.to_owned());
        }
        // The version guards the list, which is replaced as a whole.
        let metadata = json!({"resourceVersion": object.meta().resource_version, "finalizers": all});
        self.patch(object, json!({"metadata": metadata})).await.map(|()| true)
    }
}

pub fn has_finalizer<K: Typed>(object: &K, finalizer: &str) -> bool {
    object.meta().finalizers.iter().flatten().any(|one| one == finalizer)
}

pub fn annotation<'a, K: Typed>(object: &'a K, name: &str) -> Option<&'a str> {
    let value = object.meta().annotations.as_ref()?.get(name)?;
    Some(value.as_str()).filter(|value| !value.is_empty())
}

pub fn is_deleted<K: Typed>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}
