//! The proxy as a component: watches Services, EndpointSlices, ServiceCIDRs and Nodes, and reconciles the kernel with
//! them.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use corten_api::{Typed, decode_object};
use corten_client::{Caches, Change, Client, ListOptions, Subscription};
use corten_meta::Value;
use corten_meta::metrics::HealthChecks;
use corten_nftables::IpFamily;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Service as ServiceObject};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::conntrack;
use crate::error::Error;
use crate::health::{self, Checks};
use crate::proxier::{Proxier, Synced};
use crate::service::{Service, ServiceKey, range};
use crate::slice::{Slice, SliceKey};
use crate::status::{self, Pages, Port, Status};
use crate::{Config, Served};

/// The taint of a node that the cluster autoscaler is about to delete.
const LEAVING_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The selector of relevant slices: not those of Services without virtual addresses, or of other proxies.
const SLICES: &str = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name";
/// The interval at which the table is checked, and a refused sync is retried. The kernel could report deletions, but
/// only by reporting every element that we add, too.
const CHECK: Duration = Duration::from_secs(30);

/// Proxies the cluster's Services on this node until shutdown. The rules stay, so that connections go on while the
/// proxy restarts; `cleanup` deletes them.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) -> Result<(), Error> {
    let caches = Caches::new(client, shutdown.clone());
    let services = caches.of::<ServiceObject>();
    let slices = caches.filtered::<EndpointSlice>(ListOptions::labels(SLICES));
    let nodes = caches.of::<Node>();
    let ranges = caches.of::<ServiceCIDR>();
    let mut proxiers =
        config.versions.iter().map(|ip| Proxier::new(config.clone(), *ip)).collect::<Result<Vec<_>, _>>()?;
    caches.synced().await;
    if let Some(timeouts) = config.tcp_timeouts {
        conntrack::set(Path::new(conntrack::SETTINGS), timeouts);
    }

    let mut events = Events {
        own: config.node_name.clone(),
        services: services.subscribe(),
        slices: slices.subscribe(),
        nodes: nodes.subscribe(),
        ranges: ranges.subscribe(),
        is_node_eligible: false,
    };
    let (health, checks) = watch::channel(Checks::new());
    let mut serving = JoinSet::new();
    let end = shutdown.child_token();
    serving.spawn(health::serve(checks, end.clone()));
    let status = serve_status(&config, &mut serving, &end);
    let mut checks = tokio::time::interval(CHECK);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        events.drain(&mut proxiers);
        status.send_modify(|status| status.is_node_eligible = events.is_node_eligible);
        if proxiers.iter().any(Proxier::is_dirty) && !shutdown.is_cancelled() {
            proxiers = sync(proxiers, &status).await?;
            let now = health::joined(proxiers.iter().map(Proxier::health_checks));
            health.send_if_modified(|sent| {
                if *sent == now {
                    false
                } else {
                    *sent = now;
                    true
                }
            });
        }
        tokio::select! {
            event = events.next() => match event {
                Some(event) => events.apply(event, &mut proxiers),
                None => break,
            },
            _ = checks.tick() => for proxier in &mut proxiers {
                if let Err(error) = proxier.check() {
                    warn!("cannot reconcile the proxy rules: {error}");
                }
            },
            () = shutdown.cancelled() => break,
        }
    }
    end.cancel();
    while let Some(ended) = serving.join_next().await {
        ended.map_err(|_| Error::Cancelled)?;
    }
    Ok(())
}

/// Starts to serve the proxy's own pages, if configured, and returns the sender of their status.
fn serve_status(config: &Config, tasks: &mut JoinSet<()>, end: &CancellationToken) -> watch::Sender<Status> {
    let (sender, status) = watch::channel(Status::default());
    if let Some(Served { health_port, status: address }) = config.served {
        let started = Timestamp::now().as_second() as f64;
        let pages = Arc::new(Pages { mode: config.mode, status, started, checks: HealthChecks::default() });
        let bind_health = move || health::bind(health_port);
        tasks.spawn(status::serve(pages.clone(), Port::Health, bind_health, end.clone()));
        let bind_status = move || TcpListener::bind(address);
        tasks.spawn(status::serve(pages, Port::Status, bind_status, end.clone()));
    }
    sender
}

