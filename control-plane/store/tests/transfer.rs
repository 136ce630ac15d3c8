//! Tests of the move of an embedded store into a running etcd: complete or begun anew, wherever it is killed.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corten_store::embedded::Embedded;
use corten_store::transfer::{self, MARKER, Transfer};
use corten_store::{Config, Error, Expect, NO_LEASE, Op, Range, Store};

use support::etcd::{EtcdCluster, open};
use support::{Chance, ManualClock, commit, small};

const DIR: &str = "CORTEN_TRANSFER_DIR";
const URL: &str = "CORTEN_TRANSFER_URL";
const PREFIX: &[u8] = b"/registry/";
const KEYS: usize = 2_000;

/// Fills a store with objects, of which some were deleted, some have a lease, and one is large.
async fn fill(store: &Embedded) {
    for chunk in (0..KEYS).collect::<Vec<_>>().chunks(100) {
        let put =
            |number: &usize| Op::put(format!("/registry/pods/{number:05}"), format!("pod {number}"), Expect::Absent);
        commit(store, chunk.iter().map(put).collect()).await;
    }
    for number in (0..KEYS).step_by(10) {
        commit(store, vec![Op::delete(format!("/registry/pods/{number:05}"), Expect::Any)]).await;
    }
    let lease = store.grant(Duration::from_secs(3600), NO_LEASE).await.unwrap();
    for number in 0..5 {
        let key = format!("/registry/events/{number}").into();
        commit(store, vec![Op::Put { key, value: "event".into(), lease, expect: Expect::Absent }]).await;
    }
    commit(store, vec![Op::put("/registry/configmaps/large", vec![b'x'; 1_200_000], Expect::Absent)]).await;
    commit(store, vec![Op::put("compact_rev_key", "7", Expect::Absent)]).await;
}

async fn values(store: &dyn Store) -> BTreeMap<Bytes, Bytes> {
    let all = store.range(Range::prefix(PREFIX)).await.unwrap().entries;
    all.into_iter().map(|entry| (entry.key, entry.value)).collect()
}

async fn moved(source: &dyn Store, target: &dyn Store) -> Result<transfer::Transferred, Error> {
    Transfer::begin(target, PREFIX).await?.copy(source).await?.complete().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_moves_into_a_running_etcd() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = Embedded::open(Config::new(dir.path())).unwrap();
    fill(&source).await;
    let before = source.contents();
    let target = cluster.open().await;
    let result = moved(&*source, &*target).await.unwrap();
    assert_eq!((result.from, result.keys), (before.revision, (KEYS - KEYS / 10 + 1) as u64));
    assert_eq!(values(&*target).await, values(&*source).await);
    let entries = target.range(Range::prefix(PREFIX)).await.unwrap().entries;
    assert!(entries.iter().all(|entry| entry.mod_revision > before.revision), "no resourceVersion is used again");
    assert!(entries.iter().all(|entry| entry.key.starts_with(b"/registry/events/") == (entry.lease != NO_LEASE)));
    assert_eq!(target.get(b"compact_rev_key").await.unwrap().1, None, "etcd's own compaction is not disturbed");
    // A client that resumes at any resourceVersion of the old store must list again.
    for revision in [1, before.revision / 2, before.revision] {
        let watched = target.watch(PREFIX, revision + 1).await;
        assert!(matches!(watched, Err(Error::Compacted { .. })), "{revision}");
    }
    assert!(!transfer::is_unfinished(&*target).await.unwrap());
    assert_eq!(source.contents(), before, "the old store is unchanged");

    let again = moved(&*source, &*target).await.unwrap_err().to_string();
    let count = entries.len();
    assert_eq!(again, format!("etcd has {count} keys below /registry/: a store is only moved to where there are none"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_moves_one_completes() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = Embedded::open(Config::new(dir.path())).unwrap();
    fill(&source).await;
    let target = cluster.open().await;
    let first = Transfer::begin(&*target, PREFIX).await.unwrap();
    let second = Transfer::begin(&*target, PREFIX).await.unwrap();
    let error = first.copy(&*source).await.err().unwrap().to_string();
    assert_eq!(error, format!("another program wrote to {MARKER} of etcd during the move; begin it anew"));
    assert!(transfer::is_unfinished(&*target).await.unwrap());
    let copied = second.copy(&*source).await.unwrap();
    assert!(transfer::is_unfinished(&*target).await.unwrap(), "the old store may change until it is stopped");
    copied.complete().await.unwrap();
    assert!(!transfer::is_unfinished(&*target).await.unwrap());
    assert_eq!(values(&*target).await, values(&*source).await);

    // A store that changes during the move is noticed.
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let target = cluster.open().await;
    let transfer = Transfer::begin(&*target, PREFIX).await.unwrap();
    let writer = Arc::clone(&source);
    let writes = tokio::spawn(async move {
        loop {
            commit(&*writer, vec![Op::put("/registry/pods/new", "x", Expect::Any)]).await;
        }
    });
    let error = transfer.copy(&*source).await.err().unwrap().to_string();
    assert!(error.starts_with("the old store was changed during the move"), "{error}");
    writes.abort();
}

/// Runs the child that moves the store; does nothing unless the parent started it.
#[test]
fn child() {
    let (Some(dir), Ok(url)) = (env::var_os(DIR), env::var(URL)) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let source = Embedded::open(Config::new(Path::new(&dir))).unwrap();
        let target = open(vec![url], None).await.unwrap();
        moved(&*source, &*target).await.unwrap();
    });
}

