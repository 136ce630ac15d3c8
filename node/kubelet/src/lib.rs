//! The kubelet: runs the pods that are bound to this node, through a container runtime that speaks CRI v1, and reports
//! their status to the API server.
//!
//! `pods` is the core: a worker per pod, which observes, decides purely, and acts. `node` keeps the Node object,
//! `server` is the kubelet's HTTPS API. Around them: `container` (spec → CRI), `volumes`, `images`, `probes`, `logs`,
//! `stats`. The kubelet never touches a container that it did not create, and containers outlive it.

mod admission;
mod backoff;
mod claims;
mod config;
pub mod configuration;
mod container;
mod cpus;
mod cri;
mod devices;
mod error;
mod events;
mod eviction;
#[doc(hidden)]
pub mod fuzz;
mod http;
mod images;
mod lifecycle;
mod logs;
mod memory;
pub mod metrics;
mod node;
mod numa;
mod objects;
mod plugin_api;
mod plugins;
mod pod;
mod pod_resources;
mod pods;
mod probes;
mod server;
mod services;
mod shutdown;
mod stats;
mod summary;
mod thresholds;
mod topology;
mod users;
mod volumes;

#[cfg(test)]
mod fixtures;

use std::collections::BTreeSet;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{Node, Pod, Service};
use corten_api::k8s_openapi::api::storage::v1::CSIDriver;
use corten_client::{Caches, Client, ListOptions};
use corten_spans::{Attribute, Tracer};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

pub use config::{
    AccessConfig, Config, HostResolver, ImageCollection, ProvidedAddresses, SECCOMP_PROFILES, ShutdownConfig, Tls,
    TlsFiles,
};
pub use error::Error;
pub use eviction::{EvictionConfig, default_hard, parse_flag};

use admission::allocation::Allocations;
use claims::Claims;
use container::cgroups::Cgroups;
use cpus::Cpus;
use cri::Runtime;
use devices::Devices;
use events::Events;
use eviction::Evictor;
use images::collect::ImageCollector;
use logs::follow::LogWatcher;
use memory::Memory;
use metrics::Metrics;
use node::Host;
use pod::terminations::Terminations;
use pod::view::Views;
use pod::wakers::Wakers;
use pods::manager::Manager;
use services::{Api, ContainerRuntime, NodeResources, Services, Signals, VolumeSources};
use shutdown::Shutdown;
use stats::Collector;
use topology::Topology;
use volumes::csi::Csi;

/// The managers of the node's resources, and the metrics that they write.
struct Managers {
    cpus: Cpus,
    memory: Memory,
    topology: Topology,
    metrics: Arc<Metrics>,
    tracer: Option<Tracer>,
}

const RUNTIME_RETRY: Duration = Duration::from_millis(50);

