//! Takes a key, reconciles, applies the plan, and keeps the key until the caches show the writes.
//!
//! Invariant: a controller never reconciles a key on a view older than its own last write for that key, also a write
//! whose response got lost. Otherwise a stale cache would make it create everything twice.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corten_client::{Client, WorkQueue};
use corten_meta::Key;
use tokio_util::sync::CancellationToken;

use super::Informers;
use super::apply::{Applied, Applier, Echo, newest};
use super::controller::Decide;
use super::count::Counter;
use super::informer::CachedView;
use super::memory::Memory;
use super::plan::ResourceType;
use super::view::{Failure, View};
use crate::metrics::skips_of;

/// The time after which a worker no longer waits for an echo, but asks the server before the next reconcile.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct Worker {
    controller: Arc<dyn Decide>,
    queue: WorkQueue<Key>,
    applier: Applier,
    informers: Informers,
    failures: Arc<Mutex<HashMap<Key, Failure>>>,
    memory: Arc<Memory>,
    /// Keys for which a write may have succeeded without a response, with its resource.
    unsure: Arc<Mutex<BTreeSet<(Key, ResourceType)>>>,
    /// Reads from the server under the identity that fills the caches: not every controller may list the resources it
    /// writes.
    reader: Client,
    counter: Arc<Counter>,
    shutdown: CancellationToken,
}

impl Worker {
    pub fn new(
        controller: Arc<dyn Decide>,
        queue: WorkQueue<Key>,
        applier: Applier,
        (informers, reader): (Informers, Client),
        counter: Counter,
        shutdown: CancellationToken,
    ) -> Worker {
        let (failures, memory, unsure, counter) = (Arc::default(), Arc::default(), Arc::default(), Arc::new(counter));
        Worker { controller, queue, applier, informers, failures, memory, unsure, reader, counter, shutdown }
    }

    /// Returns the number of workers that the controller wants.
    pub fn count(&self) -> usize {
        self.controller.workers()
    }

    /// Reconciles keys until shutdown, and starts no key after it: the next leader is waiting.
    pub async fn run(self) {
        while let Some(key) = self.queue.get().await {
            if self.shutdown.is_cancelled() {
                return;
            }
            self.work_on(&key).await;
            self.queue.done(&key);
        }
    }

    async fn work_on(&self, key: &Key) {
        if let Err(stale) = self.is_sure(key).await {
            if let Some(family) = skips_of(self.controller.name()) {
                self.counter.one(family, &[stale.group, stale.plural]);
            }
            return self.queue.add_rate_limited(key.clone());
        }
        let began = Instant::now();
        let failure = self.failures.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        let (mut view, mut plan) = self.memory.reconcile(&*self.controller, &self.informers, failure, key);
        if plan.questions().next().is_some() {
            view.scales = self.applier.ask(&plan).await;
            plan = self.controller.decide(&view, key, super::now());
        }
        if let Some(after) = plan.requeue_after {
            self.queue.add_after(key.clone(), after);
        }
        if plan.is_empty() {
            #[cfg(test)]
            if super::memory::tests::RESTLESS.get() {
                self.queue.add_after(key.clone(), Duration::from_secs(7));
            }
            self.counter.count(key, &plan.counts, true, began.elapsed());
            return self.succeeded(key);
        }
        let Applied { echoes, failure, unsure } = self.applier.apply(plan.actions).await;
        self.counter.count(key, &plan.counts, failure.is_none(), began.elapsed());
        if let Some(resource) = unsure {
            self.doubt(key, resource);
        }
        match failure {
            None => self.succeeded(key),
            Some((failure, error)) => {
                let expected = error.is_conflict() || error.is_already_exists() || error.is_not_found();
                if !expected {
                    tracing::debug!(controller = self.controller.name(), %key, %error, "cannot apply a plan");
                    self.failures.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), failure);
                }
                self.queue.add_rate_limited(key.clone());
            }
        }
        for echo in echoes {
            let resource = echo.resource();
            let heard = tokio::time::timeout(ECHO_TIMEOUT, self.heard(&view, echo));
            match self.shutdown.run_until_cancelled(heard).await {
                None => return,
                Some(Err(_)) => self.doubt(key, resource),
                Some(Ok(())) => {}
            }
        }
    }

    /// Notes that a write for the key may have succeeded that the cache does not show.
    fn doubt(&self, key: &Key, resource: ResourceType) {
        self.unsure.lock().unwrap_or_else(PoisonError::into_inner).insert((key.clone(), resource));
    }

    /// Waits until the view shows every write that may have succeeded for the key; fails with the resource that may be
    /// stale.
    ///
    /// After a lost response the worker asks the server for the newest revision and waits until the cache has reached
    /// it. If the cache does not, because its watch is broken, the key waits longer instead of being reconciled. A
    /// controller with one worker decides for one key on the writes for others, so for it a doubt about one key is a
    /// doubt about all.
    async fn is_sure(&self, key: &Key) -> Result<(), ResourceType> {
        let alone = self.count() == 1;
        let doubts: Vec<(Key, ResourceType)> = {
            let unsure = self.unsure.lock().unwrap_or_else(PoisonError::into_inner);
            unsure.iter().filter(|(of, _)| alone || of == key).cloned().collect()
        };
        for (of, resource) in doubts {
            if let Some(informer) = self.informers.get(&resource) {
                let Ok(newest) = newest(&self.reader, resource, &of.namespace).await else { return Err(resource) };
                let reached = informer.reached.until(|so_far| so_far >= newest);
                if tokio::time::timeout(ECHO_TIMEOUT, reached).await.is_err() {
                    return Err(resource);
                }
            }
            self.unsure.lock().unwrap_or_else(PoisonError::into_inner).remove(&(of, resource));
        }
        Ok(())
    }

    fn succeeded(&self, key: &Key) {
        self.queue.forget(key);
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Waits until the cache shows a write. Does not wait for a resource that the controller does not watch.
    async fn heard(&self, view: &CachedView, echo: Echo) {
        let Some(informer) = self.informers.get(&echo.resource()) else { return };
        informer.reached.until(|so_far| is_shown(view, &echo, so_far)).await;
    }
}

fn is_shown(view: &CachedView, echo: &Echo, reached: u64) -> bool {
    match echo {
        Echo::Written { resource, key, revision } => {
            reached >= *revision || view.get(*resource, key).is_some_and(|object| object.revision >= *revision)
        }
        Echo::Deleted { resource, key, uid } => {
            let present = view.get(*resource, key).filter(|object| object.header.uid == *uid);
            present.is_none_or(|object| object.header.deletion_timestamp.is_some())
        }
    }
}
