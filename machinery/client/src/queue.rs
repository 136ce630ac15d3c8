//! The work queue of a controller: a key that is added twice before it is taken is processed once, a key that is added
//! while it is processed is processed again afterwards, and never by two workers at a time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::{Gauges, Metrics, QueueSeries};

/// The delay of the first retry of a key; it doubles with every further one.
const FIRST_RETRY: Duration = Duration::from_millis(5);
/// The longest delay of a retry.
const LAST_RETRY: Duration = Duration::from_secs(1000);
/// The longest delay of [`WorkQueue::add_after`], so that no time overflows.
const LONGEST_DELAY: Duration = Duration::from_secs(30 * 24 * 3600);

/// A queue of keys. Cloning shares it.
pub struct WorkQueue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    /// The metrics of the queue.
    series: QueueSeries,
}

impl<K: Send> Gauges for Shared<K> {
    fn depth(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).dirty.len()
    }

    fn in_work(&self) -> Vec<Duration> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        state.processing.values().map(|since| now.saturating_duration_since(*since)).collect()
    }
}

struct State<K> {
    ready: VecDeque<K>,
    /// The keys to process and the times since when: in `ready`, or added while being processed.
    dirty: HashMap<K, Instant>,
    /// The keys in processing and the times since when.
    processing: HashMap<K, Instant>,
    /// The keys that become ready later, by time; the number keeps the order of equal times.
    delayed: BinaryHeap<Reverse<Delayed<K>>>,
    /// The time that counts for a delayed key: the earliest.
    due: HashMap<K, Instant>,
    failures: HashMap<K, u32>,
    sequence: u64,
    shut_down: bool,
}

struct Delayed<K> {
    at: Instant,
    sequence: u64,
    key: K,
}

impl<K> PartialEq for Delayed<K> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}
impl<K> Eq for Delayed<K> {}
impl<K> PartialOrd for Delayed<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Delayed<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        WorkQueue { shared: self.shared.clone() }
    }
}

impl<K: Clone + Eq + Hash> Default for WorkQueue<K> {
    fn default() -> Self {
        WorkQueue::new()
    }
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    /// Makes a queue without metrics.
    pub fn new() -> Self {
        WorkQueue::counting(Metrics::default().queue(""))
    }

