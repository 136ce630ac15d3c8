//! The settings of the embedded engine, with their defaults in one place, and its clock.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The settings of an embedded store.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory that holds the store and nothing else. It is made if it does not exist.
    pub dir: PathBuf,
    /// The size of a log segment. A segment is zero-filled before use, so that a commit changes no
    /// file metadata and its sync stays cheap.
    pub segment_bytes: u64,
    /// A checkpoint is written after this much log, or after as much log as the last checkpoint is
    /// big if that is more: writes cost at most about twice their bytes, and space stays bounded.
    pub checkpoint_bytes: u64,
    /// How much history is kept without being asked.
    pub retain: Retain,
    /// How many batches a watcher may lag behind before it is ended.
    pub watch_buffer: usize,
    /// How many requests may wait for the committer; further writers wait for their turn.
    pub queue: usize,
    /// The time by which leases end and history ages.
    pub clock: Arc<dyn Clock>,
}

impl Config {
    /// The defaults, for a store in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Config {
        Config {
            dir: dir.into(),
            segment_bytes: 16 << 20,
            checkpoint_bytes: 32 << 20,
            retain: Retain::default(),
            watch_buffer: 10_000,
            queue: 1024,
            clock: Arc::new(MonotonicClock::default()),
        }
    }
}

/// The history that is kept: what exceeds any of the bounds is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retain {
    /// The most revisions.
    pub revisions: u64,
    /// History may take half as many bytes as the values that are current, so that what is gone never takes more than
    /// what is there; but at least this many,
    pub least_bytes: u64,
    /// and never more than this.
    pub most_bytes: u64,
    /// The age, as upstream's API server has it compact etcd every five minutes.
    pub time: Duration,
}

impl Default for Retain {
    fn default() -> Retain {
        Retain { revisions: 100_000, least_bytes: 2 << 20, most_bytes: 32 << 20, time: Duration::from_secs(300) }
    }
}

/// A monotonic time. It is an argument, so that a test can move it; after moving it by hand,
/// [`Embedded::tick`](super::Embedded::tick) makes the store look.
pub trait Clock: std::fmt::Debug + Send + Sync + 'static {
    /// The time since some fixed origin.
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
