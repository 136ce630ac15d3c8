//! The node's heartbeat: a Lease in `kube-node-lease` that is renewed every ten seconds. A renewal that fails
//! is tried again soon, because a node that is silent for forty seconds counts as lost.

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

/// Keeps the lease until shutdown.
pub async fn renew_lease(config: Config, client: Client, shutdown: CancellationToken) {
    let mut held: Option<Lease> = None;
    loop {
        let wait = match renew(&config, &client, held.take()).await {
            Ok(lease) => {
                held = Some(lease);
                config.lease_renew_interval
            }
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

async fn renew(config: &Config, client: &Client, held: Option<Lease>) -> Result<Lease> {
    let lease = match held {
        Some(lease) => Some(lease),
        None => client.find::<Lease>(NAMESPACE, &config.node_name).await?,
    };
    match lease {
        Some(mut lease) => {
            fill(config, &mut lease);
            Ok(client.update(&lease).await?)
        }
        None => {
            let mut lease = Lease { metadata: metadata(config, client).await, ..Lease::default() };
            fill(config, &mut lease);
            Ok(client.create(&lease).await?)
        }
    }
}

fn fill(config: &Config, lease: &mut Lease) {
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(config.node_name.clone());
    spec.lease_duration_seconds = i32::try_from(config.lease_duration.as_secs()).ok();
    spec.renew_time = Some(MicroTime(Timestamp::now()));
}

/// The lease belongs to the node, and goes with it.
async fn metadata(config: &Config, client: &Client) -> ObjectMeta {
    let owner = client.get::<Node>("", &config.node_name).await.ok().and_then(|node| {
        Some(OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: config.node_name.clone(),
            uid: node.metadata.uid?,
            ..OwnerReference::default()
        })
    });
    ObjectMeta {
        name: Some(config.node_name.clone()),
        namespace: Some(NAMESPACE.into()),
        owner_references: owner.map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}
