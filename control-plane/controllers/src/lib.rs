//! The controllers of the cluster: one runtime that watches, queues and applies, and one file or folder per controller
//! that reconciles.
//!
//! Every controller is a client of the API under its own identity. No controller uses another; they communicate through
//! API objects.

mod attach_detach;
mod bootstrap_token;
mod certificates;
mod cidr;
mod clusterrole_aggregation;
mod cronjob;
mod daemonset;
mod deployment;
mod device_taint_eviction;
mod disruption;
mod endpoints;
mod ephemeral_volume;
#[doc(hidden)]
pub mod fuzz;
mod garbage_collector;
mod horizontal_pod_autoscaler;
mod job;
mod legacy_token;
mod load_balancer;
mod local_volumes;
mod measured;
mod metrics;
mod namespace;
mod node;
mod registry;
mod replicaset;
mod resourceclaim;
mod resourcequota;
mod root_ca;
pub mod runtime;
mod service_cidr;
mod serviceaccount;
mod serviceaccount_token;
mod snapshots;
mod statefulset;
mod storage_protection;
mod ttl_after_finished;
mod volume_backups;
mod volume_binding;
mod volume_claims;
mod volume_expansion;
mod workload;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use corten_client::{Caches, LeaderConfig, LeaderElector, Metrics, Outcome, WorkQueue};
use tokio_util::sync::CancellationToken;

pub use certificates::{KubeletServing, NodeComponent, SigningAuthorities, SigningAuthority};
pub use cidr::Cidr;
pub use cronjob::schedule::Schedule;
pub use load_balancer::{AddressRange, LoadBalancerAddresses};
pub use local_volumes::PROVISIONER as LOCAL_PROVISIONER;
pub use measured::Measured;
pub use metrics::FAMILIES as METRICS;
pub use runtime::Clients;
pub use snapshots::ACCOUNT as SNAPSHOT_ACCOUNT;
pub use volume_backups::{ACCOUNT as VOLUME_BACKUP_ACCOUNT, REPLICA_ACCOUNT as VOLUME_REPLICA_ACCOUNT};
pub use volume_binding::{Recycler, Recyclers};

use certificates::{CertificateController, Signers};
use garbage_collector::GarbageCollector;
use horizontal_pod_autoscaler::AutoscalerController;
use namespace::NamespaceController;
use registry::Named;
use resourcequota::ResourceQuotaController;
use runtime::Counter;
use runtime::monitors::{Listener, Monitors};
use serviceaccount_token::ServiceAccountTokenController;

/// The identity whose client fills the shared caches and holds the leader lease: system:kube-controller-manager.
pub const MANAGER: &str = "kube-controller-manager";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the pod network {0:?} is neither a network such as 10.244.0.0/16 nor one of each family")]
    ClusterCidr(String),
    #[error("the authority that signs certificates cannot be used: {0}")]
    SigningAuthority(String),
    #[error("{0:?} is not in the list of known controllers")]
    UnknownController(String),
    #[error("the pod that recycles volumes cannot be used: {0}")]
    RecyclerTemplate(String),
    #[error("the lease {MANAGER} was lost to another process")]
    LostLease,
}

