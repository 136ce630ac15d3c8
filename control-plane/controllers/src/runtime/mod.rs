//! The runtime of all controllers: watch, queue, reconcile, apply, wait for the echo.
//!
//! A controller only decides ([`Controller`]); everything with an effect is here. The path of a change: a cache
//! notifies [`informer`], which maps the change to keys; [`worker`] takes a key, lets the controller decide and passes
//! the plan to [`apply`]; the key is reconciled again only when the caches show the writes.

mod apply;
mod controller;
mod count;
pub mod discovery;
mod informer;
pub mod memory;
pub mod monitors;
mod plan;
mod rows;
mod scale;
mod view;
mod worker;
pub mod workqueue;

/// The current time: the wall clock, or the clock of a simulation.
#[cfg(test)]
pub use crate::tests::simulation::now;
pub use apply::Applier;
pub use controller::{Controller, Decide, Keys, Watch};
#[cfg(not(test))]
pub use corten_meta::time::now;
pub use count::{Count, Counter, Label, RESULT};
pub use memory::Memory;
pub use plan::{Action, Event, Plan, Reference, Report, ResourceType, key_of};
pub use rows::{NodeFacts, NodeRow, PodRow};
pub use scale::{ScaleAnswer, ScaleQuestion};
pub use view::{Failure, View, claim_of_volume, decode, is_unready, mentions, node_of_pod, selector_of_service};

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_client::{Caches, Client, Metrics, WorkQueue};
use corten_meta::Key;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use informer::{EventHandler, Informer};

/// Returns the client of an identity, by the name of its service account in kube-system. The binary provides it.
pub type Clients = Arc<dyn Fn(&str) -> Client + Send + Sync>;

/// Runs the controllers until shutdown, each with its queue. Their caches are shared and filled under the identity of
/// `caches`.
pub async fn run(
    controllers: Vec<(WorkQueue<Key>, Arc<dyn Decide>)>,
    caches: &Caches,
    clients: &Clients,
    metrics: &Metrics,
    shutdown: CancellationToken,
) {
    let mut handlers: BTreeMap<ResourceType, Vec<EventHandler>> = BTreeMap::new();
    for (queue, controller) in &controllers {
        for watch in controller.watches() {
            handlers.entry(watch.resource).or_default().push(EventHandler { queue: queue.clone(), keys: watch.keys });
        }
    }
    let queues: Vec<WorkQueue<Key>> = controllers.iter().map(|(queue, _)| queue.clone()).collect();
    let informers = Arc::new(informer::open(caches, handlers, metrics).await);

    let mut tasks = JoinSet::new();
    for informer in informers.values().cloned() {
        tasks.spawn(informer::dispatch(informer, informers.clone()));
    }
    for (queue, controller) in controllers {
        let applier = Applier::new(clients(controller.name()), controller.component(), shutdown.clone());
        let counter = count::Counter::new(metrics.clone());
        let seen = (informers.clone(), caches.client().clone());
        let worker = worker::Worker::new(controller, queue, applier, seen, counter, shutdown.clone());
        for _ in 0..worker.count() {
            tasks.spawn(worker.clone().run());
        }
    }
    shutdown.cancelled().await;
    queues.iter().for_each(WorkQueue::shut_down);
    while tasks.join_next().await.is_some() {}
}

/// Informers without workers: keys are reconciled, and no plan is applied.
pub struct DryRun(Informers);

impl DryRun {
    pub async fn open(controllers: &[Arc<dyn Decide>], caches: &Caches) -> DryRun {
        let mut handlers: BTreeMap<ResourceType, Vec<EventHandler>> = BTreeMap::new();
        for watch in controllers.iter().flat_map(|controller| controller.watches()) {
            handlers.entry(watch.resource).or_default();
        }
        let informers = Arc::new(informer::open(caches, handlers, &Metrics::default()).await);
        DryRun(informers)
    }

    /// Reconciles a key as a worker does, with the memory of earlier reconciles.
    pub fn reconcile(&self, controller: &dyn Decide, memory: &Memory, key: &Key) -> Plan {
        memory.reconcile(controller, &self.0, None, key).1
    }
}

/// The informers of all watched resources.
type Informers = Arc<BTreeMap<ResourceType, Arc<Informer>>>;
