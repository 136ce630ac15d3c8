//! The frame of all loops: changes become keys, keys are worked on one at a time each, failures are tried again with
//! growing pauses.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use corten_client::{Cache, Change, WorkQueue};
use corten_meta::Key;
use futures::future::BoxFuture;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::world::World;

/// The first and the longest pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The result of the work on one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There is nothing to do until an object changes.
    Done,
    /// The work failed, and is tried again after a pause that grows.
    Retry,
    /// The object is worked on again after a while.
    After(Duration),
}

impl From<Result<(), corten_client::Error>> for Next {
    /// A conflict or a missing object is no failure of note: the cache shows the change soon.
    fn from(written: Result<(), corten_client::Error>) -> Next {
        match written {
            Ok(()) => Next::Done,
            Err(error) => {
                tracing::debug!(%error, "cannot write an object");
                Next::Retry
            }
        }
    }
}

/// Returns the keys that a change of an object concerns.
type Keys = Box<dyn Fn(&Change) -> Vec<Key> + Send + Sync>;

/// A kind that a loop watches, and the keys that a change of an object concerns.
pub struct Watch {
    pub cache: Arc<Cache>,
    pub keys: Keys,
}

impl Watch {
    /// Watches the kind of the loop's keys.
    pub fn own(cache: Arc<Cache>) -> Watch {
        Watch { cache, keys: Box::new(|change| vec![change.key.clone()]) }
    }

    /// Watches a kind that the loop only reads.
    pub fn read(cache: Arc<Cache>) -> Watch {
        Watch { cache, keys: Box::new(|_| Vec::new()) }
    }
}

/// A loop over the objects of one kind.
pub trait Loop: Send + Sync + 'static {
    fn name(&self) -> &'static str;
    fn watches(&self) -> Vec<Watch>;
    /// Works on one object: reads it from the caches, decides, calls the driver, and writes the result.
    fn work<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Next>;
}

/// Runs a loop until shutdown. Calls in flight are awaited: they have deadlines.
pub async fn run(one: Arc<dyn Loop>, world: Arc<World>, shutdown: CancellationToken) {
    let queue: WorkQueue<Key> = WorkQueue::new();
    let watches = one.watches();
    for watch in &watches {
        if shutdown.run_until_cancelled(watch.cache.synced()).await.is_none() {
            return;
        }
    }
    let mut tasks = JoinSet::new();
    for watch in watches {
        tasks.spawn(follow(watch, queue.clone(), shutdown.clone()));
    }
    let failures: Arc<Mutex<HashMap<Key, u32>>> = Arc::default();
    for _ in 0..world.options.workers.max(1) {
        tasks.spawn(work(one.clone(), queue.clone(), failures.clone(), shutdown.clone()));
    }
    shutdown.cancelled().await;
    queue.shut_down();
    while tasks.join_next().await.is_some() {}
}

async fn follow(watch: Watch, queue: WorkQueue<Key>, shutdown: CancellationToken) {
    let mut changes = watch.cache.subscribe();
    while let Some(Some(change)) = shutdown.run_until_cancelled(changes.next()).await {
        for change in change.steps() {
            (watch.keys)(&change).into_iter().for_each(|key| queue.add(key));
        }
    }
}

async fn work(
    one: Arc<dyn Loop>,
    queue: WorkQueue<Key>,
    failures: Arc<Mutex<HashMap<Key, u32>>>,
    shutdown: CancellationToken,
) {
    while let Some(key) = queue.get().await {
        if shutdown.is_cancelled() {
            return;
        }
        let next = one.work(&key).await;
        {
            let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
            match next {
                Next::Done => {
                    failures.remove(&key);
                }
                Next::After(pause) => {
                    failures.remove(&key);
                    queue.add_after(key.clone(), pause);
                }
                Next::Retry => {
                    let count = failures.entry(key.clone()).or_insert(0);
                    queue.add_after(key.clone(), pause(*count));
                    *count = count.saturating_add(1);
                }
            }
        }
        tracing::debug!(name = one.name(), %key, ?next, "worked on an object");
        queue.done(&key);
    }
}

fn pause(failures: u32) -> Duration {
    FIRST_PAUSE.checked_mul(1 << failures.min(16)).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
}