/// Runs a kubelet until shutdown. It waits for a runtime that does not answer yet, and returns early only if its
/// configuration is invalid or the address of its API is in use.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) -> std::result::Result<(), Error> {
    // Everything below ends with this token, also if the API could not be served.
    let stop = shutdown.child_token();
    let metrics = Arc::new(Metrics::default());
    let runtime = Runtime::new(corten_cri::connect_lazy(&config.cri_socket)?, metrics.clone());
    let host = Host::read(&config);
    let cpus = Cpus::new(&config)?;
    let memory = Memory::new(&config, node::kept_back(&config, &host))?;
    let topology = Topology::new(&config)?;
    let machine_shutdown = Shutdown::new(&config)?;
    let caches = Caches::new(client.clone(), stop.clone());
    let assigned = ListOptions::fields(format!("spec.nodeName={}", config.node_name));
    let own_pods = caches.filtered::<Pod>(assigned);
    let Some(runtime_name) = wait_for_runtime(&runtime, &stop).await else { return Ok(()) };
    if runtime.has_systemd_cgroups().await {
        let message = "the container runtime keeps control groups by systemd; this kubelet writes them itself (set SystemdCgroup = false)";
        return Err(Error::Configuration(message.into()));
    }
    let runtime = ContainerRuntime {
        client: runtime,
        name: runtime_name,
        apparmor: host.apparmor,
        pulls: Arc::new(Semaphore::new(config.max_parallel_pulls.unwrap_or(Semaphore::MAX_PERMITS))),
    };
    let (tracer, exporter) = match &config.tracing {
        Some(tracing) => {
            let resource = vec![
                Attribute::text("service.name", "kubelet"),
                Attribute::text("host.name", config.node_name.clone()),
            ];
            let (tracer, exporter) = Tracer::new(tracing, resource);
            (Some(tracer), Some(exporter))
        }
        None => (None, None),
    };
    let managers = Managers { cpus, memory, topology, metrics, tracer };
    let services = services(&config, &client, runtime, managers, &host, &caches, &stop);
    limit_pods(&services, &host);
    let views = Views::default();
    let log_watcher = LogWatcher::new().map_err(Error::file("watch", &config.log_dir))?;

    let tasks = TaskTracker::new();
    if let Some(exporter) = exporter {
        tasks.spawn(exporter.run(stop.clone()));
    }
    tasks.spawn(keep_node(services.clone(), host, stop.clone()));
    tasks.spawn(plugins::run(services.clone(), log_watcher.clone(), stop.clone()));
    tasks.spawn(volumes::csi::keep_usage(services.volumes.csi.clone(), stop.clone()));
    tasks.spawn(volumes::csi::keep_allocatable(services.volumes.csi.clone(), stop.clone()));
    tasks.spawn(volumes::csi::keep_unstaging(services.volumes.csi.clone(), stop.clone()));
    tasks.spawn(devices::run(services.resources.devices.clone(), stop.clone()));
    tasks.spawn(pod_resources::run(services.clone(), views.clone(), stop.clone()));
    tasks.spawn(claims::delete_unregistered(services.resources.claims.clone(), stop.clone()));
    tasks.spawn(server::serve_health(services.config.healthz, stop.clone()));
    if let Some(shutdown) = machine_shutdown {
        tasks.spawn(shutdown.run(services.clone(), views.clone(), stop.clone()));
    }
    tasks.spawn(logs::rotate::run(services.clone(), views.clone(), stop.clone()));
    let static_pods = static_pods(&services.config, &log_watcher, &tasks, &stop);
    tasks.spawn(Manager::new(services.clone(), views.clone(), stop.clone()).run(own_pods, static_pods));
    let collector = Collector::new(services.clone(), views.clone());
    let images = ImageCollector::new(services.clone(), views.clone());
    tasks.spawn(Evictor::new(services.clone(), views.clone(), collector.clone(), images.clone())?.run(stop.clone()));
    tasks.spawn(images.run(stop.clone()));
    let state = server::State {
        services,
        views,
        log_watcher,
        collector,
        access: server::Access::default(),
        checks: corten_meta::metrics::HealthChecks::default(),
        shutdown: stop.clone(),
        tasks: tasks.clone(),
    };
    let objects = state.services.api.objects.clone();
    let served = server::serve(Arc::new(state)).await;
    if served.is_ok() {
        stop.cancelled().await;
    }
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    objects.ended().await;
    served
}

