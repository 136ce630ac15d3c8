//! The work loop of the few controllers that need answers from outside the caches to reconcile, and therefore make no
//! plans.
//!
//! They are level-triggered like the others: a key names an object, never an event.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use corten_client::{Cache, Change, Error, WorkQueue};
use corten_meta::Key;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Adds the keys of a cache's changes to a queue, until shutdown.
pub async fn enqueue_changes(
    cache: Arc<Cache>,
    queue: WorkQueue<Key>,
    shutdown: CancellationToken,
    keys: impl Fn(&Change) -> Vec<Key>,
) {
    let mut changes = cache.subscribe();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            change = changes.next() => match change {
                Some(change) => change.steps().flat_map(|change| keys(&change)).for_each(|key| queue.add(key)),
                None => return,
            }
        }
    }
}

/// Reconciles the keys of a queue until shutdown. A reconcile may return a time after which the key is added again; a
/// failed key is added again with backoff.
pub async fn run_workers<F, Fut>(
    what: &'static str,
    queue: WorkQueue<Key>,
    workers: usize,
    shutdown: CancellationToken,
    handle: F,
) where
    F: Fn(Key) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<Duration>, Error>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        tasks.spawn(work(what, queue.clone(), handle.clone()));
    }
    shutdown.cancelled().await;
    queue.shut_down();
    while tasks.join_next().await.is_some() {}
}

async fn work<F, Fut>(what: &'static str, queue: WorkQueue<Key>, handle: F)
where
    F: Fn(Key) -> Fut + Send + Sync,
    Fut: Future<Output = Result<Option<Duration>, Error>> + Send + 'static,
{
    while let Some(key) = queue.get().await {
        match handle(key.clone()).await {
            Ok(again) => {
                queue.forget(&key);
                if let Some(wait) = again {
                    queue.add_after(key.clone(), wait);
                }
            }
            Err(error) => {
                tracing::debug!(controller = what, %key, %error, "not done yet");
                queue.add_rate_limited(key.clone());
            }
        }
        queue.done(&key);
    }
}