/// A child that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_that_is_killed_leaves_the_old_store_whole() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = Embedded::open(Config::new(dir.path())).unwrap();
    fill(&source).await;
    let before = source.contents();
    let expected = values(&*source).await;
    drop(source);
    let target = cluster.open().await;
    let mut chance = Chance(42);
    let mut longest = 20_000;
    let mut kills = 0;
    loop {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "child"])
            .env(DIR, dir.path())
            .env(URL, &cluster.urls()[0])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut child = Killed(child);
        // The moment of the kill is the subject of the test: later ones until a move gets through.
        let moment = Duration::from_micros(chance.below(longest));
        let ended = tokio::task::spawn_blocking(move || {
            std::thread::sleep(moment);
            let ended = child.0.try_wait().unwrap();
            drop(child);
            ended
        });
        let ended = ended.await.unwrap();
        let store = Embedded::open(Config::new(dir.path())).unwrap();
        assert_eq!(store.contents(), before, "the old store is whole");
        drop(store);
        let is_unfinished = transfer::is_unfinished(&*target).await.unwrap();
        let present = values(&*target).await;
        if !is_unfinished && !present.is_empty() {
            assert_eq!(present, expected, "a move without its marker is complete");
            break;
        }
        assert!(is_unfinished || present.is_empty());
        assert!(ended.is_none_or(|status| !status.success()), "a move that ended well is complete");
        kills += 1;
        longest += longest / 5;
    }
    assert!(kills > 3, "{kills} kills");
}

#[tokio::test]
async fn a_frozen_store_is_read_and_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::default());
    let store = Embedded::open(small(dir.path(), &clock)).unwrap();
    let lease = store.grant(Duration::from_secs(10), NO_LEASE).await.unwrap();
    let leased = Op::Put { key: "/l".into(), value: "".into(), lease, expect: Expect::Any };
    commit(&*store, vec![leased]).await;
    let revision = commit(&*store, vec![Op::put("/a", "1", Expect::Any)]).await;
    assert_eq!(store.freeze(Duration::from_secs(30)).await.unwrap(), revision);
    let put = || vec![Op::put("/a", "2", Expect::Any)];
    assert!(matches!(store.commit(put()).await, Err(Error::Frozen)));
    let written = store.transact(|view| view.put("/a".into(), "2".into(), NO_LEASE).map(drop)).await;
    assert!(matches!(written, Err(Error::Frozen)));
    let read = store.transact(|view| Ok(view.get(b"/a").map(|entry| entry.value.clone()))).await.unwrap();
    assert_eq!(read.as_deref(), Some(&b"1"[..]));
    assert!(matches!(store.grant(Duration::from_secs(1), NO_LEASE).await, Err(Error::Frozen)));
    assert!(matches!(store.revoke(lease).await, Err(Error::Frozen)));
    // No lease expires while the store is frozen, and the freeze ends by itself.
    clock.advance(Duration::from_secs(29));
    store.tick().await.unwrap();
    assert!(store.is_frozen() && store.get(b"/l").await.unwrap().1.is_some());
    assert_eq!(store.revision(), revision);
    clock.advance(Duration::from_secs(2));
    store.tick().await.unwrap();
    assert!(!store.is_frozen() && store.get(b"/l").await.unwrap().1.is_none());
    commit(&*store, put()).await;
    store.freeze(Duration::from_secs(30)).await.unwrap();
    store.freeze(Duration::ZERO).await.unwrap();
    commit(&*store, put()).await;
}