#[derive(Clone, Debug)]
pub struct Config {
    /// The identity of this process in the leader election.
    pub identity: String,
    /// Whether the process takes part in leader election before it starts any controller. Off where only one process
    /// runs.
    pub leader_elect: bool,
    /// The time that non-leaders wait after the last renewal before they take the lease.
    pub lease_duration: Duration,
    /// The time that a leader tries to renew the lease before it gives up.
    pub renew_deadline: Duration,
    /// The time between two attempts to take or renew the lease.
    pub retry_period: Duration,
    /// The CIDR that node CIDRs are allocated from, or one CIDR per IP family, separated by a comma. With none, another
    /// component allocates pod CIDRs.
    pub cluster_cidr: Option<String>,
    /// The prefix length of a node's pod CIDR, per IP family.
    pub node_cidr_mask: u8,
    pub node_cidr_mask_v6: u8,
    /// The certificate authority of the API server, in PEM.
    pub root_ca: String,
    /// The time without a heartbeat after which a node's conditions become Unknown.
    pub node_monitor_grace_period: Duration,
    /// The same grace period for a node that has not reported a status yet.
    pub node_startup_grace_period: Duration,
    /// The number of terminated pods that are kept.
    pub terminated_pod_threshold: usize,
    /// The authorities that sign approved CertificateSigningRequests.
    pub signing_authorities: SigningAuthorities,
    /// The names that no kubelet may serve under. With it, CertificateSigningRequests for kubelet serving certificates
    /// are approved automatically; without it, an administrator or another program approves them, as upstream leaves
    /// it.
    pub kubelet_serving: Option<KubeletServing>,
    /// The longest duration of a signed certificate.
    pub certificate_lifetime: Duration,
    /// The address pools for Services of type LoadBalancer. With none, another component assigns their addresses.
    pub load_balancer: Option<LoadBalancerAddresses>,
    /// Whether the API server has the CustomResourceDefinition of AddressPools, which give addresses too.
    pub address_pools: bool,
    /// Whether to provision volumes on the nodes' own disks for claims of StorageClasses with the provisioner
    /// `corten/local-path`.
    pub local_volumes: bool,
    /// Whether to install the kinds of volume snapshots and of volume backups, to bind snapshots for all storage drivers,
    /// and to give backups to nodes.
    pub snapshots: bool,
    /// The pods that scrub volumes with the reclaim policy Recycle.
    pub recyclers: Recyclers,
    /// The enabled controllers: names, `*` for all, `-name` for all but that one.
    pub controllers: Vec<String>,
    /// The metrics of the queues, the lease and the running controllers.
    pub metrics: Metrics,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            identity: String::new(),
            leader_elect: false,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            cluster_cidr: Some("10.244.0.0/16".to_owned()),
            node_cidr_mask: 24,
            node_cidr_mask_v6: 64,
            root_ca: String::new(),
            node_monitor_grace_period: Duration::from_secs(50),
            node_startup_grace_period: Duration::from_secs(60),
            terminated_pod_threshold: 12_500,
            signing_authorities: SigningAuthorities::default(),
            kubelet_serving: None,
            certificate_lifetime: Duration::from_secs(365 * 24 * 60 * 60),
            load_balancer: None,
            address_pools: false,
            local_volumes: false,
            snapshots: false,
            recyclers: Recyclers::default(),
            controllers: vec!["*".to_owned()],
            metrics: Metrics::default(),
        }
    }
}

/// Runs the enabled controllers until shutdown, as the leader if so configured.
pub async fn run(mut config: Config, clients: Clients, shutdown: CancellationToken) -> Result<(), Error> {
    config.controllers = registry::canonical(&config.controllers);
    let controllers = registry::controllers(&config)?;
    let signers = signers(&config)?;
    if !config.leader_elect {
        lead(&config, controllers, signers, &clients, shutdown).await;
        return Ok(());
    }
    let lease = LeaderConfig {
        lease_duration: config.lease_duration,
        renew_deadline: config.renew_deadline,
        retry_period: config.retry_period,
        ..LeaderConfig::new("kube-system", MANAGER, &config.identity)
    };
    let elector = LeaderElector::new(clients(MANAGER), lease).with_metrics(&config.metrics);
    match elector.run(shutdown, |leading| lead(&config, controllers, signers, &clients, leading)).await {
        Outcome::Lost => Err(Error::LostLease),
        Outcome::Stopped | Outcome::Finished => Ok(()),
    }
}

/// Reads the signing authorities of the configuration, once before any controller starts.
fn signers(config: &Config) -> Result<Signers, Error> {
    if !registry::is_enabled(registry::CERTIFICATE_SIGNING, &config.controllers) {
        return Ok(Signers::default());
    }
    Signers::new(&config.signing_authorities, config.certificate_lifetime, config.kubelet_serving.clone())
}

