//! The wiring: which components a process runs, under which identity, and how they are connected.
//!
//! The main path is `server`: store, API server, then everything else as its clients.

mod access;
mod addons;
pub mod alone;
pub mod apiserver;
mod apply;
pub mod audit;
mod authorization;
mod companion;
mod console;
pub mod control;
mod endpoint;
mod etcd_api;
pub mod further_nodes;
mod further_servers;
mod groups;
mod joining;
pub mod load_balancing;
mod members;
pub mod network;
pub mod node;
mod node_certificate;
pub mod node_dns;
pub mod readiness;
mod renewal;
mod server_nodes;
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
use crate::membership::Membership;
use crate::pki::Pki;
use crate::progress::Progress;
use crate::tasks::Tasks;

/// Runs a complete cluster in this process, or one of several servers of it.
pub async fn server(
    cluster: Cluster,
    membership: Option<Membership>,
    progress: Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    // etcd, and further servers with their part of it, end after the API server, which writes its last words.
    let mut ground = Tasks::new(CancellationToken::new());
    let outcome = serve(cluster, membership, progress, &mut ground, shutdown).await;
    ground.shutdown().cancel();
    ground.run().await?;
    outcome
}

async fn serve(
    mut cluster: Cluster,
    membership: Option<Membership>,
    progress: Progress,
    ground: &mut Tasks,
    shutdown: CancellationToken,
) -> Result<()> {
    let started = corten_meta::time::now();
    let pki = Arc::new(Pki::open(&cluster.node.directories.pki())?);
    further_nodes::ensure_address(&cluster).await?;
    if let Some(membership) = &membership {
        further_servers::start_joined(&cluster, membership, ground).await?;
    }
    let members = match &membership {
        None => None,
        Some(membership) => tokio::select! {
            started = members::start(&mut cluster, membership, ground) => Some(started?),
            () = shutdown.cancelled() => return Ok(()),
        },
    };

    // The API server ends last: its clients still write at their end.
    let mut foundation = Tasks::new(CancellationToken::new());
    let store = apiserver::open_store(&cluster, &mut foundation).await?;
    progress.reached("store");
    let api = Arc::new(apiserver::start(&cluster, &pki, store, &mut foundation).await?);
    progress.reached("apiserver");

    let mut clients = Tasks::new(shutdown.clone());
    let admin = api.client("system:admin", &["system:masters"]);
    if cluster.load_balancer.is_some() {
        load_balancing::define(&admin).await.context("the kinds of load balancers cannot be defined")?;
    }
    control::start(&cluster, &pki, &api, &mut clients)?;
    progress.reached("controllers");

    access::grant(&admin).await.context("the roles of the node's components cannot be applied")?;
    joining::publish(&admin, &cluster, &pki).await.context("the cluster cannot be published to nodes that join")?;
    let identities = node::Identities::in_process(&cluster, &pki, &api, &mut clients)?;
    node::start(cluster.node.clone(), identities, cluster.nodes > 1, &mut clients)?;

    let caches = Caches::new(admin.clone(), shutdown.clone());
    clients.spawn("addons", addons::run(admin.clone(), caches.clone(), cluster.clone(), shutdown.clone()));
    if cluster.load_balancer.is_some() {
        let granted = load_balancing::grant_passwords(admin.clone(), caches.clone(), shutdown.clone());
        clients.spawn("BGP passwords", granted);
    }
    if let Some(members) = members {
        clients.spawn("server nodes", server_nodes::run(caches.clone(), members, shutdown.clone()));
    }

    let mut nodes = vec![cluster.node.name.clone()];
    if let Some(membership) = &membership {
        further_servers::start_new(&cluster, membership, &admin, ground).await?;
        nodes.extend(further_servers::names(&cluster));
    }
    nodes.extend(further_nodes::start(&cluster, &pki, &mut clients).await?);
    let domain = cluster.node.cluster_domain.clone();
    let starting = readiness::Starting { nodes, domain, backend: cluster.node.network_backend, started };
    clients.spawn("readiness", readiness::report(caches, starting, progress, shutdown.clone()));

    let ended = foundation.shutdown();
    let outcome = tokio::select! {
        outcome = clients.run() => outcome,
        failed = foundation.failed() => failed,
        failed = ground.failed(), if membership.is_some() => failed,
    };
    ended.cancel();
    foundation.run().await?;
    outcome
}

/// Runs one more node of a cluster whose API server is elsewhere.
pub async fn agent(flags: cli::Agent, shutdown: CancellationToken) -> Result<()> {
    let mut tasks = Tasks::new(shutdown);
    let Some((joined, kubelet)) = become_node(&flags, &mut tasks).await? else { return Ok(()) };
    if joined.renews && !identify_components(&joined.node, &kubelet.client, &mut tasks).await? {
        return Ok(());
    }
    let identities = node::Identities::of_agent(&joined, kubelet)?;
    if let Some(servers) = &joined.servers {
        servers.follow(identities.network.clone(), &mut tasks);
    }
    node::start(joined.node, identities, false, &mut tasks)?;
    tasks.run().await
}

/// Joins the cluster if necessary, and renews the node's certificates; `None` at shutdown.
async fn become_node(flags: &cli::Agent, tasks: &mut Tasks) -> Result<Option<(Joined, node::KubeletIdentity)>> {
    let shutdown = tasks.shutdown();
    let joined = tokio::select! {
        joined = join::join(flags, tasks) => joined?,
        () = shutdown.cancelled() => return Ok(None),
    };
    let node = &joined.node;
    if !joined.renews {
        let kubelet = node::KubeletIdentity::of_files(node, &joined.kubeconfig)?;
        return Ok(Some((joined, kubelet)));
    }
    let client = joined.client(&joined.kubeconfig).context("the kubeconfig cannot be used")?;
    let (sender, serving) = watch::channel(renewal::first_serving(&node.directories, &node.name)?);
    let path = certificate::client_path(&node.directories);
    let renewed = renewal::client(path, Wanted::client(&node.name), client.clone(), shutdown.clone());
    tasks.spawn("client certificate", renewed);
    tasks.spawn("serving certificate", renewal::serving(node.clone(), client.clone(), sender, shutdown));
    Ok(Some((joined, node::KubeletIdentity { client, serving })))
}

/// Requests certificates for the components of a node that joined, and renews them; false at shutdown.
async fn identify_components(node: &Node, client: &Client, tasks: &mut Tasks) -> Result<bool> {
    let shutdown = tasks.shutdown();
    tokio::select! {
        identified = join::identify_components(client, node) => {
            identified.context("the components of the node get no certificates")?;
        }
        () = shutdown.cancelled() => return Ok(false),
    }
    for component in NodeComponent::ALL {
        let path = certificate::component_path(&node.directories, component);
        let wanted = Wanted::component(component, &node.name);
        tasks.spawn("component certificate", renewal::client(path, wanted, client.clone(), shutdown.clone()));
    }
    Ok(true)
}
