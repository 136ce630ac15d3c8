//! Tests of the promises of a watch: no change missed, repeated or reordered, a revision delivered at once, from any
//! start, after any number of resumptions, and also when it lags.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corten_store::{Config, Embedded, Error, EventKind, Expect, Op, Outcome, Revision, Store, Watch};

use support::etcd::EtcdCluster;
use support::{Chance, ManualClock, commit, small};

const PREFIXES: [&[u8]; 4] = [b"/a/", b"/b/", b"/b/1", b""];
/// The suffix of the last key under each prefix.
const LAST: &[u8] = b"~last";
const WRITERS: u64 = 3;
const COMMITS: u64 = 150;

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    revision: Revision,
    key: Bytes,
    /// The value; `None` for a delete.
    value: Option<Bytes>,
}

fn open(dir: &std::path::Path, watch_buffer: usize) -> Arc<Embedded> {
    let clock = Arc::new(ManualClock::default());
    Embedded::open(Config { watch_buffer, ..small(dir, &clock) }).unwrap()
}

/// Returns the next batch, within a time limit.
async fn next(watch: &mut Watch) -> Option<Result<corten_store::Batch, Error>> {
    tokio::time::timeout(Duration::from_secs(300), watch.next()).await.expect("a batch in time")
}

/// Writes random commits and returns those that happened.
async fn write(store: Arc<dyn Store>, seed: u64) -> Vec<Seen> {
    let mut chance = Chance(seed);
    let mut happened = Vec::new();
    for number in 0..COMMITS {
        let mut ops = BTreeMap::new();
        for _ in 0..=chance.below(3) {
            let folder = [b'a', b'b', b'c'][chance.below(3) as usize] as char;
            let key = Bytes::from(format!("/{folder}/{}", chance.below(20)));
            let op = match chance.below(4) {
                0 => Op::delete(key.clone(), Expect::Any),
                _ => Op::put(key.clone(), format!("{seed} {number}"), Expect::Any),
            };
            ops.insert(key, op);
        }
        let ops: Vec<Op> = ops.into_values().collect();
        let Outcome::Committed { revision, previous } = store.commit(ops.clone()).await.unwrap() else {
            panic!("nothing was expected of the keys");
        };
        for (op, previous) in ops.into_iter().zip(previous) {
            match op {
                Op::Put { key, value, .. } => happened.push(Seen { revision, key, value: Some(value) }),
                Op::Delete { key, .. } if previous.is_some() => happened.push(Seen { revision, key, value: None }),
                Op::Delete { .. } => {}
            }
        }
    }
    happened
}

