//! Whether a node's proxy is needed: the cluster has a Gateway with a socket, or an Ingress.
//!
//! The leader gives each of them a Service with a label of its own, so one small watch is enough, and a cluster without
//! them has no process of the proxy on any node. A node without a process still has its Lease, which says that it serves
//! nothing: a Gateway is programmed only after every node has started its proxy.

use std::sync::Arc;
use std::time::Duration;

use corten_client::{Cache, Caches, Client, ListOptions};
use tokio_util::sync::CancellationToken;

use crate::data::Report;
use crate::resolve::OWNED_LABEL;
use crate::world::services;

/// The watch of the Services of Gateways and Ingresses.
pub struct Demand {
    node: String,
    client: Client,
    services: Arc<Cache>,
}

impl Demand {
    /// Opens the watch, which ends at shutdown.
    pub fn open(node: String, client: Client, shutdown: CancellationToken) -> Demand {
        let caches = Caches::new(client.clone(), shutdown);
        let services = caches.resource(&services(), "", ListOptions::labels(OWNED_LABEL.to_owned()));
        Demand { node, client, services }
    }

    /// Waits until the proxy is needed. Until then the Lease of the node says that it serves nothing.
    pub async fn begun(&self) {
        let idle = CancellationToken::new();
        let report = async {
            self.services.synced().await;
            if self.services.is_empty() {
                Report::of_nothing(self.node.clone(), self.client.clone()).renew(&idle).await;
            }
        };
        let begun = async {
            let mut changes = self.services.subscribe();
            while self.services.is_empty() && changes.next().await.is_some() {}
            idle.cancel();
        };
        // A write of the Lease that has begun is finished: it must not come after the first one of the proxy.
        tokio::join!(report, begun);
    }

    /// Waits until the proxy was not needed for a while.
    pub async fn ended(&self, patience: Duration) {
        let mut changes = self.services.subscribe();
        loop {
            let is_idle = self.services.is_synced() && self.services.is_empty();
            tokio::select! {
                () = tokio::time::sleep(patience), if is_idle => return,
                change = changes.next() => if change.is_none() { std::future::pending().await },
            }
        }
    }
}
