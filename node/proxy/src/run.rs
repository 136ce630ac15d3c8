//! The proxy as a component: watches Services, EndpointSlices and its own Node, and keeps the kernel
//! as they say.

use std::time::Duration;

use corten_api::{Typed, decode_object};
use corten_client::{Caches, Change, Client, ListOptions, Subscription};
use k8s_openapi::api::core::v1::{Node, Service as ServiceObject};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::Config;
use crate::error::Error;
use crate::health::{self, Checks};
use crate::proxier::{Proxier, Synced};
use crate::service::{Service, ServiceKey};
use crate::slice::{Slice, SliceKey};

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// Slices of Services without virtual addresses, or of other proxies, are of no concern.
const SLICES: &str = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name";
/// How often to look whether the table still stands, and to repeat a sync that the kernel refused.
/// The kernel could tell of deletions, but only by telling of every element that we add, too.
const CHECK: Duration = Duration::from_secs(30);

/// Proxies the cluster's Services on this node until shutdown. The rules stay: connections go on
/// while the proxy restarts, and `cleanup` is for those who want them gone.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) -> Result<(), Error> {
    let caches = Caches::new(client, shutdown.clone());
    let services = caches.of::<ServiceObject>();
    let slices = caches.filtered::<EndpointSlice>(ListOptions::labels(SLICES));
    let node = caches.filtered::<Node>(ListOptions::fields(format!("metadata.name={}", config.node_name)));
    let mut proxiers =
        config.versions.iter().map(|ip| Proxier::new(config.clone(), *ip)).collect::<Result<Vec<_>, _>>()?;
    caches.synced().await;

    let mut events = Events { services: services.subscribe(), slices: slices.subscribe(), node: node.subscribe() };
    let (health, told) = watch::channel(Checks::new());
    let served = tokio::spawn(health::serve(told, shutdown.clone()));
    let mut checks = tokio::time::interval(CHECK);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        events.drain(&mut proxiers);
        if proxiers.iter().any(Proxier::is_dirty) && !shutdown.is_cancelled() {
            proxiers = sync(proxiers).await?;
            let now = health::joined(proxiers.iter().map(Proxier::health_checks));
            health.send_if_modified(|told| {
                if *told == now {
                    false
                } else {
                    *told = now;
                    true
                }
            });
        }
        tokio::select! {
            event = events.next() => match event {
                Some(event) => event.tell(&mut proxiers),
                None => break,
            },
            _ = checks.tick() => for proxier in &mut proxiers {
                if let Err(error) = proxier.check() {
                    warn!("cannot look after the proxy rules: {error}");
                }
            },
            () = shutdown.cancelled() => break,
        }
    }
    drop(health);
    served.await.map_err(|_| Error::Cancelled)
}

/// Syncs on a thread that may block: a large batch keeps the kernel busy for milliseconds.
async fn sync(mut proxiers: Vec<Proxier>) -> Result<Vec<Proxier>, Error> {
    let work = tokio::task::spawn_blocking(move || {
        for proxier in proxiers.iter_mut().filter(|proxier| proxier.is_dirty()) {
            report(proxier.sync());
        }
        proxiers
    });
    work.await.map_err(|_| Error::Cancelled)
}

/// A sync that the kernel refused is repeated with the next change or check.
fn report(result: Result<Synced, Error>) {
    match result {
        Ok(Synced { services, bytes, whole }) => debug!(services, bytes, whole, "synced the proxy rules"),
        Err(error) => error!("cannot sync the proxy rules: {error}"),
    }
}

enum Event {
    Service(Change),
    Slice(Change),
    Node(Change),
}

struct Events {
    services: Subscription,
    slices: Subscription,
    node: Subscription,
}

impl Events {
    async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            change = self.services.next() => change.map(Event::Service),
            change = self.slices.next() => change.map(Event::Slice),
            change = self.node.next() => change.map(Event::Node),
        }
    }

    /// Tells what has arrived meanwhile, so that one batch serves all of it.
    fn drain(&mut self, proxiers: &mut [Proxier]) {
        loop {
            let event = self.services.try_next().map(Event::Service);
            let event = event.or_else(|| self.slices.try_next().map(Event::Slice));
            let event = event.or_else(|| self.node.try_next().map(Event::Node));
            match event {
                Some(event) => event.tell(proxiers),
                None => return,
            }
        }
    }
}

impl Event {
    fn tell(self, proxiers: &mut [Proxier]) {
        match self {
            Event::Service(change) => {
                let object = decode(&change);
                let key = ServiceKey { namespace: change.key.namespace, name: change.key.name };
                for proxier in proxiers {
                    let service = object.as_ref().and_then(|object| Service::from_object(object, proxier.version()));
                    proxier.set_service(key.clone(), service);
                }
            }
            Event::Slice(change) => {
                let object = decode(&change);
                let key = SliceKey { namespace: change.key.namespace, name: change.key.name };
                for proxier in proxiers {
                    let slice = object.as_ref().and_then(|object| Slice::from_object(object, proxier.version()));
                    proxier.set_slice(key.clone(), slice);
                }
            }
            Event::Node(change) => {
                let labels = change.new.map(|node| node.header.labels.clone()).unwrap_or_default();
                let zone = labels.get(ZONE_LABEL);
                proxiers.iter_mut().for_each(|proxier| proxier.set_zone(zone.cloned()));
            }
        }
    }
}

/// The object as it is now. One that cannot be decoded is treated as gone, and told.
fn decode<K: Typed>(change: &Change) -> Option<K> {
    let object = change.new.as_ref()?;
    let decoded = decode_object(object).or_else(|_| {
        // Anybody may write conditions, with fewer fields than our types ask for; nothing here depends on them.
        let mut value = object.value();
        if let Some(conditions) = value.pointer_mut("/status/conditions") {
            conditions.take();
        }
        K::from_value(value)
    });
    decoded.inspect_err(|error| warn!(key = %change.key, "cannot decode an object: {error}")).ok()
}