/// Follows a prefix to the last key, with a watch that it drops and resumes at random, sometimes not until the store is
/// well ahead. Also returns how often it lagged.
async fn follow(store: Arc<dyn Store>, prefix: &'static [u8], seed: u64) -> (Vec<Seen>, u64) {
    let mut chance = Chance(seed);
    let mut seen: Vec<Seen> = Vec::new();
    let mut reached: Revision = 1;
    let mut lagged = 0;
    loop {
        let mut watch = store.watch(prefix, reached + 1).await.unwrap();
        for _ in 0..=chance.below(40) {
            let batch = match next(&mut watch).await.expect("the store is open") {
                Ok(batch) => batch,
                Err(Error::Lagged) => {
                    lagged += 1;
                    break;
                }
                Err(error) => panic!("{error}"),
            };
            assert!(batch.revision > reached, "repeated or reordered");
            reached = batch.revision;
            for event in batch.events.iter() {
                assert_eq!(event.entry.mod_revision, batch.revision);
                if event.entry.key.ends_with(LAST) {
                    return (seen, lagged);
                }
                let value = (event.kind == EventKind::Put).then(|| event.entry.value.clone());
                seen.push(Seen { revision: reached, key: event.entry.key.clone(), value });
            }
            if chance.below(20) == 0 {
                let ahead = (reached + 40).min(WRITERS * COMMITS / 2);
                while store.revision() < ahead {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watches_never_miss_repeat_or_reorder() {
    let mut lagged = 0;
    for seed in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        // A buffer this small makes watchers lag in every run.
        lagged += writers_and_followers(open(dir.path(), 4), seed).await;
    }
    assert!(lagged > 0, "no watcher ever fell behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watches_of_etcd_never_miss_repeat_or_reorder() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    writers_and_followers(cluster.open().await, 0).await;
}

/// Runs writers and followers on a new store, and compares what they did and saw. Returns how often watchers lagged.
async fn writers_and_followers(store: Arc<dyn Store>, seed: u64) -> u64 {
    let mut lagged = 0;
    let writers: Vec<_> = (0..WRITERS).map(|n| tokio::spawn(write(store.clone(), seed * 100 + n))).collect();
    let followers = PREFIXES.map(|prefix| {
        let seed = seed * 100 + 50 + prefix.len() as u64;
        tokio::spawn(follow(store.clone(), prefix, seed))
    });
    let mut happened = Vec::new();
    for writer in writers {
        happened.extend(writer.await.unwrap());
    }
    happened.sort_by(|a, b| (a.revision, &a.key).cmp(&(b.revision, &b.key)));
    let last = |prefix: &&[u8]| Op::put([prefix, LAST].concat(), "", Expect::Any);
    commit(&*store, PREFIXES.iter().map(last).collect()).await;
    for (prefix, follower) in PREFIXES.into_iter().zip(followers) {
        let expected: Vec<_> = happened.iter().filter(|seen| seen.key.starts_with(prefix)).cloned().collect();
        let (seen, times) = follower.await.unwrap();
        assert_eq!(seen, expected, "seed {seed} prefix {prefix:?}");
        lagged += times;
    }
    lagged
}

#[tokio::test]
async fn a_watch_begins_at_the_requested_revision() {
    let dir = tempfile::tempdir().unwrap();
    watch_from_revisions(open(dir.path(), 100)).await;
}

#[tokio::test]
async fn a_watch_of_etcd_begins_at_the_requested_revision() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    watch_from_revisions(cluster.open().await).await;
}

async fn watch_from_revisions(store: Arc<dyn Store>) {
    for number in 0..5 {
        commit(&*store, vec![Op::put("/a/x", format!("{number}"), Expect::Any)]).await;
    }
    let mut past = store.watch(b"/a/", 4).await.unwrap();
    let mut now = store.watch(b"/a/", 0).await.unwrap();
    let mut future = store.watch(b"/a/", 9).await.unwrap();
    for number in 5..9 {
        commit(&*store, vec![Op::put("/a/x", format!("{number}"), Expect::Any)]).await;
    }
    for (watch, revisions) in [(&mut past, 4..=10), (&mut now, 7..=10), (&mut future, 9..=10)] {
        for revision in revisions {
            let batch = next(watch).await.unwrap().unwrap();
            assert_eq!(batch.revision, revision);
            assert_eq!(batch.events[0].entry.value, format!("{}", revision - 2));
        }
    }
}

#[tokio::test]
async fn a_compacted_revision_cannot_be_watched() {
    let dir = tempfile::tempdir().unwrap();
    watch_compacted(open(dir.path(), 100)).await;
}

#[tokio::test]
async fn a_compacted_revision_of_etcd_cannot_be_watched() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    watch_compacted(cluster.open().await).await;
}

async fn watch_compacted(store: Arc<dyn Store>) {
    for number in 0..5 {
        commit(&*store, vec![Op::put("/a/x", format!("{number}"), Expect::Any)]).await;
    }
    store.compact(4).await.unwrap();
    assert!(matches!(store.watch(b"/a/", 4).await, Err(Error::Compacted { compacted: 4 })));
    let mut watch = store.watch(b"/a/", 5).await.unwrap();
    assert_eq!(next(&mut watch).await.unwrap().unwrap().revision, 5);
}

#[tokio::test]
async fn a_slow_watcher_gets_the_queued_batches_and_is_then_ended() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 3);
    let mut watch = store.watch(b"/a/", 0).await.unwrap();
    for _ in 0..5 {
        commit(&*store, vec![Op::put("/a/x", "", Expect::Any)]).await;
    }
    for revision in 2..=4 {
        assert_eq!(next(&mut watch).await.unwrap().unwrap().revision, revision);
    }
    assert!(matches!(next(&mut watch).await, Some(Err(Error::Lagged))));
    assert!(next(&mut watch).await.is_none());
    let mut resumed = store.watch(b"/a/", 5).await.unwrap();
    for revision in 5..=6 {
        assert_eq!(next(&mut resumed).await.unwrap().unwrap().revision, revision);
    }
}

#[tokio::test]
async fn progress_notifies_a_watcher_of_other_revisions_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 100);
    let mut watch = store.watch(b"/a/", 0).await.unwrap();
    commit(&*store, vec![Op::put("/b/x", "", Expect::Any)]).await;
    for _ in 0..3 {
        assert_eq!(store.progress(b"/a/").await.unwrap(), 2);
    }
    commit(&*store, vec![Op::put("/a/x", "", Expect::Any)]).await;
    assert_eq!(store.progress(b"/a/").await.unwrap(), 3);
    let notification = next(&mut watch).await.unwrap().unwrap();
    assert_eq!((notification.revision, notification.events.len()), (2, 0));
    let changed = next(&mut watch).await.unwrap().unwrap();
    assert_eq!((changed.revision, changed.events.len()), (3, 1));
    drop(store);
    assert!(next(&mut watch).await.is_none(), "a closed store ends its watches");
}

#[tokio::test]
async fn progress_of_etcd_notifies_a_watcher_of_other_revisions() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let store = cluster.open().await;
    let mut watch = store.watch(b"/a/", 0).await.unwrap();
    let written = commit(&*store, vec![Op::put("/b/x", "", Expect::Any)]).await;
    // etcd ignores a request while the watch has not caught up, so that readers repeat it.
    let notified = async {
        loop {
            assert_eq!(store.progress(b"/a/").await.unwrap(), written);
            if let Ok(batch) = tokio::time::timeout(Duration::from_millis(100), watch.next()).await {
                return batch.unwrap().unwrap();
            }
        }
    };
    let batch = tokio::time::timeout(Duration::from_secs(300), notified).await.expect("a notification");
    assert_eq!((batch.revision, batch.events.len()), (written, 0));
    let changed = commit(&*store, vec![Op::put("/a/x", "", Expect::Any)]).await;
    let batch = next(&mut watch).await.unwrap().unwrap();
    assert_eq!((batch.revision, batch.events.len()), (changed, 1));
    drop(store);
    assert!(next(&mut watch).await.is_none(), "a closed store ends its watches");
}
