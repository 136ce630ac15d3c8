//! A control plane without a node, in one process: for simulated nodes.

use std::sync::Arc;

use anyhow::{Context, Result};
use tokio_util::sync::CancellationToken;

use super::server_metrics::ServerMetrics;
use super::{access, apiserver, control};
use crate::config::Cluster;
use crate::pki::live;
use crate::supervision;
use crate::tasks::Tasks;

/// Runs the API server with its store, the controllers and the scheduler.
pub async fn run(cluster: Cluster, shutdown: CancellationToken) -> Result<()> {
    // The API server ends last: its clients still write at their end.
    let mut foundation = Tasks::new(CancellationToken::new());
    let authorities = live::follow(&cluster.node.directories.pki(), cluster.leaf_lifetime, &mut foundation)?;
    let stores = apiserver::open_stores(&cluster, None, &mut foundation).await?;
    let api = Arc::new(apiserver::start(&cluster, &authorities, stores, false, &mut foundation).await?);
    let admin = api.client("system:admin", &["system:masters"]);
    access::grant(&admin).await.context("the roles of the node's components cannot be applied")?;
    let mut clients = Tasks::new(shutdown);
    control::start(
        &cluster,
        &authorities,
        &api,
        &Arc::new(ServerMetrics::new(cluster.node.directories.clone())),
        &mut clients,
    )?;
    supervision::notify("READY=1");
    let ended = foundation.shutdown();
    let outcome = tokio::select! {
        outcome = clients.run() => outcome,
        failed = foundation.failed() => failed,
    };
    ended.cancel();
    foundation.run().await?;
    outcome
}
