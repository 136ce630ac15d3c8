//! Tests of the directory: one process at a time, no newer format, bounded space, and a full disk.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use corten_store::{Config, Embedded, Error, Expect, Health, LeaseId, Op, Outcome, Range, Retain, Store};

use support::{ALL, ManualClock, block_on, commit, size_of, small};

fn config(dir: &Path) -> Config {
    small(dir, &Arc::new(ManualClock::default()))
}

#[test]
fn a_directory_serves_one_store_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(config(dir.path())).unwrap();
    let error = Embedded::open(config(dir.path())).unwrap_err();
    assert!(matches!(&error, Error::Locked { dir: locked } if locked == dir.path()), "{error}");
    drop(store);
    Embedded::open(config(dir.path())).unwrap();
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("FORMAT"), "corten-store 2\n").unwrap();
    fs::write(dir.path().join("00000000000000000002.log.tmp"), "theirs").unwrap();
    let error = Embedded::open(config(dir.path())).unwrap_err();
    assert!(matches!(error, Error::NewerFormat { found: 2, known: 1, .. }), "{error}");
    assert!(dir.path().join("00000000000000000002.log.tmp").exists());
}

#[test]
fn a_directory_with_other_files_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("FORMAT"), "something else\n").unwrap();
    let error = Embedded::open(config(dir.path())).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[test]
fn invalid_requests_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(config(dir.path())).unwrap();
    block_on(async {
        let twice = vec![Op::put("/a", "1", Expect::Any), Op::delete("/a", Expect::Any)];
        assert!(matches!(store.commit(twice).await, Err(Error::DuplicateKey)));
        let empty = vec![Op::put("", "1", Expect::Any)];
        assert!(matches!(store.commit(empty).await, Err(Error::EmptyKey)));
        let large = vec![Op::put("/a", vec![0; 9 << 20], Expect::Any)];
        assert!(matches!(store.commit(large).await, Err(Error::TooLarge { .. })));
        assert_eq!(store.revision(), 1);
    });
}

#[test]
fn a_commit_may_be_bigger_than_a_segment() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = Embedded::open(config(dir.path())).unwrap();
        for key in ["/a", "/b", "/c"] {
            commit(&*store, vec![Op::put(key, vec![7; 100_000], Expect::Absent)]).await;
        }
        drop(store);
        let store = Embedded::open(config(dir.path())).unwrap();
        let entries = store.range(Range::prefix(b"/")).await.unwrap().entries;
        assert_eq!(entries.iter().map(|entry| entry.value.len()).collect::<Vec<_>>(), [100_000; 3]);
    });
}

#[test]
fn the_store_chooses_lease_ids_that_are_new() {
    let dir = tempfile::tempdir().unwrap();
    let mut ids: Vec<LeaseId> = Vec::new();
    for _ in 0..3 {
        let store = Embedded::open(config(dir.path())).unwrap();
        block_on(async {
            for _ in 0..3 {
                let id = store.grant(Duration::from_secs(5), 0).await.unwrap();
                assert!(id != 0 && !ids.contains(&id));
                store.revoke(id).await.unwrap();
                ids.push(id);
            }
        });
    }
}

