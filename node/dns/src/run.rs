//! The DNS as a component: watches Services, EndpointSlices and Namespaces, and answers by them.

use std::sync::{Arc, PoisonError, RwLock};

use corten_api::{Typed, decode_object};
use corten_client::{Caches, Change, Client, Subscription};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::Config;
use crate::error::Error;
use crate::server::Server;
use crate::zone::{Endpoints, Service, Zone};

/// Binds and answers until shutdown. [`Server::bind`] and [`Server::run`] do it in two steps, for callers that need the
/// addresses or wait for readiness.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) -> Result<(), Error> {
    Server::bind(&config).await?.run(client, shutdown).await
}

impl Server {
    /// Answers from the API's objects until shutdown.
    pub async fn run(self, client: Client, shutdown: CancellationToken) -> Result<(), Error> {
        info!(addresses = ?self.addresses(), "cluster DNS is listening");
        let feed = feed(self.zone(), self.ready_sender(), client, shutdown.clone());
        tokio::join!(feed, self.serve(shutdown));
        Ok(())
    }
}

/// Updates the zone from the API's objects.
async fn feed(zone: Arc<RwLock<Zone>>, ready: watch::Sender<bool>, client: Client, shutdown: CancellationToken) {
    let caches = Caches::new(client, shutdown.clone());
    let mut changes = Changes {
        namespaces: caches.of::<core::Namespace>().subscribe(),
        services: caches.of::<core::Service>().subscribe(),
        slices: caches.of::<discovery::EndpointSlice>().subscribe(),
    };
    let mut synced = std::pin::pin!(caches.synced());
    let mut is_synced = false;
    loop {
        let object = tokio::select! {
            biased;
            object = changes.next() => object,
            // Last, so that everything of the first lists is in the zone.
            () = &mut synced, if !is_synced => {
                is_synced = true;
                if !shutdown.is_cancelled() {
                    write(&zone).set_synced();
                    ready.send_replace(true);
                }
                continue;
            }
        };
        match object {
            Some(object) => object.apply(&mut write(&zone)),
            None => return,
        }
    }
}

fn write(zone: &RwLock<Zone>) -> std::sync::RwLockWriteGuard<'_, Zone> {
    zone.write().unwrap_or_else(PoisonError::into_inner)
}

enum Object {
    Namespace(Change),
    Service(Change),
    Slice(Change),
}

struct Changes {
    namespaces: Subscription,
    services: Subscription,
    slices: Subscription,
}

impl Changes {
    async fn next(&mut self) -> Option<Object> {
        tokio::select! {
            change = self.namespaces.next() => change.map(Object::Namespace),
            change = self.services.next() => change.map(Object::Service),
            change = self.slices.next() => change.map(Object::Slice),
        }
    }
}

impl Object {
    fn apply(self, zone: &mut Zone) {
        match self {
            Object::Namespace(change) => zone.set_namespace(&change.key.name, change.new.is_some()),
            Object::Service(change) => {
                let service = decode(&change).and_then(|object| Service::from_object(&object));
                zone.set_service(&change.key.namespace, &change.key.name, service);
            }
            Object::Slice(change) => {
                let endpoints = decode(&change).and_then(|object| Endpoints::from_object(&object));
                zone.set_endpoints(&change.key.namespace, &change.key.name, endpoints);
            }
        }
    }
}

/// Decodes the current object. Logs one that cannot be decoded, and treats it as deleted.
fn decode<K: Typed>(change: &Change) -> Option<K> {
    let object = change.new.as_ref()?;
    let decoded = decode_object(object).or_else(|_| {
        // Any client may write conditions, with fewer fields than our types need; nothing here depends on them.
        let mut value = object.value();
        if let Some(conditions) = value.pointer_mut("/status/conditions") {
            conditions.take();
        }
        K::from_value(value)
    });
    decoded.inspect_err(|error| warn!(key = %change.key, "cannot decode an object: {error}")).ok()
}
