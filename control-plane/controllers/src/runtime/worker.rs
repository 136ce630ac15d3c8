//! Takes a key, decides, applies, and keeps the key until the caches have seen what was written.
//!
//! Invariant: a controller never decides about a key on a view older than its own last write for that key, also one
//! whose answer got lost. That is what keeps a stale cache from making it create everything twice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corten_client::WorkQueue;
use corten_meta::Key;
use tokio_util::sync::CancellationToken;

use super::Feeds;
use super::apply::{Applied, Applier, Echo};
use super::controller::Decide;
use super::count::Counter;
use super::feed::CachedView;
use super::plan::ResourceType;
use super::view::{Failure, View};

/// An echo that takes longer was lost in a new list of the cache; a conflict will tell if the view is still stale.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct Worker {
    controller: Arc<dyn Decide>,
    queue: WorkQueue<Key>,
    applier: Applier,
    feeds: Feeds,
    failures: Arc<Mutex<HashMap<Key, Failure>>>,
    /// Keys for which something may have been written that no answer told of, and where.
    unsure: Arc<Mutex<HashMap<Key, ResourceType>>>,
    counter: Arc<Counter>,
    shutdown: CancellationToken,
}

impl Worker {
    pub fn new(
        controller: Arc<dyn Decide>,
        queue: WorkQueue<Key>,
        applier: Applier,
        feeds: Feeds,
        counter: Counter,
        shutdown: CancellationToken,
    ) -> Worker {
        let (failures, unsure, counter) = (Arc::default(), Arc::default(), Arc::new(counter));
        Worker { controller, queue, applier, feeds, failures, unsure, counter, shutdown }
    }

    /// How many of them the controller wants.
    pub fn count(&self) -> usize {
        self.controller.workers()
    }

    /// Until shutdown, and not a key longer: whoever leads next is waiting.
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
        if !self.is_sure(key).await {
            return self.queue.add_rate_limited(key.clone());
        }
        let began = Instant::now();
        let failure = self.failures.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        let mut view = CachedView::new(self.feeds.clone(), failure);
        let mut plan = self.controller.decide(&view, key, corten_meta::time::now());
        if plan.questions().next().is_some() {
            view.scales = self.applier.ask(&plan).await;
            plan = self.controller.decide(&view, key, corten_meta::time::now());
        }
        if let Some(after) = plan.requeue_after {
            self.queue.add_after(key.clone(), after);
        }
        if plan.is_empty() {
            self.counter.count(key, &plan.counts, true, began.elapsed());
            return self.succeeded(key);
        }
        let Applied { echoes, failure, unsure } = self.applier.apply(plan.actions).await;
        self.counter.count(key, &plan.counts, failure.is_none(), began.elapsed());
        if let Some(resource) = unsure {
            self.unsure.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), resource);
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
            let heard = tokio::time::timeout(ECHO_TIMEOUT, self.heard(&view, echo));
            if self.shutdown.run_until_cancelled(heard).await.is_none() {
                return;
            }
        }
    }

    /// Whether the view holds all that may have been written for the key. After a lost answer the server is asked how
    /// far it is, and the cache is waited for. Where keys are worked on one at a time, because what is decided for one
    /// depends on what was written for others, a doubt about one is a doubt about all.
    async fn is_sure(&self, key: &Key) -> bool {
        let alone = self.count() == 1;
        let doubts: Vec<(Key, ResourceType)> = {
            let unsure = self.unsure.lock().unwrap_or_else(PoisonError::into_inner);
            let concerned = unsure.iter().filter(|(of, _)| alone || *of == key);
            concerned.map(|(of, resource)| (of.clone(), *resource)).collect()
        };
        for (of, resource) in doubts {
            if let Some(feed) = self.feeds.get(&resource) {
                let Ok(revision) = self.applier.revision(resource, &of.namespace).await else { return false };
                let mut reached = feed.reached();
                // A cache that hears nothing more has nothing more to hear: what was written is told within the bound.
                let _ = tokio::time::timeout(ECHO_TIMEOUT, reached.wait_for(|so_far| *so_far >= revision)).await;
            }
            self.unsure.lock().unwrap_or_else(PoisonError::into_inner).remove(&of);
        }
        true
    }

    fn succeeded(&self, key: &Key) {
        self.queue.forget(key);
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Waits until the cache shows a write. A resource that the controller does not watch is not waited for.
    async fn heard(&self, view: &CachedView, echo: Echo) {
        let (Echo::Written { resource, .. } | Echo::Deleted { resource, .. }) = &echo;
        let Some(feed) = self.feeds.get(resource) else { return };
        let mut reached = feed.reached();
        loop {
            let so_far = *reached.borrow_and_update();
            if is_shown(view, &echo, so_far) || reached.changed().await.is_err() {
                return;
            }
        }
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
