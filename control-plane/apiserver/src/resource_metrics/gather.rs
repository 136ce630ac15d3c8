//! Asking kubelets for their figures: all nodes at once, each at most every few seconds however many ask. A node that
//! does not answer is left out; its silence delays the others by no more than the time limit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corten_meta::{Object, Status, Value};
use futures::StreamExt;

use crate::proxy::{self, Kubelets};

/// How long an answer is good for: a third of the period at which autoscalers ask.
const AGE: Duration = Duration::from_secs(5);
/// How long a kubelet may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How many kubelets are asked at the same time.
const AT_ONCE: usize = 32;
/// No summary of a node is larger.
const MOST_BYTES: usize = 64 << 20;
const PATH: &str = "/stats/summary?only_cpu_and_memory=true";

/// The last answer of every node.
pub struct Gatherer {
    kubelets: Arc<Kubelets>,
    answers: Mutex<BTreeMap<String, (Instant, Arc<Value>)>>,
}

impl Gatherer {
    pub fn new(kubelets: Arc<Kubelets>) -> Gatherer {
        Gatherer { kubelets, answers: Mutex::default() }
    }

    /// The summaries of these nodes, by name.
    pub async fn summaries(&self, nodes: &[Arc<Object>]) -> BTreeMap<String, Arc<Value>> {
        let fetched = futures::stream::iter(nodes.iter().cloned())
            .map(|node| async move {
                let summary = self.summary(&node).await;
                (node.header.name.clone(), summary)
            })
            .buffer_unordered(AT_ONCE);
        let found: BTreeMap<String, Arc<Value>> =
            fetched.filter_map(|(name, summary)| async move { Some((name, summary?)) }).collect().await;
        self.forget_old();
        found
    }

    async fn summary(&self, node: &Object) -> Option<Arc<Value>> {
        if let Some(known) = self.fresh(&node.header.name) {
            return Some(known);
        }
        match tokio::time::timeout(LIMIT, fetch(&self.kubelets, node)).await {
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
        self.lock().get(node).filter(|(at, _)| at.elapsed() < AGE).map(|(_, summary)| Arc::clone(summary))
    }

    /// Nodes come and go.
    fn forget_old(&self) {
        self.lock().retain(|_, (at, _)| at.elapsed() < AGE);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, (Instant, Arc<Value>)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn fetch(kubelets: &Kubelets, node: &Object) -> Result<Value, Status> {
    let bytes = proxy::fetch_from_kubelet(kubelets, &node.value(), PATH, MOST_BYTES).await?;
    serde_json::from_slice(&bytes).map_err(|e| Status::internal(format!("the summary is not JSON: {e}")))
}