/// Watches the manifests of the node's static pods.
fn static_pods(
    config: &Config,
    watcher: &LogWatcher,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> watch::Receiver<Vec<Arc<Pod>>> {
    let (found, pods) = watch::channel(Vec::new());
    if let Some(path) = config.static_pod_path.clone() {
        // Static pods are known before the API's pods are reconciled, so that none of their directories counts as
        // orphaned.
        found.send_replace(pods::static_pods::read(&path, &config.node_name));
        let name = config.node_name.clone();
        let watcher = watcher.clone();
        let stop = stop.clone();
        tasks.spawn(pods::static_pods::follow(path, name, watcher, found, stop));
    }
    pods
}

/// Makes the parts that all components share.
fn services(
    config: &Config,
    client: &Client,
    runtime: ContainerRuntime,
    managers: Managers,
    host: &Host,
    caches: &Caches,
    stop: &CancellationToken,
) -> Arc<Services> {
    let Managers { cpus, memory, topology, metrics, tracer } = managers;
    let own_node = caches.filtered::<Node>(node::own_node(config));
    let csi = Csi::new(&config.root_dir, &config.node_name, client.clone(), caches.of::<CSIDriver>(), own_node.clone());
    let wakers = Wakers::default();
    let most_pids = i64::try_from(host.most_processes / 2).unwrap_or(i64::MAX);
    Arc::new(Services {
        api: Api {
            events: Events::new(client.clone(), &config.node_name),
            objects: objects::Objects::new(client.clone(), stop.clone()),
            services: caches.of::<Service>(),
            own_node,
            client: client.clone(),
        },
        runtime,
        resources: NodeResources {
            cpus,
            memory,
            topology,
            devices: Arc::new(Devices::new(&config.root_dir, metrics.clone(), wakers.clone())),
            claims: Arc::new(Claims::new(&config.root_dir, &config.node_name, client.clone(), wakers.clone())),
            cgroups: Cgroups::detect(&config.cgroup_mount),
            allocatable: RwLock::new(node::allocatable(config, host)),
            memory_capacity: i64::try_from(host.memory_bytes).unwrap_or(i64::MAX),
            pod_pids_limit: config.pod_pids_limit.unwrap_or(most_pids),
            allocations: Allocations::default(),
        },
        volumes: VolumeSources {
            tokens: volumes::Tokens::default(),
            users: users::Users::new(&config.root_dir),
            csi: Arc::new(csi),
        },
        signals: Signals {
            wakers,
            terminations: Terminations::default(),
            pressure: watch::channel(BTreeSet::new()).0,
            shutting_down: watch::channel(false).0,
        },
        metrics,
        tracer,
        config: config.clone(),
    })
}

/// Limits all pods together to the resources that are not reserved, so that they cannot starve the node itself.
fn limit_pods(services: &Services, host: &Host) {
    let config = &services.config;
    if !config.enforce_allocatable {
        return;
    }
    let cgroup = format!("{}/kubepods", config.cgroup_root.trim_end_matches('/'));
    services.resources.cgroups.create(&cgroup, &node::limits(config, host));
    services
        .resources
        .cgroups
        .limit_processes(&cgroup, i64::try_from(host.most_processes / 10 * 9).unwrap_or(i64::MAX));
}

/// Waits until the runtime answers and returns its name; `None` at shutdown.
async fn wait_for_runtime(runtime: &Runtime, stop: &CancellationToken) -> Option<String> {
    loop {
        match runtime.version().await {
            Ok(version) => return Some(version.runtime_name),
            Err(error) => debug!(%error, "the container runtime does not answer yet"),
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(RUNTIME_RETRY) => {}
        }
    }
}

/// Registers the node, then renews its Lease and reports its status until shutdown.
async fn keep_node(services: Arc<Services>, host: Host, stop: CancellationToken) {
    let own_node = services.api.own_node.clone();
    services.api.events.node(events::NORMAL, "Starting", "Starting kubelet.");
    if services.config.register_node {
        node::register(&services.config, &services.api.client, &host, &services.runtime.client, &stop).await;
    }
    tokio::join!(
        volumes::csi::keep_csi_node(services.volumes.csi.clone(), stop.clone()),
        wake_for_attachments(services.clone(), stop.clone()),
        node::Reporter::new(services.clone(), host, own_node).run(stop.clone()),
        node::renew_lease(services.config.clone(), services.api.client.clone(), stop.clone()),
    );
}

/// Wakes the pods that wait for an attachment when the node's own object changes.
async fn wake_for_attachments(services: Arc<Services>, stop: CancellationToken) {
    let mut changes = services.api.own_node.subscribe();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            change = changes.next() => match change {
                Some(_) => services.volumes.csi.wake(),
                None => return,
            },
        }
    }
}
