//! Tests of `verify` and `repair`: a flipped bit is named, wherever it is, and costs at most what the repair says.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use corten_store::{Config, Embedded, Error, Expect, Finding, Op, Range, Repaired, Store, repair, verify};
use proptest::prelude::*;

use support::{ManualClock, block_on, commit, small};

fn config(dir: &Path) -> Config {
    small(dir, &Arc::new(ManualClock::default()))
}

type State = BTreeMap<Bytes, Bytes>;

fn state(store: &Embedded) -> State {
    let all = block_on(store.range(Range::prefix(b""))).unwrap();
    all.entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
}

/// A closed store with two checkpoints and records after the second, and its state.
struct Sample {
    dir: tempfile::TempDir,
    state: State,
    revision: u64,
}

static SAMPLE: LazyLock<Sample> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let store_dir = dir.path().join("store");
    let mut number = 0;
    loop {
        let store = Embedded::open(config(&store_dir)).unwrap();
        block_on(async {
            for _ in 0..15 {
                number += 1;
                let value = format!("{number} {}", "v".repeat(number % 300));
                let mut ops = vec![Op::put(format!("/registry/{}", number % 37), value, Expect::Any)];
                ops.push(Op::put(format!("/registry/new/{number}"), "", Expect::Absent));
                if number > 5 {
                    ops.push(Op::delete(format!("/registry/new/{}", number - 5), Expect::Any));
                }
                commit(&*store, ops).await;
            }
        });
        let known = state(&store);
        let revision = store.revision();
        drop(store);
        let names = names(&store_dir);
        let count = |suffix: &str| names.iter().filter(|name| name.ends_with(suffix)).count();
        if count(".checkpoint") == 2 && count(".log") >= 4 {
            return Sample { dir, state: known, revision };
        }
        assert!(number < 20_000, "{names:?}");
    }
});

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns a copy of the sample.
fn copy() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("store");
    fs::create_dir(&dir).unwrap();
    let from = SAMPLE.dir.path().join("store");
    for name in names(&from) {
        fs::copy(from.join(&name), dir.join(&name)).unwrap();
    }
    (folder, dir)
}

fn flip(path: &Path, byte: usize, bit: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[byte] ^= 1 << bit;
    fs::write(path, bytes).unwrap();
}

fn shown(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("{finding}\n")).collect()
}

#[test]
fn an_intact_store_has_no_findings() {
    let (_folder, dir) = copy();
    assert_eq!(verify(&dir).unwrap(), []);
    assert!(repair(&dir).unwrap().is_none());
    let store = Embedded::open(config(&dir)).unwrap();
    assert_eq!((state(&store), store.revision()), (SAMPLE.state.clone(), SAMPLE.revision));
    assert!(matches!(verify(&dir), Err(Error::Locked { .. })));
}

/// Returns the number of bits in which two keys differ.
fn distance(left: &[u8], right: &[u8]) -> u32 {
    if left.len() != right.len() {
        return u32::MAX;
    }
    left.iter().zip(right).map(|(left, right)| (left ^ right).count_ones()).sum()
}

