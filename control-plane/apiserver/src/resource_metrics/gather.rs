//! Fetches the stats summaries of kubelets: of all nodes concurrently, each at most every few seconds for any number of
//! requests. A node that does not answer is left out; it delays the others by no more than the timeout.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corten_meta::{Object, Status, Value};
use futures::StreamExt;

use crate::proxy::{self, Kubelets};

/// The lifetime of a summary: a third of the period of autoscalers.
const LIFETIME: Duration = Duration::from_secs(5);
/// The timeout of a kubelet.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of concurrent requests to kubelets.
const MAX_CONCURRENT: usize = 32;
/// The maximum size of a node's summary.
const MAX_BYTES: usize = 64 << 20;
const PATH: &str = "/stats/summary?only_cpu_and_memory=true";

/// The cached summaries of all nodes.
pub struct Gatherer {
    kubelets: Arc<Kubelets>,
    answers: Mutex<BTreeMap<String, (Instant, Arc<Value>)>>,
}

impl Gatherer {
    pub fn new(kubelets: Arc<Kubelets>) -> Gatherer {
        Gatherer { kubelets, answers: Mutex::default() }
    }

    /// Returns the summaries of these nodes, by name.
    pub async fn summaries(&self, nodes: &[Arc<Object>]) -> BTreeMap<String, Arc<Value>> {
        let fetched = futures::stream::iter(nodes.iter().cloned())
            .map(|node| async move {
                let summary = self.summary(&node).await;
                (node.header.name.clone(), summary)
            })
            .buffer_unordered(MAX_CONCURRENT);
        let found: BTreeMap<String, Arc<Value>> =
            fetched.filter_map(|(name, summary)| async move { Some((name, summary?)) }).collect().await;
        self.remove_old();
        found
    }

    async fn summary(&self, node: &Object) -> Option<Arc<Value>> {
        if let Some(known) = self.fresh(&node.header.name) {
            return Some(known);
        }
        match tokio::time::timeout(TIMEOUT, fetch(&self.kubelets, node)).await {
            Ok(Ok(summary)) => {
                let summary = Arc::new(summary);
                self.lock().insert(node.header.name.clone(), (Instant::now(), Arc::clone(&summary)));
                Some(summary)
            }
            Ok(Err(status)) => {
                tracing::debug!(node = node.header.name, message = status.message, "a kubelet gave no figures");
                None
            }
            Err(_) => {
                tracing::debug!(node = node.header.name, "a kubelet took too long to give its figures");
                None
            }
        }
    }

    fn fresh(&self, node: &str) -> Option<Arc<Value>> {
        self.lock().get(node).filter(|(at, _)| at.elapsed() < LIFETIME).map(|(_, summary)| Arc::clone(summary))
    }

    /// Removes old summaries, because nodes are added and removed.
    fn remove_old(&self) {
        self.lock().retain(|_, (at, _)| at.elapsed() < LIFETIME);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, (Instant, Arc<Value>)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn fetch(kubelets: &Kubelets, node: &Object) -> Result<Value, Status> {
    let bytes = proxy::fetch_from_kubelet(kubelets, &node.value(), PATH, MAX_BYTES).await?;
    serde_json::from_slice(&bytes).map_err(|e| Status::internal(format!("the summary is not JSON: {e}")))
}
