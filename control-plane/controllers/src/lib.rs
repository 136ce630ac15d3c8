//! The controllers of the cluster: one runtime that watches, queues and applies; one file or folder each that decides.
//!
//! Every controller is a client of the API under its own identity. None knows another; they meet in the objects.

mod bootstrap_token;
mod clusterrole_aggregation;
mod cronjob;
mod daemonset;
mod deployment;
mod disruption;
mod endpoints;
mod ephemeral_volume;
mod garbage_collector;
mod job;
mod namespace;
mod node;
mod replicaset;
mod root_ca;
pub mod runtime;
mod service_cidr;
mod serviceaccount;
mod statefulset;
mod storage_protection;
mod ttl_after_finished;
mod volume_binding;
mod workload;

#[cfg(test)]
mod model;

use std::sync::Arc;
use std::time::Duration;

use corten_client::{Caches, LeaderConfig, LeaderElector, Outcome};
use tokio_util::sync::CancellationToken;

pub use node::ipam::Cidr;
pub use runtime::Clients;
use runtime::Decide;

/// The identity whose client fills the shared caches and holds the leader lease: system:kube-controller-manager.
pub const MANAGER: &str = "kube-controller-manager";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the pod network {0:?} is not an IPv4 network such as 10.244.0.0/16")]
    ClusterCidr(String),
    #[error("the lease {MANAGER} was lost to another process")]
    LostLease,
}

#[derive(Clone, Debug)]
pub struct Config {
    /// Who this process is among the candidates for leadership.
    pub identity: String,
    /// Stand for election before doing anything. Off where there is only one process.
    pub leader_elect: bool,
    /// The network that node ranges are cut from; none leaves pod ranges to somebody else.
    pub cluster_cidr: Option<String>,
    /// The prefix length of a node's range.
    pub node_cidr_mask: u8,
    /// The certificate authority of the API server, in PEM.
    pub root_ca: String,
    /// Silence after which a node counts as unknown.
    pub node_monitor_grace_period: Duration,
    /// The same for a node that has not reported yet.
    pub node_startup_grace_period: Duration,
    /// How many ended pods are kept.
    pub terminated_pod_threshold: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            identity: String::new(),
            leader_elect: false,
            cluster_cidr: Some("10.244.0.0/16".to_owned()),
            node_cidr_mask: 24,
            root_ca: String::new(),
            node_monitor_grace_period: Duration::from_secs(50),
            node_startup_grace_period: Duration::from_secs(60),
            terminated_pod_threshold: 12_500,
        }
    }
}

/// Runs every controller until shutdown, as the leader if so configured.
pub async fn run(config: Config, clients: Clients, shutdown: CancellationToken) -> Result<(), Error> {
    let controllers = controllers(&config)?;
    if !config.leader_elect {
        lead(controllers, &clients, shutdown).await;
        return Ok(());
    }
    let elector = LeaderElector::new(clients(MANAGER), LeaderConfig::new("kube-system", MANAGER, &config.identity));
    match elector.run(shutdown, |leading| lead(controllers, &clients, leading)).await {
        Outcome::Lost => Err(Error::LostLease),
        Outcome::Stopped | Outcome::Finished => Ok(()),
    }
}

/// What the leader does. It ends when the token does.
async fn lead(controllers: Vec<Arc<dyn Decide>>, clients: &Clients, shutdown: CancellationToken) {
    let caches = Caches::new(clients(MANAGER), shutdown.clone());
    tokio::join!(
        runtime::run(controllers, &caches, clients, shutdown.clone()),
        namespace::run(&caches, clients("namespace-controller"), shutdown.clone()),
        garbage_collector::run(&caches, clients("generic-garbage-collector"), shutdown.clone()),
    );
    caches.ended().await;
}

/// Every controller that decides on plans, in one list.
fn controllers(config: &Config) -> Result<Vec<Arc<dyn Decide>>, Error> {
    let started = corten_meta::time::now();
    let mut all: Vec<Arc<dyn Decide>> = vec![
        Arc::new(deployment::DeploymentController),
        Arc::new(replicaset::REPLICA_SETS),
        Arc::new(replicaset::REPLICATION_CONTROLLERS),
        Arc::new(daemonset::DaemonSetController),
        Arc::new(job::JobController),
        Arc::new(statefulset::StatefulSetController),
        Arc::new(ttl_after_finished::TtlAfterFinishedController),
        Arc::new(cronjob::CronJobController),
        Arc::new(clusterrole_aggregation::ClusterRoleAggregationController),
        Arc::new(storage_protection::ClaimProtectionController),
        Arc::new(storage_protection::VolumeProtectionController),
        Arc::new(volume_binding::ClaimBinder),
        Arc::new(volume_binding::VolumePhases),
        Arc::new(endpoints::EndpointSliceController),
        Arc::new(endpoints::EndpointsController),
        Arc::new(endpoints::EndpointSliceMirroringController),
        Arc::new(disruption::DisruptionController),
        Arc::new(disruption::StaleDisruptionController),
        Arc::new(ephemeral_volume::EphemeralVolumeController),
        Arc::new(service_cidr::ServiceCidrController),
        Arc::new(bootstrap_token::TokenCleaner),
        Arc::new(bootstrap_token::BootstrapSigner),
        Arc::new(serviceaccount::ServiceAccountController),
        Arc::new(root_ca::RootCaPublisher { root_ca: config.root_ca.clone() }),
        Arc::new(node::lifecycle::NodeLifecycleController {
            grace_period: config.node_monitor_grace_period,
            startup_grace_period: config.node_startup_grace_period,
            started,
        }),
        Arc::new(node::taint_eviction::TaintEvictionController::default()),
        Arc::new(node::pod_gc::PodGcController { terminated_threshold: config.terminated_pod_threshold }),
    ];
    if let Some(network) = &config.cluster_cidr {
        let cluster = Cidr::parse(network).ok_or_else(|| Error::ClusterCidr(network.clone()))?;
        all.push(Arc::new(node::ipam::NodeIpamController { cluster, node_prefix: config.node_cidr_mask }));
    }
    Ok(all)
}