#[test]
fn history_is_kept_within_each_of_its_bounds() {
    let cases = [
        ("revisions", Retain { revisions: 10, ..ALL }, 91),
        ("most bytes", Retain { most_bytes: 10_000, ..ALL }, 73),
        ("least bytes", Retain { least_bytes: 7_000, ..ALL }, 81),
        ("half of the bytes that are current", Retain { least_bytes: 0, ..ALL }, 87),
        ("time", Retain { time: Duration::from_secs(3), ..ALL }, 99),
        ("everything", ALL, 0),
    ];
    for (name, retain, compacted) in cases {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::default());
        let store = Embedded::open(Config { retain, ..small(dir.path(), &clock) }).unwrap();
        block_on(async {
            for number in 0..100 {
                let (key, length) = if number == 0 { ("/big", 10_000) } else { ("/a", 100) };
                commit(&*store, vec![Op::put(key, "v".repeat(length), Expect::Any)]).await;
                clock.advance(Duration::from_secs(1));
            }
            store.tick().await.unwrap();
            assert_eq!((store.revision(), store.compacted()), (101, compacted), "{name}");
            assert!(store.range(Range::prefix(b"").at(compacted.max(1))).await.is_ok());
            if compacted > 0 {
                assert!(store.range(Range::prefix(b"").at(compacted - 1)).await.is_err());
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn churn_does_not_grow_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let segment = 128 << 10;
    let checkpoint = 256 << 10;
    let retain = Retain { revisions: 50, ..ALL };
    let config = Config { segment_bytes: segment, checkpoint_bytes: checkpoint, retain, ..config(dir.path()) };
    let store = Embedded::open(config.clone()).unwrap();
    let mut largest = 0;
    for _ in 0..40 {
        let writers = (0..16).map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    commit(&*store, vec![Op::put("/one", vec![7; 1024], Expect::Any)]).await;
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
        largest = largest.max(size_of(dir.path()));
    }
    assert_eq!(store.revision(), 40 * 16 * 20 + 1);
    // The log up to the next checkpoint and the log while that is written, two checkpoints, and the segments at both
    // ends: far below the 13 MiB that were written.
    assert!(largest < 3 << 20, "{largest} bytes");
    drop(store);
    let store = Embedded::open(config).unwrap();
    assert_eq!(store.revision(), 40 * 16 * 20 + 1);
}

/// Runs on a thread with a mount namespace of its own, over a small file system that ends with it.
fn on_small_disk(bytes: u64, test: impl FnOnce(&Path) + Send + 'static) {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let thread = thread::spawn(move || {
        // SAFETY: only this thread changes, and it shares no working directory that others rely on.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.expect("this test needs root");
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
        test(&path);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_full_disk_refuses_writes_until_there_is_space() {
    full_disk(u64::MAX);
}

#[test]
fn a_disk_too_full_for_a_checkpoint_loses_nothing() {
    full_disk(256 << 10);
}

fn full_disk(checkpoint_bytes: u64) {
    on_small_disk(2 << 20, move |disk| {
        let dir = disk.join("store");
        let config = Config { segment_bytes: 128 << 10, checkpoint_bytes, ..config(&dir) };
        block_on(async {
            let store = Embedded::open(config.clone()).unwrap();
            let written = fill(&store, &dir).await;
            let all = store.range(Range::prefix(b"/")).await.unwrap();
            assert_eq!((all.count, all.revision), (written, written + 1));
            assert!(matches!(store.health(), Health::Failing { .. }), "{:?}", store.health());
            assert!(store.free().is_some_and(|free| free < 2 << 20));

            let options = std::ffi::CString::new(format!("size={}", 8 << 20)).unwrap();
            rustix::mount::mount_remount(disk, rustix::mount::MountFlags::empty(), options.as_c_str()).unwrap();
            for number in written..written + 100 {
                write(&store, number).await.unwrap();
            }
            assert_eq!(store.health(), Health::Writable);
            drop(store);
            let store = Embedded::open(config.clone()).unwrap();
            let all = store.range(Range::prefix(b"/")).await.unwrap();
            assert_eq!(all.count, written + 100);
            assert!(all.entries.iter().enumerate().all(|(n, entry)| entry.value == vec![n as u8; 4096]));
        });
    });
}

async fn write(store: &Embedded, number: u64) -> Result<Outcome, Error> {
    let value = vec![number as u8; 4096];
    store.commit(vec![Op::put(format!("/{number:04}"), value, Expect::Absent)]).await
}

/// Writes until nothing more fits, also not after a running checkpoint has ended. Returns the number of writes.
async fn fill(store: &Embedded, dir: &Path) -> u64 {
    let mut written = 0;
    let mut refused = 0;
    while refused < 50 {
        match write(store, written).await {
            Ok(_) => (written, refused) = (written + 1, 0),
            Err(Error::Full { dir: full }) if full == dir => refused += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(written < 1000, "the disk never filled");
    }
    assert!(written > 10, "{written}");
    written
}
