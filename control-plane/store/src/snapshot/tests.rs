//! Tests of snapshots: a store, its snapshot and the store made of it are the same.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use std::fs::File;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::bolt::{Database, Writer};
use super::*;
use crate::embedded::Retain;
use crate::{Config, Embedded, Expect, Op, Range, Store};

fn member() -> Member {
    let urls = vec!["http://localhost:2380".to_owned()];
    Member { id: 1, name: "a \"name\"".to_owned(), peer_urls: urls.clone(), client_urls: urls, applied: 7 }
}

fn round_trip(contents: &Contents) -> Contents {
    let (file, length) = encode(contents, &member(), Cursor::new(Vec::new())).unwrap();
    let bytes = file.into_inner();
    decode(&Database::open(bytes.as_slice(), length).unwrap()).unwrap()
}

fn open(dir: &std::path::Path) -> Arc<Embedded> {
    let retain =
        Retain { revisions: u64::MAX, least_bytes: u64::MAX, most_bytes: u64::MAX, time: Duration::from_secs(1 << 30) };
    Embedded::open(Config { retain, ..Config::new(dir) }).unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// A step of a store's life.
#[derive(Clone, Debug)]
enum Step {
    /// Puts and deletes of numbered keys at one revision.
    Commit(Vec<(u8, Option<Vec<u8>>)>),
    Compact,
    Grant(i64),
    PutWithLease(u8, i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = (0_u8..12, prop::option::of(prop::collection::vec(any::<u8>(), 0..60)));
    let step = prop_oneof![
        6 => prop::collection::vec(change, 1..4).prop_map(Step::Commit),
        1 => Just(Step::Compact),
        1 => (1_i64..4).prop_map(Step::Grant),
        1 => (0_u8..12, 1_i64..4).prop_map(|(key, lease)| Step::PutWithLease(key, lease)),
    ];
    prop::collection::vec(step, 0..40)
}

fn key(number: u8) -> Bytes {
    Bytes::from(format!("/registry/{number}"))
}

async fn take(store: &Embedded, step: Step) {
    match step {
        Step::Commit(mut changes) => {
            changes.sort_by_key(|(number, _)| *number);
            changes.dedup_by_key(|(number, _)| *number);
            let ops = changes.into_iter().map(|(number, value)| match value {
                Some(value) => Op::put(key(number), value, Expect::Any),
                None => Op::delete(key(number), Expect::Any),
            });
            store.commit(ops.collect()).await.unwrap();
        }
        // A second compaction of one revision is refused, and a lease may exist already or not at all.
        Step::Compact => drop(store.compact(store.revision()).await),
        Step::Grant(id) => drop(store.grant(Duration::from_secs(1000), id).await),
        Step::PutWithLease(number, lease) => {
            let put = Op::Put { key: key(number), value: Bytes::new(), lease, expect: Expect::Any };
            drop(store.commit(vec![put]).await);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_store_its_snapshot_and_the_store_made_of_it_are_the_same(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        block_on(async {
            let store = open(&folder.path().join("old"));
            for step in steps {
                take(&store, step).await;
            }
            let contents = store.contents();
            assert_eq!(round_trip(&contents), contents);
            Embedded::import(&folder.path().join("new"), &contents).unwrap();
            let copy = open(&folder.path().join("new"));
            assert_eq!(copy.contents(), contents);
            assert_eq!((copy.revision(), copy.compacted()), (store.revision(), store.compacted()));
            let all = || Range::prefix(b"");
            assert_eq!(copy.range(all()).await.unwrap(), store.range(all()).await.unwrap());
            for revision in store.compacted().max(1)..=store.revision() {
                let then = store.range(all().at(revision)).await.unwrap();
                assert_eq!(copy.range(all().at(revision)).await.unwrap(), then);
            }
            // The copy goes on where the store was.
            let next = copy.commit(vec![Op::put("after", "", Expect::Absent)]).await.unwrap();
            assert!(matches!(next, crate::Outcome::Committed { revision, .. } if revision == store.revision() + 1));
        });
    }
}

#[test]
fn a_snapshot_file_is_checked_by_its_digest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.db");
    let contents = Contents { revision: 1, compacted: 0, base: vec![], history: vec![], leases: vec![] };
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let length = save(&contents, &member(), &file).unwrap();
    assert_eq!(length % 512, DIGEST_BYTES);
    assert_eq!(load(&path, Limits::default()).unwrap(), contents);
    let mut bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, length);
    // A member's own database has no digest.
    std::fs::write(&path, &bytes[..bytes.len() - DIGEST_BYTES as usize]).unwrap();
    assert_eq!(load(&path, Limits::default()).unwrap(), contents);
    bytes[5000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = load(&path, Limits::default()).unwrap_err().to_string();
    assert!(error.contains("SHA-256"), "{error}");
    let error = load(&path, Limits { file_bytes: 100 }).unwrap_err().to_string();
    assert!(error.contains("more than 100"), "{error}");
}

/// Returns a database with these records of the bucket `key`.
fn database(records: Vec<(Vec<u8>, Vec<u8>)>, compacted: u64) -> Result<Contents, String> {
    let mut writer = Writer::new(Cursor::new(Vec::new())).unwrap();
    writer.bucket(b"key", records).unwrap();
    let meta = vec![(b"scheduledCompactRev".to_vec(), records::encode_revision(compacted, 0))];
    writer.bucket(b"meta", if compacted > 0 { meta } else { vec![] }).unwrap();
    let (file, length) = writer.finish().unwrap();
    decode(&Database::open(file.into_inner().as_slice(), length)?)
}

fn put(revision: u64, sub: u64, key: &'static str, version: i64) -> (Vec<u8>, Vec<u8>) {
    use prost::Message as _;
    let at = records::RecordKey { revision, sub, is_tombstone: false };
    let revision = revision as i64;
    let record = corten_etcd::mvccpb::KeyValue {
        key: Bytes::from_static(key.as_bytes()),
        create_revision: revision + 1 - version,
        mod_revision: revision,
        version,
        ..Default::default()
    };
    (at.encode(), record.encode_to_vec())
}

#[test]
fn a_bumped_revision_compacts_everything_before() {
    let bump = (records::RecordKey { revision: 1000, sub: 0, is_tombstone: false }.encode(), Vec::new());
    for compacted in [0, 1000] {
        let contents = database(vec![put(2, 0, "a", 1), put(3, 0, "a", 2), bump.clone()], compacted).unwrap();
        assert_eq!((contents.revision, contents.compacted), (1000, 1000));
        assert_eq!(contents.base.len(), 1);
        assert_eq!(contents.base[0].mod_revision, 3);
        assert!(contents.history.is_empty());
    }
}

#[test]
fn a_gap_in_the_revisions_begins_the_history_anew() {
    let contents = database(vec![put(2, 0, "a", 1), put(5, 0, "a", 2), put(6, 0, "b", 1)], 0).unwrap();
    assert_eq!((contents.revision, contents.compacted), (6, 4));
    let revisions: Vec<u64> = contents.history.iter().map(|batch| batch.revision).collect();
    assert_eq!(revisions, [5, 6]);
    assert!(contents.history[0].events[0].previous.is_some());
}

#[test]
fn records_that_make_no_sense_are_refused() {
    let key = |revision| records::encode_revision(revision, 0);
    let refused = |records| database(records, 0).unwrap_err();
    assert!(refused(vec![(b"short".to_vec(), vec![])]).contains("no revision"));
    assert!(refused(vec![(key(2), vec![0xff])]).contains("revision 2"));
    assert!(refused(vec![(key(3), put(2, 0, "a", 1).1)]).contains("make no sense"));
    assert!(refused(vec![put(2, 0, "a", 1), put(2, 1, "a", 1)]).contains("changed twice"));
}

#[test]
fn a_store_is_only_imported_into_an_empty_place() {
    let folder = tempfile::tempdir().unwrap();
    let contents = Contents { revision: 1, compacted: 0, base: vec![], history: vec![], leases: vec![] };
    let dir = folder.path().join("store");
    // The remains of an interrupted import do not matter.
    std::fs::create_dir(folder.path().join("store.import")).unwrap();
    std::fs::write(folder.path().join("store.import/FORMAT"), "half").unwrap();
    Embedded::import(&dir, &contents).unwrap();
    assert!(!folder.path().join("store.import").exists());
    let error = Embedded::import(&dir, &contents).unwrap_err().to_string();
    assert!(error.contains("not empty"), "{error}");
}