/// Checks a repair of one flipped bit.
fn check(dir: &Path, path: &Path, byte: usize) -> Result<Option<Repaired>, TestCaseError> {
    let before: Vec<Vec<u8>> = names(dir).iter().map(|name| fs::read(dir.join(name)).unwrap()).collect();
    let findings = verify(dir).unwrap();
    let after: Vec<Vec<u8>> = names(dir).iter().map(|name| fs::read(dir.join(name)).unwrap()).collect();
    prop_assert!(before == after, "verify changes nothing");
    let is_named = |finding: &Finding| {
        finding.file == path && (finding.offset..finding.end.max(finding.offset + 1)).contains(&(byte as u64))
    };
    prop_assert!(findings.iter().any(is_named), "byte {byte} of {}:\n{}", path.display(), shown(&findings));
    let repaired = match repair(dir) {
        Err(Error::NewerFormat { .. }) if path.ends_with("FORMAT") => return Ok(None),
        repaired => repaired.unwrap().unwrap(),
    };
    let store = Embedded::open(config(dir)).unwrap();
    let found = state(&store);
    prop_assert_eq!(found.len(), repaired.keys);
    let loss = &repaired.loss;
    if loss.is_nothing() {
        prop_assert_eq!(&found, &SAMPLE.state);
        prop_assert_eq!(store.revision(), SAMPLE.revision);
    } else {
        prop_assert!(store.revision() > SAMPLE.revision + 1_000_000, "clients must read everything anew");
    }
    let keys = found.keys().chain(SAMPLE.state.keys());
    for key in keys.filter(|key| found.get(*key) != SAMPLE.state.get(*key)) {
        // The flipped bit may be one of the key.
        let is_reported = loss.keys.keys().any(|reported| distance(reported, key) <= 1);
        prop_assert!(is_reported || loss.is_incomplete, "{key:?} was lost silently: {loss:?}");
    }
    drop(store);
    prop_assert_eq!(verify(dir).unwrap(), []);
    prop_assert!(repaired.aside.join("FORMAT").exists());
    Ok(Some(repaired))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_flipped_bit_is_named_and_costs_what_the_repair_says(file in 0.0f64..1.0, at in 0.0f64..1.0, bit in 0u8..8) {
        let (_folder, dir) = copy();
        let names = names(&dir);
        let path = dir.join(&names[(file * names.len() as f64) as usize]);
        let byte = (at * fs::metadata(&path).unwrap().len() as f64) as usize;
        flip(&path, byte, bit);
        check(&dir, &path, byte)?;
    }

    #[test]
    fn the_headers_are_named_too(file in 0.0f64..1.0, byte in 0usize..90, bit in 0u8..8) {
        let (_folder, dir) = copy();
        let names: Vec<String> = names(&dir).into_iter().filter(|name| name != "FORMAT").collect();
        let path = dir.join(&names[(file * names.len() as f64) as usize]);
        flip(&path, byte, bit);
        check(&dir, &path, byte)?;
    }
}

#[test]
fn damage_before_the_newest_checkpoint_costs_nothing() {
    let from = SAMPLE.dir.path().join("store");
    let names = names(&from);
    let checkpoints: Vec<&String> = names.iter().filter(|name| name.ends_with(".checkpoint")).collect();
    let logs: Vec<&String> = names.iter().filter(|name| name.ends_with(".log")).collect();
    for (name, byte) in [(checkpoints[0], 200), (checkpoints[1], 200), (logs[0], 100)] {
        let (_folder, dir) = copy();
        flip(&dir.join(name), byte, 3);
        let repaired = check(&dir, &dir.join(name), byte).unwrap().unwrap();
        assert!(repaired.loss.is_nothing(), "{name}: {:?}", repaired.loss);
    }
}

#[test]
fn a_lost_record_is_reported_with_its_keys_and_its_revision() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("store");
    let config = Config { segment_bytes: 64 << 10, ..config(&dir) };
    block_on(async {
        let store = Embedded::open(config.clone()).unwrap();
        for (key, value) in [("/a", "first"), ("/b", "second"), ("/a", "third"), ("/c", "fourth")] {
            commit(&*store, vec![Op::put(key, value, Expect::Any)]).await;
        }
    });
    let path = dir.join("00000000000000000001.log");
    let bytes = fs::read(&path).unwrap();
    let at = bytes.windows(5).position(|part| part == b"third").unwrap();
    flip(&path, at, 0);
    assert!(matches!(Embedded::open(config.clone()), Err(Error::Corrupt { .. })));
    let findings = verify(&dir).unwrap();
    assert_eq!(findings.len(), 1, "{}", shown(&findings));
    assert!(findings[0].to_string().contains("record 3 is damaged; /a"), "{}", findings[0]);
    let repaired = repair(&dir).unwrap().unwrap();
    assert_eq!(repaired.loss.revisions, [(4, 4)]);
    assert_eq!(repaired.loss.keys, BTreeMap::from([(Bytes::from("/a"), 2)]));
    assert!(!repaired.loss.is_incomplete);
    let store = Embedded::open(config).unwrap();
    let found = state(&store);
    assert_eq!(found[&Bytes::from("/a")], "first");
    assert_eq!(found[&Bytes::from("/c")], "fourth");
}
