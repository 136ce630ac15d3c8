//! The wiring: which components a process runs, under which identity, and who is plugged into whom.
//!
//! The main path is `server`: store, API server, then everything else as clients of it.

mod addons;
pub mod alone;
pub mod apiserver;
mod control;
pub mod further_nodes;
pub mod network;
pub mod node;
pub mod readiness;
mod service_accounts;
mod tasks;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use corten_client::{Caches, Client};
use tokio_util::sync::CancellationToken;

use crate::config::{Cluster, Node};
use crate::pki::Pki;
use crate::progress::Progress;
use tasks::Tasks;

/// A whole cluster in this process.
pub async fn server(cluster: Cluster, progress: Progress, shutdown: CancellationToken) -> Result<()> {
    let started = corten_meta::time::now();
    let pki = Arc::new(Pki::open(&cluster.node.place.pki())?);
    let store = apiserver::open_store(&cluster.node.place.data.join("store")).await?;
    progress.reached("store");

    // The API server ends last: its clients must be able to say goodbye.
    let mut foundation = Tasks::new(CancellationToken::new());
    let api = Arc::new(apiserver::start(&cluster, &pki, store, &mut foundation).await?);
    progress.reached("apiserver");

    let mut clients = Tasks::new(shutdown.clone());
    control::start(&cluster, &pki, &api, &mut clients);
    progress.reached("controllers");

    let identities = node::Identities::in_process(&cluster, &pki, &api)?;
    node::start(cluster.node.clone(), identities, cluster.nodes > 1, &mut clients)?;

    let admin = api.client("system:admin", &["system:masters"]);
    let caches = Caches::new(admin.clone(), shutdown.clone());
    clients.spawn("addons", addons::run(admin, caches.clone(), cluster.clone(), shutdown.clone()));

    let further = further_nodes::start(&cluster, &pki, &mut clients).await?;
    let mut names = vec![cluster.node.name.clone()];
    names.extend(further);
    let domain = cluster.node.cluster_domain.clone();
    clients.spawn("readiness", readiness::report(caches, names, domain, (progress, started), shutdown.clone()));

    let ended = foundation.shutdown();
    let outcome = tokio::select! {
        outcome = clients.run() => outcome,
        failed = foundation.failed() => failed,
    };
    ended.cancel();
    foundation.run().await?;
    outcome
}

/// One more node of a cluster whose API server is elsewhere.
pub async fn agent(node: Node, kubeconfig: PathBuf, shutdown: CancellationToken) -> Result<()> {
    let client = Client::from_kubeconfig(&kubeconfig, None).context("the kubeconfig cannot be used")?;
    let identities = node::Identities::of_agent(&node, client)?;
    let mut tasks = Tasks::new(shutdown);
    node::start(node, identities, false, &mut tasks)?;
    tasks.run().await
}
