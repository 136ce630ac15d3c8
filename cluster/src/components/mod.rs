//! The wiring: which components a process runs, under which identity, and who is plugged into whom.
//!
//! The main path is `server`: store, API server, then everything else as clients of it.

mod access;
mod addons;
pub mod alone;
pub mod apiserver;
mod apply;
pub mod audit;
mod authorization;
mod companion;
pub mod control;
mod endpoint;
mod etcd_api;
pub mod further_nodes;
mod groups;
mod joining;
pub mod network;
pub mod node;
mod node_certificate;
pub mod node_dns;
pub mod readiness;
mod renewal;
mod service_accounts;
mod serving_certificate;

use std::sync::Arc;

use anyhow::{Context, Result};
use corten_client::{Caches, Client};
use corten_controllers::NodeComponent;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cli;
use crate::config::{Cluster, Node};
use crate::join::certificate::{self, Wanted};
use crate::join::{self, Joined};
use crate::pki::Pki;
use crate::progress::Progress;
use crate::tasks::Tasks;

/// A whole cluster in this process.
pub async fn server(cluster: Cluster, progress: Progress, shutdown: CancellationToken) -> Result<()> {
    let started = corten_meta::time::now();
    let pki = Arc::new(Pki::open(&cluster.node.place.pki())?);
    // The API server ends last: its clients must be able to say goodbye.
    let mut foundation = Tasks::new(CancellationToken::new());
    let store = apiserver::open_store(&cluster, &mut foundation).await?;
    further_nodes::ensure_address(&cluster).await?;
    progress.reached("store");

    let api = Arc::new(apiserver::start(&cluster, &pki, store, &mut foundation).await?);
    progress.reached("apiserver");

    let mut clients = Tasks::new(shutdown.clone());
    control::start(&cluster, &pki, &api, &mut clients)?;
    progress.reached("controllers");

    let admin = api.client("system:admin", &["system:masters"]);
    access::grant(&admin).await.context("the node's components cannot be given their rights")?;
    joining::publish(&admin, &cluster, &pki).await.context("the cluster cannot be published to nodes that join")?;
    let identities = node::Identities::in_process(&cluster, &pki, &api, &mut clients)?;
    node::start(cluster.node.clone(), identities, cluster.nodes > 1, &mut clients)?;

    let caches = Caches::new(admin.clone(), shutdown.clone());
    clients.spawn("addons", addons::run(admin, caches.clone(), cluster.clone(), shutdown.clone()));

    let further = further_nodes::start(&cluster, &pki, &mut clients).await?;
    let mut names = vec![cluster.node.name.clone()];
    names.extend(further);
    let domain = cluster.node.cluster_domain.clone();
    clients.spawn(
        "readiness",
        readiness::report(caches, names, (domain, cluster.node.network_backend), (progress, started), shutdown.clone()),
    );

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
pub async fn agent(flags: cli::Agent, shutdown: CancellationToken) -> Result<()> {
    let mut tasks = Tasks::new(shutdown);
    let Some((joined, kubelet)) = become_node(&flags, &mut tasks).await? else { return Ok(()) };
    let node = joined.node;
    if joined.renews && !identify_components(&node, &kubelet.client, &mut tasks).await? {
        return Ok(());
    }
    let identities = node::Identities::of_agent(&node, kubelet)?;
    node::start(node, identities, false, &mut tasks)?;
    tasks.run().await
}

/// Joins the cluster where that has to be, and keeps the certificates that the node got; `None` at shutdown.
async fn become_node(flags: &cli::Agent, tasks: &mut Tasks) -> Result<Option<(Joined, node::KubeletIdentity)>> {
    let shutdown = tasks.shutdown();
    let joined = tokio::select! {
        joined = join::join(flags) => joined?,
        () = shutdown.cancelled() => return Ok(None),
    };
    let node = &joined.node;
    if !joined.renews {
        let kubelet = node::KubeletIdentity::of_files(node, &joined.kubeconfig)?;
        return Ok(Some((joined, kubelet)));
    }
    let client = Client::from_kubeconfig(&joined.kubeconfig, None).context("the kubeconfig cannot be used")?;
    let (sender, serving) = watch::channel(renewal::first_serving(&node.place, &node.name)?);
    let path = certificate::client_path(&node.place);
    let renewed = renewal::client(path, Wanted::client(&node.name), client.clone(), shutdown.clone());
    tasks.spawn("client certificate", renewed);
    tasks.spawn("serving certificate", renewal::serving(node.clone(), client.clone(), sender, shutdown));
    Ok(Some((joined, node::KubeletIdentity { client, serving })))
}

/// Gives the components of a node that joined their certificates, and keeps these; false at shutdown.
async fn identify_components(node: &Node, client: &Client, tasks: &mut Tasks) -> Result<bool> {
    let shutdown = tasks.shutdown();
    tokio::select! {
        identified = join::identify_components(client, node) => {
            identified.context("the components of the node get no certificates")?;
        }
        () = shutdown.cancelled() => return Ok(false),
    }
    for component in NodeComponent::ALL {
        let path = certificate::component_path(&node.place, component);
        let wanted = Wanted::component(component, &node.name);
        tasks.spawn("component certificate", renewal::client(path, wanted, client.clone(), shutdown.clone()));
    }
    Ok(true)
}
