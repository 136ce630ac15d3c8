//! Events about the store's disk: little space, writes that fail, and their end.
//!
//! A full disk leaves the cluster readable: `/readyz` and the metrics of the API server say so, and writes work again
//! once there is space. Events are writes too, so that of a failure is written when it is over; the warning comes before.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use corten_client::{Client, EventRecorder, EventType, ObjectRef};
use corten_store::{Health, Store};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

/// The longest pause between two looks at the disk.
const INTERVAL: Duration = Duration::from_secs(5);
/// The free bytes below which the disk is nearly full.
const LOW_BYTES: u64 = 256 << 20;
/// The free bytes above which it no longer is: a file that comes and goes must not make an event each time.
const ENOUGH_BYTES: u64 = 2 * LOW_BYTES;

/// Records events about the node of this server until the shutdown.
pub async fn run(store: Arc<dyn Store>, client: Client, node: String, shutdown: CancellationToken) -> Result<()> {
    let recorder = EventRecorder::new(client, "corten", &node);
    // As the kubelet does, the node's name stands for its uid.
    let about = ObjectRef {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.clone(),
        uid: node,
        ..ObjectRef::default()
    };
    let mut health = store.follow_health();
    let mut seen = Seen::default();
    loop {
        let now = health.borrow_and_update().clone();
        for news in seen.next(&now, store.free(), Timestamp::now()) {
            match news.kind {
                EventType::Warning => tracing::warn!("{}", news.message),
                EventType::Normal => tracing::info!("{}", news.message),
            }
            recorder.event(&about, news.kind, news.reason, news.message);
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            // Writes may fail for less than the interval.
            Ok(()) = health.changed() => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

/// An event to record.
#[derive(Debug, PartialEq, Eq)]
struct News {
    kind: EventType,
    reason: &'static str,
    message: String,
}

/// The state of the store as it was last seen.
#[derive(Debug, Default)]
struct Seen {
    /// The time since when writes fail.
    failing: Option<Timestamp>,
    is_low: bool,
}

impl Seen {
    /// Returns the events of a change.
    fn next(&mut self, health: &Health, free: Option<u64>, now: Timestamp) -> Vec<News> {
        let mut news = Vec::new();
        match (health, self.failing) {
            (Health::Failing { reason } | Health::Broken { reason }, None) => {
                self.failing = Some(now);
                let message = format!("the store takes no writes: {reason}");
                news.push(News { kind: EventType::Warning, reason: "StoreWritesFail", message });
            }
            (Health::Writable, Some(since)) => {
                self.failing = None;
                let message = format!("the store takes writes again; it took none since {since:.0}");
                news.push(News { kind: EventType::Normal, reason: "StoreWritable", message });
            }
            _ => {}
        }
        let free = free.unwrap_or(u64::MAX);
        if free < LOW_BYTES && !self.is_low {
            self.is_low = true;
            let message = format!("the store's disk is nearly full: {} MiB are free", free >> 20);
            news.push(News { kind: EventType::Warning, reason: "StoreDiskNearlyFull", message });
        } else if free > ENOUGH_BYTES {
            self.is_low = false;
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_one_event() {
        let mut seen = Seen::default();
        let failing = Health::Failing { reason: "no space".into() };
        let mut reasons = |health: &Health, free: u64| {
            let news = seen.next(health, Some(free), Timestamp::UNIX_EPOCH);
            news.into_iter().map(|news| news.reason).collect::<Vec<_>>()
        };
        let much = 1 << 40;
        assert_eq!(reasons(&Health::Writable, much), [""; 0]);
        assert_eq!(reasons(&Health::Writable, 1), ["StoreDiskNearlyFull"]);
        assert_eq!(reasons(&failing, 1), ["StoreWritesFail"]);
        assert_eq!(reasons(&failing, 1), [""; 0]);
        assert_eq!(reasons(&Health::Writable, LOW_BYTES + 1), ["StoreWritable"]);
        assert_eq!(reasons(&Health::Writable, 1), [""; 0]);
        assert_eq!(reasons(&Health::Writable, much), [""; 0]);
        assert_eq!(reasons(&Health::Writable, 1), ["StoreDiskNearlyFull"]);
    }
}
