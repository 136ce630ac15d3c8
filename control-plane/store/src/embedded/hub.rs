//! The live watchers, by prefix.
//!
//! A watch registers and reads its backlog under the hub's lock, and the committer publishes under the same lock: so no
//! change falls between the two, and none is delivered twice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::index::Index;
use crate::watch::Feed;
use crate::{Batch, Error, Event, Revision, Watch};

#[derive(Debug, Default)]
pub struct Hub {
    watchers: BTreeMap<Bytes, Vec<Watcher>>,
}

#[derive(Debug)]
struct Watcher {
    feed: Feed,
    /// The first revision that the watcher receives.
    from: Revision,
    /// The last revision that was sent to it.
    sent: Revision,
}

impl Hub {
    /// Makes a watch of `prefix` from revision `from` on; 0 is the revision after the index's.
    pub fn watch(&mut self, index: &Index, prefix: &[u8], from: Revision, buffer: usize) -> Result<Watch, Error> {
        let from = if from == 0 { index.snapshot().revision + 1 } else { from };
        let backlog: VecDeque<Batch> = index.history(from)?.filter_map(|batch| restrict(batch, prefix)).collect();
        let sent = backlog.back().map_or(from - 1, |batch| batch.revision);
        let (feed, watch) = Watch::new(backlog, buffer);
        self.forget_closed();
        let prefix = Bytes::copy_from_slice(prefix);
        self.watchers.entry(prefix).or_default().push(Watcher { feed, from, sent });
        Ok(watch)
    }

    /// Sends a change to its watchers.
    pub fn publish(&mut self, batch: &Batch) {
        let mut emptied = false;
        for (prefix, watchers) in &mut self.watchers {
            let Some(batch) = restrict(batch, prefix) else { continue };
            watchers.retain_mut(|watcher| watcher.from > batch.revision || watcher.send(batch.clone()));
            emptied |= watchers.is_empty();
        }
        if emptied {
            self.watchers.retain(|_, watchers| !watchers.is_empty());
        }
    }

    /// Sends a progress notification for `revision` to the watchers of exactly this prefix.
    pub fn progress(&mut self, prefix: &[u8], revision: Revision) {
        let Some(watchers) = self.watchers.get_mut(prefix) else { return };
        watchers.retain_mut(|watcher| {
            let knows = watcher.sent >= revision;
            knows || watcher.send(Batch { revision, events: Arc::default() })
        });
    }

    fn forget_closed(&mut self) {
        self.watchers.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.feed.is_closed());
            !watchers.is_empty()
        });
    }
}

impl Watcher {
    /// Sends a batch; `false` if the watcher is gone, or too slow.
    fn send(&mut self, batch: Batch) -> bool {
        self.sent = batch.revision;
        self.feed.send(batch)
    }
}

/// Returns the part of a batch with a prefix; the same events without a copy if all of them have it.
fn restrict(batch: &Batch, prefix: &[u8]) -> Option<Batch> {
    let concerns = |event: &&Event| event.entry.key.starts_with(prefix);
    let count = batch.events.iter().filter(concerns).count();
    if count == 0 {
        None
    } else if count == batch.events.len() {
        Some(batch.clone())
    } else {
        let events = batch.events.iter().filter(concerns).cloned().collect();
        Some(Batch { revision: batch.revision, events })
    }
}
