//! The wiring: which components a process runs, under which identity, and how they are connected.
//!
//! The main path is `server`: store, API server, then everything else as its clients.

mod access;
mod addons;
pub mod alone;
mod announcement;
pub mod apiserver;
mod apply;
pub mod audit;
mod authorization;
pub mod backups;
pub mod cloud;
mod companion;
mod console;
pub mod control;
pub mod control_plane;
pub mod ebs;
pub mod edge;
mod endpoint;
mod etcd_api;
mod etcd_client;
mod followed_authority;
mod forgotten;
pub mod further_nodes;
mod further_servers;
mod groups;
mod in_process;
mod ingress_advice;
mod joining;
pub mod load_balancing;
mod member_certificates;
mod members;
pub mod network;
pub mod node;
mod node_certificate;
pub mod node_dns;
pub mod readiness;
mod renewal;
mod server_certificates;
pub mod server_metrics;
mod server_nodes;
mod service_accounts;
mod serving_certificate;
mod shared_keys;
mod snapshots;
mod spans;
mod state_metrics;
pub mod storage;
mod store_health;
pub mod trusted_authority;

use std::sync::Arc;

use anyhow::{Context, Result};
use corten_client::{Caches, Client};
use corten_controllers::NodeComponent;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::server_metrics::ServerMetrics;
use crate::cli;
use crate::config::{Cluster, Node};
use crate::join::certificate::{self, Wanted};
use crate::join::{self, Joined};
use crate::membership::Membership;
use crate::pki::live;
use crate::progress::Progress;
use crate::supervision;
use crate::tasks::Tasks;
use trusted_authority::Reporter;

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
    let mut authorities = live::follow(&cluster.node.directories.pki(), cluster.leaf_lifetime, ground)?;
    further_nodes::ensure_address(&cluster).await?;
    if let Some(membership) = &membership {
        further_servers::start_joined(&cluster, membership, ground).await?;
    }
    let members = match &membership {
        None => None,
        Some(membership) => tokio::select! {
            started = members::start(&mut cluster, membership, &authorities, ground) => Some(started?),
            () = shutdown.cancelled() => return Ok(()),
        },
    };

    let shared = match &members {
        None => None,
        Some(started) => Some(shared_keys::start(&cluster.node.directories, started, &mut authorities).await?),
    };

    // The API server ends last: its clients still write at their end.
    let mut foundation = Tasks::new(CancellationToken::new());
    let endpoints = members.as_ref().map(|started| started.endpoints.clone());
    let stores = apiserver::open_stores(&cluster, endpoints, &mut foundation).await?;
    let disk = stores.main.clone();
    progress.reached("store");
    let api = Arc::new(apiserver::start(&cluster, &authorities, stores, false, &mut foundation).await?);
    progress.reached("apiserver");

    let mut clients = Tasks::new(shutdown.clone());
    let admin = api.client("system:admin", &["system:masters"]);
    if cluster.load_balancer.is_some() {
        load_balancing::define(&admin).await.context("the kinds of load balancers cannot be defined")?;
    }
    let metrics = Arc::new(ServerMetrics::new(cluster.node.directories.clone()));
    control::start(&cluster, &authorities, &api, &metrics, &mut clients)?;
    progress.reached("controllers");

    access::grant(&admin).await.context("the roles of the node's components cannot be applied")?;
    let pki = Arc::clone(&authorities.borrow());
    joining::publish(&admin, &cluster, &pki).await.context("the cluster cannot be published to nodes that join")?;
    let reporter = Reporter {
        client: admin.clone(),
        node: cluster.node.name.clone(),
        authority: cluster.node.directories.authority(),
        certificates: Vec::new(),
    };
    clients.spawn("reported authority", trusted_authority::keep(reporter, shutdown.clone()));
    let identities = node::Identities::in_process(&cluster, &authorities, &api, &mut clients)?;
    node::start(cluster.node.clone(), identities, cluster.nodes > 1, &mut clients)?;

    let caches = Caches::new(admin.clone(), shutdown.clone());
    clients.spawn("addons", addons::run(admin.clone(), caches.clone(), cluster.clone(), shutdown.clone()));
    let own = cluster.node.name.clone();
    clients.spawn("announcement", announcement::run(caches.clone(), own, shutdown.clone()));
    if cluster.load_balancer.is_some() {
        let granted = load_balancing::grant_passwords(admin.clone(), caches.clone(), shutdown.clone());
        clients.spawn("BGP passwords", granted);
    }
    if let Some(members) = members {
        let published = joining::keep(admin.clone(), cluster.clone(), authorities.clone(), shutdown.clone());
        clients.spawn("cluster-info", published);
        let endpoints = members.endpoints.clone();
        let followed = Arc::clone(&metrics).follow_members(members.members.clone(), endpoints, shutdown.clone());
        clients.spawn("member metrics", followed);
        clients.spawn("server nodes", server_nodes::run(caches.clone(), members, shutdown.clone()));
    }

    if let Some(shared) = shared {
        clients.spawn("shared keys", shared_keys::run(shared, shutdown.clone()));
    }
    backups::start(&cluster, &admin, metrics.registry(), &mut clients)?;
    let node = cluster.node.name.clone();
    clients.spawn("store health", store_health::run(disk, admin.clone(), node, shutdown.clone()));

    let mut nodes = vec![cluster.node.name.clone()];
    if let Some(membership) = &membership {
        further_servers::start_new(&cluster, membership, &admin, ground).await?;
        nodes.extend(further_servers::names(&cluster));
    }
    nodes.extend(further_nodes::start(&cluster, &authorities, &mut clients).await?);
    let domain = cluster.node.cluster_domain.clone();
    let starting = readiness::Starting { nodes, domain, backend: cluster.node.network_backend, started };
    clients.spawn("readiness", readiness::report(caches, starting, progress, shutdown.clone()));

    let ended = foundation.shutdown();
    let outcome = tokio::select! {
        outcome = clients.run() => outcome,
        failed = foundation.failed() => failed,
        failed = ground.failed() => failed,
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
    let reporter = reporter(&joined, &kubelet);
    tasks.spawn("reported authority", trusted_authority::keep(reporter, tasks.shutdown()));
    let identities = node::Identities::of_agent(&joined, kubelet)?;
    if let Some(servers) = &joined.servers {
        servers.follow(identities.network.clone(), &mut tasks);
    }
    node::start(joined.node, identities, false, &mut tasks)?;
    supervision::notify("READY=1");
    tasks.run().await
}

