//! The controllers and the scheduler, as clients of an API server in this process.

use std::sync::Arc;

use corten_client::Client;
use corten_controllers::{Clients, MANAGER};

use super::apiserver::ApiServer;
use super::tasks::Tasks;
use crate::config::Cluster;
use crate::pki::Pki;

/// Starts them.
pub fn start(cluster: &Cluster, pki: &Pki, api: &Arc<ApiServer>, tasks: &mut Tasks) {
    let config = corten_controllers::Config {
        identity: cluster.node.name.clone(),
        cluster_cidr: Some(cluster.node.cluster_cidr.clone()),
        root_ca: pki.cluster.certificate.clone(),
        signing_authority: Some(corten_controllers::SigningAuthority {
            certificate: pki.cluster.certificate.clone(),
            key: pki.cluster.key(),
        }),
        load_balancer: cluster.load_balancer.clone(),
        ..corten_controllers::Config::default()
    };
    tasks.spawn("controller-manager", corten_controllers::run(config, clients(api.clone()), tasks.shutdown()));
    let scheduler = api.client("system:kube-scheduler", &[]);
    // There is one process: nobody to be elected among.
    let config = corten_scheduler::Config { leader_election: None, ..cluster.scheduler.clone() };
    tasks.spawn("scheduler", corten_scheduler::run(config, scheduler, tasks.shutdown()));
}

/// Each controller acts under its own ServiceAccount; the manager itself under its own name.
fn clients(api: Arc<ApiServer>) -> Clients {
    Arc::new(move |name: &str| -> Client {
        if name == MANAGER {
            return api.client("system:kube-controller-manager", &[]);
        }
        let user = format!("system:serviceaccount:kube-system:{name}");
        api.client(&user, &["system:serviceaccounts", "system:serviceaccounts:kube-system"])
    })
}
