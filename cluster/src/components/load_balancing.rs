//! Addresses of load balancers: the CustomResourceDefinitions of AddressPools and BGPPeers, and on every node the tasks
//! that announce the addresses, on the link and by BGP.
//!
//! A node without pools follows only the two kinds, which are empty: the tasks start with the first object.

use std::time::Duration;

use anyhow::{Context, Result};
use corten_api::k8s_openapi::api::core::v1::Namespace;
use corten_api::k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use corten_api::k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use corten_api::{ADDRESS_POOLS, BGP_NAMESPACE, BGP_PEERS, NETWORK_GROUP, NETWORK_VERSION, Typed, network_crds};
use corten_client::{Caches, Client, Resource};
use corten_controllers::NodeComponent;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::apply::apply;
use crate::config::{self, Node};
use crate::directories::Directories;

/// The role that reads the passwords of peers.
const PASSWORD_ROLE: &str = "corten:bgp-passwords";
/// The time limit until the API server serves new kinds.
const PATIENCE: Duration = Duration::from_secs(30);
/// The first and the longest wait between two questions whether the kinds are served.
const FIRST_WAIT: Duration = Duration::from_millis(5);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The file in the run directory that exists while the node leaves its cluster and does not only restart.
const LEAVING: &str = "leaving";

/// Marks the node of these directories as one that leaves, before its process is stopped.
pub fn leave(directories: &Directories) {
    if directories.run.exists() {
        // Without the file the routers keep the routes for the time of a restart.
        let _ = std::fs::write(directories.run.join(LEAVING), "");
    }
}

fn resource(plural: &str) -> Resource {
    Resource::new(NETWORK_GROUP, NETWORK_VERSION, plural, false)
}

/// Applies the CustomResourceDefinitions and waits until their objects are served: controllers wait for their caches.
pub async fn define(client: &Client) -> Result<()> {
    for crd in network_crds() {
        let name = corten_meta::name(&crd).to_owned();
        apply::<CustomResourceDefinition>(client, "", &name, crd).await.with_context(|| format!("CRD {name}"))?;
    }
    tokio::time::timeout(PATIENCE, served(client)).await.context("the API server does not serve AddressPools")
}

/// Waits until the API server serves both kinds.
async fn served(client: &Client) {
    let mut wait = FIRST_WAIT;
    for plural in [ADDRESS_POOLS, BGP_PEERS] {
        while let Err(error) = client.get_raw(&format!("{}?limit=1", resource(plural).path(""))).await {
            tracing::debug!(plural, "the kind is not served yet: {error}");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }
}

/// Lets nodes read the passwords of peers, once a BGPPeer names one.
pub async fn grant_passwords(client: Client, caches: Caches, shutdown: CancellationToken) -> Result<()> {
    let peers = caches.dynamic(&resource(BGP_PEERS));
    let mut changes = peers.subscribe();
    let mut is_granted = false;
    loop {
        let names = |peer: &corten_meta::Object| peer.value()["spec"]["passwordSecret"].is_string();
        if !is_granted && peers.all().iter().any(|peer| names(peer)) {
            match grant(&client).await {
                Ok(()) => is_granted = true,
                Err(error) => tracing::warn!("nodes cannot be let read the passwords of BGP peers: {error:#}"),
            }
        }
        tokio::select! {
            change = changes.next() => if change.is_none() { return Ok(()) },
            () = tokio::time::sleep(LONGEST_WAIT), if !is_granted => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

async fn grant(client: &Client) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": BGP_NAMESPACE}});
    match client.create(&Namespace::from_value(namespace)?).await {
        Err(error) if !error.is_already_exists() => return Err(error.into()),
        _ => {}
    }
    let metadata = json!({"name": PASSWORD_ROLE, "namespace": BGP_NAMESPACE});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]});
    apply::<Role>(client, BGP_NAMESPACE, PASSWORD_ROLE, role).await?;
    let group = NodeComponent::Network.group();
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": PASSWORD_ROLE},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}]});
    apply::<RoleBinding>(client, BGP_NAMESPACE, PASSWORD_ROLE, binding).await?;
    Ok(())
}

/// Announces the addresses of load balancers from a node, until shutdown.
pub async fn announce(node: Node, client: Client, shutdown: CancellationToken) -> Result<()> {
    let leaving = node.directories.run.join(LEAVING);
    let _ = std::fs::remove_file(&leaving);
    let pool = config::pool(&node.load_balancer_pool)?;
    let caches = Caches::new(client.clone(), shutdown.clone());
    let on_link = async {
        let bounds = pool.iter().map(|range| range.bounds()).collect();
        let mut config = corten_network::announce::Config::new(&node.name, bounds);
        config.has_pools = match pool.is_empty() {
            true if first_object(&client, &caches, ADDRESS_POOLS, &shutdown).await => true,
            true => return Ok(()),
            // A node of another API server has the pool of its flag alone.
            false => tokio::time::timeout(PATIENCE, served(&client)).await.is_ok(),
        };
        corten_network::announce::run(config, client.clone(), shutdown.clone()).await
    };
    let by_bgp = async {
        if !first_object(&client, &caches, BGP_PEERS, &shutdown).await {
            return;
        }
        let config = corten_bgp::Config {
            node_name: node.name.clone(),
            node_addresses: node.addresses.clone(),
            pool: pool.clone(),
            leaving: Some(leaving),
        };
        corten_bgp::run(config, client.clone(), shutdown.clone()).await;
    };
    let (linked, ()) = tokio::join!(on_link, by_bgp);
    Ok(linked?)
}

/// Waits until there is an object of a kind; false at shutdown.
async fn first_object(client: &Client, caches: &Caches, plural: &str, shutdown: &CancellationToken) -> bool {
    let found = async {
        served(client).await;
        let cache = caches.dynamic(&resource(plural));
        let mut changes = cache.subscribe();
        while cache.is_empty() {
            changes.next().await?;
        }
        Some(())
    };
    matches!(shutdown.run_until_cancelled(found).await, Some(Some(())))
}
