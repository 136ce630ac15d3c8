//! The server's own address, announced to the nodes: it calls their kubelets, which see where it calls from.
//!
//! A node knows its API servers by their addresses. A server that comes back with another address is not found by nodes
//! that know only the old one; but it knows where they are, and its certificate proves who calls.

use std::time::Duration;

use anyhow::Result;
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_client::Caches;
use corten_meta::Value;
use futures::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::node_object::is_ready;

/// The time between two rounds of calls.
const INTERVAL: Duration = Duration::from_secs(5);
/// The rounds after a start in which every node is called; later only those that are not Ready.
const FIRST_ROUNDS: u32 = 10;
/// The longest time for one call.
const TIMEOUT: Duration = Duration::from_secs(4);
/// The calls at once.
const AT_ONCE: usize = 16;

/// Calls the kubelets of other nodes until the shutdown.
pub async fn run(caches: Caches, own: String, shutdown: CancellationToken) -> Result<()> {
    let nodes = caches.of::<Node>();
    let mut round: u32 = 0;
    loop {
        let known: Vec<Value> = nodes.all().iter().map(|node| node.value()).collect();
        let called = known.iter().filter(|node| round < FIRST_ROUNDS || !is_ready(node));
        let names = called.map(|node| corten_meta::name(node).to_owned()).filter(|name| *name != own);
        let calls = futures::stream::iter(names).for_each_concurrent(AT_ONCE, |name| {
            let client = caches.client().clone();
            async move {
                let path = format!("/api/v1/nodes/{name}/proxy/healthz");
                // The call is all that matters: a node that is off answers nothing.
                let _ = tokio::time::timeout(TIMEOUT, client.get_raw(&path)).await;
            }
        });
        tokio::select! {
            () = calls => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        round = round.saturating_add(1);
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}