    fn counting(series: QueueSeries) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashMap::new(),
            processing: HashMap::new(),
            delayed: BinaryHeap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            sequence: 0,
            shut_down: false,
        };
        WorkQueue { shared: Arc::new(Shared { state: Mutex::new(state), changed: Notify::new(), series }) }
    }

    /// Makes a queue whose metrics have this name.
    pub fn named(metrics: &Metrics, name: &'static str) -> Self
    where
        K: Send + 'static,
    {
        let queue = WorkQueue::counting(metrics.queue(name));
        let shared: Arc<dyn Gauges> = queue.shared.clone();
        metrics.ask(name, Arc::downgrade(&shared));
        queue
    }

    /// Adds a key.
    pub fn add(&self, key: K) {
        if self.lock().add(key, &self.shared.series) {
            self.shared.changed.notify_one();
        }
    }

    /// Adds a key after a delay. Of several delays the earliest counts. Delays often come from user input, such as
    /// `activeDeadlineSeconds`: a key with a delay of more than a month is processed after a month.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.lock().delay(key, Instant::now() + delay.min(LONGEST_DELAY));
        // Every waiter must learn of the new time: a single one that is woken might take another key.
        self.shared.changed.notify_waiters();
    }

    /// Adds a key after its backoff: 5 ms, doubling with every call until [`WorkQueue::forget`], at most 1000 s.
    pub fn add_rate_limited(&self, key: K) {
        let failures = {
            let mut state = self.lock();
            let failures = state.failures.entry(key.clone()).or_insert(0);
            *failures += 1;
            *failures - 1
        };
        self.shared.series.retries.add(1.0);
        let delay = 1u32.checked_shl(failures).and_then(|factor| FIRST_RETRY.checked_mul(factor));
        self.add_after(key, delay.unwrap_or(LAST_RETRY).min(LAST_RETRY));
    }

    /// Resets the backoff of a key that succeeded.
    pub fn forget(&self, key: &K) {
        self.lock().failures.remove(key);
    }

    /// Returns the number of rate limited additions of a key since it was forgotten.
    pub fn retries(&self, key: &K) -> u32 {
        self.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Returns the next key, which the caller must give back with [`WorkQueue::done`]. `None` after shut down, when no
    /// key is ready any more.
    pub async fn get(&self) -> Option<K> {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let next_due = {
                let mut state = self.lock();
                let now = Instant::now();
                state.promote(now, &self.shared.series);
                if let Some(key) = state.take(now, &self.shared.series) {
                    if !state.ready.is_empty() {
                        self.shared.changed.notify_one();
                    }
                    return Some(key);
                }
                if state.shut_down {
                    return None;
                }
                state.delayed.peek().map(|Reverse(delayed)| delayed.at)
            };
            match next_due {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, changed).await;
                }
                None => changed.await,
            }
        }
    }

    /// Marks a key as processed; if it was added in the meantime, it becomes ready again.
    pub fn done(&self, key: &K) {
        if self.lock().done(key, &self.shared.series) {
            self.shared.changed.notify_one();
        }
    }

    /// Shuts the queue down: it accepts no more keys and still hands out the ready ones.
    pub fn shut_down(&self) {
        let mut state = self.lock();
        state.shut_down = true;
        state.delayed.clear();
        state.due.clear();
        drop(state);
        self.shared.changed.notify_waiters();
        self.shared.changed.notify_one();
    }

    /// Returns the number of ready keys.
    pub fn len(&self) -> usize {
        self.lock().ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    /// Adds a key and reports whether it became ready now.
    fn add(&mut self, key: K, series: &QueueSeries) -> bool {
        if self.shut_down || self.dirty.contains_key(&key) {
            return false;
        }
        self.dirty.insert(key.clone(), Instant::now());
        series.adds.add(1.0);
        if self.processing.contains_key(&key) {
            return false;
        }
        self.ready.push_back(key);
        true
    }

    fn delay(&mut self, key: K, at: Instant) {
        if self.shut_down || self.due.get(&key).is_some_and(|due| *due <= at) {
            return;
        }
        self.due.insert(key.clone(), at);
        self.sequence += 1;
        self.delayed.push(Reverse(Delayed { at, sequence: self.sequence, key }));
    }

    /// Makes the due keys ready. Drops an entry that an earlier one replaced.
    fn promote(&mut self, now: Instant, series: &QueueSeries) {
        while self.delayed.peek().is_some_and(|Reverse(delayed)| delayed.at <= now) {
            let Some(Reverse(Delayed { at, key, .. })) = self.delayed.pop() else { return };
            if self.due.get(&key) == Some(&at) {
                self.due.remove(&key);
                self.add(key, series);
            }
        }
    }

    fn take(&mut self, now: Instant, series: &QueueSeries) -> Option<K> {
        let key = self.ready.pop_front()?;
        if let Some(since) = self.dirty.remove(&key) {
            series.waited(now.saturating_duration_since(since));
        }
        self.processing.insert(key.clone(), now);
        Some(key)
    }

    fn done(&mut self, key: &K, series: &QueueSeries) -> bool {
        if let Some(since) = self.processing.remove(key) {
            series.worked(since.elapsed());
        }
        if !self.dirty.contains_key(key) {
            return false;
        }
        self.ready.push_back(key.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn elapsed_until_get(queue: &WorkQueue<&'static str>) -> Duration {
        let start = Instant::now();
        let key = queue.get().await.unwrap();
        queue.done(&key);
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once_and_is_never_processed_twice_at_a_time() {
        let queue = WorkQueue::new();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.get().await, Some("a"));
        queue.add("a");
        assert_eq!(queue.get().await, Some("b"));
        assert_eq!(queue.len(), 0, "a is being processed");
        queue.done(&"a");
        assert_eq!(queue.get().await, Some("a"));
        queue.done(&"a");
        queue.done(&"b");
        queue.shut_down();
        assert_eq!(queue.get().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn backoff_doubles_and_is_forgotten() {
        let queue = WorkQueue::new();
        for expected in [5, 10, 20, 40] {
            queue.add_rate_limited("a");
            assert_eq!(elapsed_until_get(&queue).await, Duration::from_millis(expected));
        }
        assert_eq!(queue.retries(&"a"), 4);
        queue.forget(&"a");
        queue.add_rate_limited("a");
        assert_eq!(elapsed_until_get(&queue).await, Duration::from_millis(5));
        for _ in 0..40 {
            queue.add_rate_limited("b");
        }
        queue.add_rate_limited("c");
        assert_eq!(elapsed_until_get(&queue).await, Duration::from_millis(5));
        // The earliest of the forty delays counts.
        queue.get().await.unwrap();
        queue.done(&"b");
        queue.add_rate_limited("b");
        assert_eq!(elapsed_until_get(&queue).await, LAST_RETRY);
    }

    #[tokio::test(start_paused = true)]
    async fn a_huge_delay_is_capped() {
        let queue = WorkQueue::new();
        queue.add_after("a", Duration::MAX);
        queue.add_after("b", Duration::from_secs(i64::MAX.unsigned_abs()));
        assert_eq!(elapsed_until_get(&queue).await, LONGEST_DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_delay_counts() {
        let queue = WorkQueue::new();
        queue.add_after("a", Duration::from_secs(10));
        queue.add_after("a", Duration::from_secs(2));
        queue.add_after("a", Duration::from_secs(5));
        assert_eq!(elapsed_until_get(&queue).await, Duration::from_secs(2));
        let quiet = tokio::time::timeout(Duration::from_secs(60), queue.get()).await;
        assert!(quiet.is_err(), "the later wishes are void");
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_worker_does_not_block_delayed_keys() {
        let queue = WorkQueue::new();
        let idle = tokio::spawn({
            let queue = queue.clone();
            async move {
                let first = queue.get().await;
                let second = queue.get().await;
                (first, second)
            }
        });
        let other = tokio::spawn({
            let queue = queue.clone();
            async move { queue.get().await }
        });
        tokio::task::yield_now().await;
        queue.add_after("later", Duration::from_secs(3));
        queue.add("now");
        queue.add_after("latest", Duration::from_secs(4));
        let start = Instant::now();
        let idle = idle.await.unwrap();
        let other = other.await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(4));
        let mut all = vec![idle.0, idle.1, other];
        all.sort();
        assert_eq!(all, [Some("later"), Some("latest"), Some("now")]);
    }

    #[tokio::test(start_paused = true)]
    async fn shut_down_hands_out_ready_keys() {
        let queue = WorkQueue::new();
        queue.add("a");
        queue.add_after("b", Duration::from_secs(1));
        queue.shut_down();
        queue.add("c");
        assert_eq!(queue.get().await, Some("a"));
        assert_eq!(queue.get().await, None);
    }
}