/// Syncs on a thread that may block: a large batch keeps the kernel busy for milliseconds.
async fn sync(mut proxiers: Vec<Proxier>, status: &watch::Sender<Status>) -> Result<Vec<Proxier>, Error> {
    let late: Vec<IpFamily> = proxiers.iter().filter(|proxier| proxier.is_dirty()).map(Proxier::version).collect();
    status.send_modify(|status| late.iter().for_each(|ip| status.queued(*ip, Timestamp::now())));
    let work = tokio::task::spawn_blocking(move || {
        for proxier in proxiers.iter_mut().filter(|proxier| proxier.is_dirty()) {
            report(proxier.sync());
        }
        proxiers
    });
    let proxiers = work.await.map_err(|_| Error::Cancelled)?;
    let synced = proxiers.iter().filter(|proxier| late.contains(&proxier.version()) && !proxier.is_dirty());
    status.send_modify(|status| synced.for_each(|proxier| status.updated(proxier.version(), Timestamp::now())));
    Ok(proxiers)
}

/// Logs the result of a sync. A refused one is repeated with the next change or check.
fn report(result: Result<Synced, Error>) {
    match result {
        Ok(Synced { services, bytes, replaced }) => debug!(services, bytes, replaced, "synced the proxy rules"),
        Err(error) => error!("cannot sync the proxy rules: {error}"),
    }
}

enum Event {
    Service(Change),
    Slice(Change),
    Node { change: Change, own: bool },
    Range(Change),
}

struct Events {
    /// The name of this node.
    own: String,
    services: Subscription,
    slices: Subscription,
    nodes: Subscription,
    ranges: Subscription,
    /// Whether the node exists and is not being deleted.
    is_node_eligible: bool,
}

impl Events {
    async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            change = self.services.next() => change.map(Event::Service),
            change = self.slices.next() => change.map(Event::Slice),
            change = self.nodes.next() => change.map(|change| node(change, &self.own)),
            change = self.ranges.next() => change.map(Event::Range),
        }
    }

    /// Applies all pending events, so that one batch serves all of them.
    fn drain(&mut self, proxiers: &mut [Proxier]) {
        loop {
            let event = self.services.try_next().map(Event::Service);
            let event = event.or_else(|| self.slices.try_next().map(Event::Slice));
            let event = event.or_else(|| self.nodes.try_next().map(|change| node(change, &self.own)));
            let event = event.or_else(|| self.ranges.try_next().map(Event::Range));
            match event {
                Some(event) => self.apply(event, proxiers),
                None => return,
            }
        }
    }

    fn apply(&mut self, event: Event, proxiers: &mut [Proxier]) {
        if let Event::Node { change, own: true } = &event {
            self.is_node_eligible = change.new.as_ref().is_some_and(|node| is_eligible(&node.value()));
        }
        event.apply(proxiers);
    }
}

impl Event {
    fn apply(self, proxiers: &mut [Proxier]) {
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
            Event::Node { change, own } => {
                let addresses = decode(&change).as_ref().map(addresses);
                let labels = change.new.map(|node| node.header.labels.clone()).unwrap_or_default();
                for proxier in proxiers {
                    proxier.set_node(&change.key.name, addresses.clone());
                    if own {
                        proxier.set_zone(labels.get(ZONE_LABEL).cloned());
                    }
                }
            }
            Event::Range(change) => {
                let object: Option<ServiceCIDR> = decode(&change);
                let cidrs = object.map(|object| object.spec.and_then(|spec| spec.cidrs).unwrap_or_default());
                let ranges: Option<Vec<_>> = cidrs.map(|all| all.iter().filter_map(|cidr| range(cidr)).collect());
                proxiers.iter_mut().for_each(|proxier| proxier.set_service_cidr(&change.key.name, ranges.clone()));
            }
        }
    }
}

/// Reports whether load balancers may count on the node: it is not being deleted, by hand or by the autoscaler.
fn is_eligible(node: &Value) -> bool {
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    let is_leaving = taints.is_some_and(|taints| taints.iter().any(|taint| taint["key"] == LEAVING_TAINT));
    corten_meta::deletion_timestamp(node).is_none() && !is_leaving
}

fn node(change: Change, own: &str) -> Event {
    let own = change.key.name == own;
    Event::Node { change, own }
}

/// Returns the addresses of a node, of whatever type.
fn addresses(node: &Node) -> Vec<IpAddr> {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    all.filter_map(|address| address.address.parse().ok()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use corten_meta::decode_yaml;

    #[test]
    fn a_node_that_is_being_deleted_is_not_eligible() {
        for (node, expected) in [
            ("{metadata: {name: n}}", true),
            ("{metadata: {name: n, deletionTimestamp: '2026-01-01T00:00:00Z'}}", false),
            (
                "{metadata: {name: n}, spec: {taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}}",
                false,
            ),
            ("{metadata: {name: n}, spec: {taints: [{key: other, effect: NoSchedule}]}}", true),
        ] {
            assert_eq!(is_eligible(&decode_yaml(node.as_bytes()).unwrap()), expected, "{node}");
        }
    }
}
