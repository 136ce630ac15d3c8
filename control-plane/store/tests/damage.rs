//! Tests of damaged files: a torn end loses only unacknowledged writes; any other damage is an error.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corten_store::{Config, Embedded, Error, Expect, Op, Range, Store};

use support::{Chance, ManualClock, block_on, commit, small};

/// The first bytes of every frame; no value in these tests contains them.
const FRAME: &[u8] = b"CtnF";
/// The bytes of a frame of [`filled`], without the padding.
const FRAME_LENGTH: u64 = 159;

/// Makes a store of `commits` commits of one key each, and closes it.
fn filled(config: &Config, commits: u64) {
    block_on(async {
        let store = Embedded::open(config.clone()).unwrap();
        for number in 1..=commits {
            commit(&*store, vec![Op::put(format!("/{number:04}"), "v".repeat(100), Expect::Absent)]).await;
        }
    });
}

/// Returns settings with one segment for everything.
fn one_segment(dir: &Path) -> Config {
    Config { segment_bytes: 64 << 10, checkpoint_bytes: u64::MAX, ..small(dir, &Arc::new(ManualClock::default())) }
}

fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(suffix));
    files.sort();
    files
}

/// Returns the offsets of the frames of a segment.
fn frames(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).step_by(8).filter(|at| bytes[*at..].starts_with(FRAME)).collect()
}

/// Checks that the store has the first `expected` keys, and takes further durable writes.
fn check_prefix(config: &Config, expected: u64) {
    block_on(async {
        let store = Embedded::open(config.clone()).unwrap();
        let keys = store.range(Range::prefix(b"/")).await.unwrap();
        let keys: Vec<_> = keys.entries.into_iter().map(|entry| entry.key).collect();
        let wanted: Vec<_> = (1..=expected).map(|number| format!("/{number:04}")).collect();
        assert_eq!(keys, wanted);
        assert_eq!(store.revision(), expected + 1);
        commit(&*store, vec![Op::put("/more", "", Expect::Absent)]).await;
        drop(store);
        let store = Embedded::open(config.clone()).unwrap();
        assert_eq!(store.revision(), expected + 2);
        assert!(store.get(b"/more").await.unwrap().1.is_some());
    });
}

#[test]
fn a_torn_end_loses_only_unacknowledged_writes() {
    let mut chance = Chance(7);
    for round in 0..150 {
        let dir = tempfile::tempdir().unwrap();
        let config = one_segment(dir.path());
        filled(&config, 20);
        let path = &files(dir.path(), ".log")[0];
        let mut bytes = fs::read(path).unwrap();
        let starts = frames(&bytes);
        assert_eq!((starts.len(), starts[1] - starts[0]), (20, FRAME_LENGTH.next_multiple_of(8) as usize));
        // The frame that was being written at the power cut, and how far it got.
        let torn = chance.below(20) as usize;
        let cut = starts[torn] + chance.below(FRAME_LENGTH) as usize;
        match round % 3 {
            // The rest never reached the disk.
            0 => bytes[cut..].fill(0),
            // Some of its pages did, in any state.
            1 => {
                bytes[cut..].fill(0);
                let garbage = cut + chance.below(400) as usize;
                bytes[cut..garbage].iter_mut().for_each(|byte| *byte = chance.next() as u8 | 1);
            }
            // The file itself is short.
            _ => bytes.truncate(cut),
        }
        fs::write(path, &bytes).unwrap();
        check_prefix(&config, torn as u64);
    }
}