/// Returns the report of the authority that an agent trusts. The server writes the files of an agent that renews nothing.
fn reporter(joined: &Joined, kubelet: &node::KubeletIdentity) -> Reporter {
    let directories = &joined.node.directories;
    let mut certificates = Vec::new();
    if joined.renews {
        certificates.extend([certificate::client_path(directories), certificate::serving_path(directories)]);
        certificates.extend(NodeComponent::ALL.map(|component| certificate::component_path(directories, component)));
    }
    Reporter {
        client: kubelet.client.clone(),
        node: joined.node.name.clone(),
        authority: directories.authority(),
        certificates,
    }
}

/// Joins the cluster if necessary, and renews the node's certificates; `None` at shutdown.
async fn become_node(flags: &cli::Agent, tasks: &mut Tasks) -> Result<Option<(Joined, node::KubeletIdentity)>> {
    let shutdown = tasks.shutdown();
    let joined = tokio::select! {
        joined = join::join(flags, tasks) => joined?,
        () = shutdown.cancelled() => return Ok(None),
    };
    let node = &joined.node;
    let unusable = || format!("{} cannot be used", joined.kubeconfig.display());
    let client = joined.client(&joined.kubeconfig).with_context(unusable)?;
    if !joined.renews {
        let kubelet = node::KubeletIdentity::of_files(node, &joined.kubeconfig, client)?;
        return Ok(Some((joined, kubelet)));
    }
    let (sender, serving) = watch::channel(renewal::first_serving(&node.directories, &node.name)?);
    let sender = Arc::new(sender);
    let directories = node.directories.clone();
    let followed =
        followed_authority::follow(directories.clone(), client.clone(), Arc::clone(&sender), shutdown.clone());
    tasks.spawn("cluster authority", followed);
    let path = certificate::client_path(&directories);
    let renewed = renewal::client(directories, path, Wanted::client(&node.name), client.clone(), shutdown.clone());
    tasks.spawn("client certificate", renewed);
    tasks.spawn("serving certificate", renewal::serving(node.clone(), client.clone(), sender, shutdown));
    let callers = joined.servers.as_ref().map(|servers| servers.hear(tasks));
    Ok(Some((joined, node::KubeletIdentity { client, serving, callers })))
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
        let directories = node.directories.clone();
        let renewed = renewal::client(directories, path, wanted, client.clone(), shutdown.clone());
        tasks.spawn("component certificate", renewed);
    }
    Ok(true)
}
