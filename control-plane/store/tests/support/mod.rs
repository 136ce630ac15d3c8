//! The shared parts of the store's tests: a manual clock, small settings, seeded random numbers.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod etcd;
pub mod writers;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use corten_store::{Clock, Config, Op, Outcome, Retain, Revision, Store};

/// Bounds that keep all history.
pub const ALL: Retain =
    Retain { revisions: u64::MAX, least_bytes: u64::MAX, most_bytes: u64::MAX, time: Duration::from_secs(1 << 40) };

#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// Returns settings with segments and checkpoints so small that a test makes many of them.
pub fn small(dir: &Path, clock: &Arc<ManualClock>) -> Config {
    Config { segment_bytes: 4 << 10, checkpoint_bytes: 12 << 10, retain: ALL, clock: clock.clone(), ..Config::new(dir) }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Commits, and expects success.
pub async fn commit(store: &(impl Store + ?Sized), ops: Vec<Op>) -> Revision {
    match store.commit(ops).await.unwrap() {
        Outcome::Committed { revision, .. } => revision,
        conflict => panic!("unexpected {conflict:?}"),
    }
}

/// Returns the bytes that the files of a directory take.
pub fn size_of(dir: &Path) -> u64 {
    std::fs::read_dir(dir).unwrap().filter_map(|entry| entry.unwrap().metadata().ok()).map(|file| file.len()).sum()
}

/// Repeatable random numbers: splitmix64.
#[derive(Debug)]
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
