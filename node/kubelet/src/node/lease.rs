//! The node's heartbeat: a Lease in `kube-node-lease` that is renewed every ten seconds. A failed renewal is retried
//! soon, because a node without a renewal for forty seconds counts as lost.

use std::time::Duration;

use corten_api::k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use corten_client::Client;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::config::Config;
use crate::error::Result;

const NAMESPACE: &str = "kube-node-lease";
const RETRY: Duration = Duration::from_millis(500);

/// Renews the lease until shutdown.
pub async fn renew_lease(config: Config, client: Client, shutdown: CancellationToken) {
    let mut held: Option<Lease> = None;
    loop {
        let wait = match renew(&config, &client, held.take()).await {
            Ok(Some(lease)) => {
                held = Some(lease);
                config.lease_renew_interval
            }
            Ok(None) => RETRY,
            Err(error) => {
                warn!(%error, "lease not renewed");
                RETRY
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Creates or renews the lease; it exists only while its Node exists.
async fn renew(config: &Config, client: &Client, held: Option<Lease>) -> Result<Option<Lease>> {
    let found = match held {
        Some(lease) => Some(lease),
        None => client.find::<Lease>(NAMESPACE, &config.node_name).await?,
    };
    let exists = found.is_some();
    let mut lease = found.unwrap_or_else(|| empty(config));
    if lease.metadata.owner_references.as_ref().is_none_or(Vec::is_empty) {
        match client.find::<Node>("", &config.node_name).await?.and_then(|node| owner(&node)) {
            Some(owner) => lease.metadata.owner_references = Some(vec![owner]),
            None if !exists => return Ok(None),
            None => {}
        }
    }
    fill(config, &mut lease);
    let written = if exists { client.update(&lease).await? } else { client.create(&lease).await? };
    Ok(Some(written))
}

fn empty(config: &Config) -> Lease {
    let metadata =
        ObjectMeta { name: Some(config.node_name.clone()), namespace: Some(NAMESPACE.into()), ..ObjectMeta::default() };
    Lease { metadata, ..Lease::default() }
}

fn fill(config: &Config, lease: &mut Lease) {
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(config.node_name.clone());
    spec.lease_duration_seconds = i32::try_from(config.lease_duration.as_secs()).ok();
    spec.renew_time = Some(MicroTime(Timestamp::now()));
}

/// Returns the owner reference to the node, with which the lease is deleted.
fn owner(node: &Node) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.metadata.name.clone()?,
        uid: node.metadata.uid.clone()?,
        ..OwnerReference::default()
    })
}
