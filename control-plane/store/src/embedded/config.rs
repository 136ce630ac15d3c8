//! The settings of the embedded engine with their defaults, and its clock.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The settings of an embedded store.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory of the store, which holds nothing else. It is made if it does not exist.
    pub dir: PathBuf,
    /// The size of a log segment. A segment is zero-filled before use, so that a commit changes no file metadata and
    /// its sync stays cheap.
    pub segment_bytes: u64,
    /// The size of the log after which a checkpoint is written, or the size of the last checkpoint if that is more:
    /// writes cost at most about twice their bytes, and space stays bounded.
    pub checkpoint_bytes: u64,
    /// The bounds of the history.
    pub retain: Retain,
    /// The number of batches that a watcher may lag behind before it is ended.
    pub watch_buffer: usize,
    /// The number of requests that may wait for the committer; further writers wait for capacity.
    pub queue: usize,
    /// The clock by which leases expire and history ages.
    pub clock: Arc<dyn Clock>,
    pub committer: CommitterPlace,
}

/// The place where the committer runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitterPlace {
    /// A thread of its own.
    #[default]
    Thread,
    /// A task of the runtime that opens the store: in a simulation, one thread decides the order of everything. A store
    /// that is dropped ends as by `kill -9`.
    Task,
}

impl Config {
    /// Returns the defaults, for a store in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Config {
        Config {
            dir: dir.into(),
            segment_bytes: 16 << 20,
            checkpoint_bytes: 32 << 20,
            retain: Retain::default(),
            watch_buffer: 10_000,
            queue: 1024,
            clock: Arc::new(MonotonicClock::default()),
            committer: CommitterPlace::default(),
        }
    }
}

/// The bounds of the history: history that exceeds any of them is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retain {
    /// The most revisions.
    pub revisions: u64,
    /// The least bytes that history may take. It may take half as many bytes as the current values, so that deleted
    /// data never takes more than existing data,
    pub least_bytes: u64,
    /// and never more than this.
    pub most_bytes: u64,
    /// The age. Upstream's API server compacts etcd every five minutes.
    pub time: Duration,
}

impl Default for Retain {
    fn default() -> Retain {
        Retain { revisions: 100_000, least_bytes: 2 << 20, most_bytes: 32 << 20, time: Duration::from_secs(300) }
    }
}

/// A monotonic clock. It is an argument, so that a test can move it; after that,
/// [`Embedded::tick`](super::Embedded::tick) makes the store check it.
pub trait Clock: std::fmt::Debug + Send + Sync + 'static {
    /// Returns the time since some fixed origin.
    fn now(&self) -> Duration;
}

/// The machine's monotonic clock.
#[derive(Debug)]
pub struct MonotonicClock {
    origin: Instant,
}

impl Default for MonotonicClock {
    fn default() -> MonotonicClock {
        MonotonicClock { origin: Instant::now() }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}