/// Runs the controllers as the leader, until the token is cancelled.
async fn lead(
    config: &Config,
    controllers: Vec<Named>,
    signers: Signers,
    clients: &Clients,
    shutdown: CancellationToken,
) {
    metrics::begin(config.metrics.registry());
    let caches = Caches::new(clients(MANAGER), shutdown.clone());
    let enabled = |name: &str| registry::is_enabled(name, &config.controllers);
    let running = registry::running(config, &controllers);
    let _running: Vec<_> = running.into_iter().map(|name| config.metrics.running(MANAGER, name)).collect();
    let queue = |name: &'static str| WorkQueue::named(&config.metrics, name);
    let controllers = controllers.into_iter().map(|(_, name, controller)| (queue(name), controller)).collect();
    let approves = enabled(registry::CERTIFICATE_APPROVING);
    let certificates = (approves || !signers.is_empty())
        .then(|| CertificateController::new(&caches, clients("certificate-controller"), approves, signers))
        .map(|one| one.run(queue("certificate"), shutdown.clone()));
    let tokens = enabled(registry::SERVICE_ACCOUNT_TOKEN)
        .then(|| ServiceAccountTokenController::new(&caches, clients(MANAGER), config.root_ca.clone()))
        .map(|one| one.run(queue("serviceaccount_tokens_secret"), shutdown.clone()));
    let autoscalers = enabled(registry::HORIZONTAL_POD_AUTOSCALER)
        .then(|| {
            AutoscalerController::new(
                &caches,
                clients("horizontal-pod-autoscaler"),
                Counter::new(config.metrics.clone()),
            )
        })
        .map(|one| one.run(queue("horizontalpodautoscaler"), shutdown.clone()));
    let snapshots = (config.snapshots && enabled(registry::SNAPSHOTS))
        .then(|| snapshots::run(&caches, clients, &config.metrics, shutdown.clone()));
    let backups = (config.snapshots && enabled(registry::VOLUME_BACKUPS))
        .then(|| volume_backups::run(&caches, clients, &config.metrics, shutdown.clone()));
    tokio::join!(
        run_some(snapshots),
        run_some(backups),
        runtime::run(controllers, &caches, clients, &config.metrics, shutdown.clone()),
        follow_all_kinds(config, &caches, clients, shutdown.clone()),
        run_some(certificates),
        run_some(tokens),
        run_some(autoscalers),
    );
    caches.ended().await;
}

/// Runs the controllers that work on all resources, on one set of monitors.
async fn follow_all_kinds(config: &Config, caches: &Caches, clients: &Clients, shutdown: CancellationToken) {
    let enabled = |name: &str| registry::is_enabled(name, &config.controllers);
    let collector = enabled(registry::GARBAGE_COLLECTOR).then(|| {
        let queue = WorkQueue::named(&config.metrics, "garbage_collector_attempt_to_delete");
        GarbageCollector::new(clients("generic-garbage-collector"), queue)
    });
    let queue = |name: &'static str| WorkQueue::named(&config.metrics, name);
    let namespaces = enabled(registry::NAMESPACE)
        .then(|| NamespaceController::new(caches, clients("namespace-controller"), queue("namespace")));
    let quotas = enabled(registry::RESOURCE_QUOTA).then(|| {
        ResourceQuotaController::new(caches, clients("resourcequota-controller"), queue("resourcequota_primary"))
    });
    let listeners: Vec<Listener> = collector
        .iter()
        .map(GarbageCollector::listener)
        .chain(namespaces.iter().map(NamespaceController::listener))
        .chain(quotas.iter().map(ResourceQuotaController::listener))
        .collect();
    if listeners.is_empty() {
        return shutdown.cancelled().await;
    }
    let monitors = Arc::new(Monitors::new(caches.clone(), listeners, shutdown.clone()));
    tokio::join!(
        monitors.follow(caches.client(), &config.metrics),
        run_some(collector.map(|one| one.run(monitors.clone(), shutdown.clone()))),
        run_some(namespaces.map(|one| one.run(monitors.clone(), shutdown.clone()))),
        run_some(quotas.map(|one| one.run(monitors.clone(), shutdown.clone()))),
    );
}

/// Awaits a task if there is one.
async fn run_some(task: Option<impl Future<Output = ()>>) {
    if let Some(task) = task {
        task.await;
    }
}