#[test]
fn damage_before_acknowledged_data_is_an_error() {
    let mut chance = Chance(8);
    for _ in 0..60 {
        let dir = tempfile::tempdir().unwrap();
        let config = one_segment(dir.path());
        filled(&config, 20);
        let path = &files(dir.path(), ".log")[0];
        let mut bytes = fs::read(path).unwrap();
        let starts = frames(&bytes);
        let hit = chance.below(19) as usize;
        let mut at = starts[hit] + chance.below(FRAME_LENGTH) as usize;
        // These bytes are unused.
        if (20..24).contains(&(at - starts[hit])) {
            at = starts[hit];
        }
        bytes[at] ^= 1 << chance.below(8);
        fs::write(path, &bytes).unwrap();
        let error = Embedded::open(config.clone()).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        assert_eq!(fs::read(path).unwrap(), bytes, "a store that does not open changes nothing");
    }
}

type Damage = fn(&Path);

#[test]
fn a_missing_segment_is_an_error() {
    let damage: [(&str, Damage); 2] = [
        ("the last segment with records is gone", |dir| {
            let logs = files(dir, ".log");
            let last = logs.iter().rev().find(|path| !frames(&fs::read(path).unwrap()).is_empty()).unwrap();
            // Without a later one, its end would look like the end of the log.
            fs::write(dir.join("00000000000000000099.log"), fs::read(last).unwrap()).unwrap();
            fs::remove_file(last).unwrap();
        }),
        ("every segment is gone", |dir| files(dir, ".log").iter().for_each(|path| fs::remove_file(path).unwrap())),
    ];
    for (name, damage) in damage {
        let dir = tempfile::tempdir().unwrap();
        let config = small(dir.path(), &Arc::new(ManualClock::default()));
        filled_with_checkpoints(&config, 1);
        damage(dir.path());
        let error = Embedded::open(config).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{name}: {error}");
    }
}

#[test]
fn a_damaged_checkpoint_costs_nothing() {
    for (checkpoints, at) in [(1, 10), (1, 300), (2, 10), (2, 50), (2, 300), (2, 2000)] {
        let dir = tempfile::tempdir().unwrap();
        let config = small(dir.path(), &Arc::new(ManualClock::default()));
        let keys = filled_with_checkpoints(&config, checkpoints);
        let newest = files(dir.path(), ".checkpoint").pop().unwrap();
        flip(&newest, at);
        block_on(async {
            let store = Embedded::open(config.clone()).unwrap();
            assert_eq!(store.range(Range::prefix(b"/")).await.unwrap().count, keys, "{checkpoints} {at}");
            assert_eq!(store.revision(), keys + 1);
            assert_eq!(files(dir.path(), ".damaged").len(), 1);
            // The next checkpoint ends the damaged one.
            let mut more = 0;
            while !files(dir.path(), ".damaged").is_empty() {
                commit(&*store, vec![Op::put(format!("/more/{more}"), "v".repeat(300), Expect::Absent)]).await;
                more += 1;
                assert!(more < 10_000, "no checkpoint was written");
            }
            drop(store);
            let store = Embedded::open(config).unwrap();
            assert_eq!(store.range(Range::prefix(b"/")).await.unwrap().count, keys + more);
        });
    }
}

/// Writes until the closed store has some checkpoints and at least three segments; returns the number of keys.
fn filled_with_checkpoints(config: &Config, checkpoints: usize) -> u64 {
    for round in 0..200 {
        block_on(async {
            let store = Embedded::open(config.clone()).unwrap();
            for number in 0..10 {
                commit(&*store, vec![Op::put(format!("/{round}/{number}"), "v".repeat(300), Expect::Absent)]).await;
            }
        });
        if files(&config.dir, ".checkpoint").len() == checkpoints && files(&config.dir, ".log").len() >= 3 {
            return (round + 1) * 10;
        }
    }
    panic!("no checkpoint was written");
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn leftovers_of_interrupted_work_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let config = one_segment(dir.path());
    filled(&config, 3);
    for name in ["00000000000000000002.log.tmp", "00000000000000000009.checkpoint.tmp"] {
        fs::write(dir.path().join(name), "half").unwrap();
    }
    check_prefix(&config, 3);
    assert_eq!(files(dir.path(), ".tmp"), [] as [PathBuf; 0]);
}
