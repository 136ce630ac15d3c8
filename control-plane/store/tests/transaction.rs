//! Tests of transactions: each sees those before it, also in its own group, and changes everything or nothing.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::sync::Arc;

use corten_store::{Embedded, Error, Range, Revision, Store, View};
use futures::future::join_all;

use support::{ManualClock, block_on, small};

fn open(dir: &std::path::Path) -> Arc<Embedded> {
    Embedded::open(small(dir, &Arc::new(ManualClock::default()))).unwrap()
}

/// Adds a key, after checking that there is one for every revision, at this and at the last revisions.
fn add(view: &mut View<'_>, number: u64) -> Result<Revision, Error> {
    let base = view.base_revision();
    let count = |view: &View<'_>, range: Range| view.range(&range).map(|found| found.count);
    assert_eq!(count(view, Range::prefix(b"key"))?, base - 1);
    for revision in base.saturating_sub(5).max(1)..=base {
        assert_eq!(count(view, Range::prefix(b"key").at(revision))?, revision - 1, "at {revision} of {base}");
    }
    assert!(matches!(count(view, Range::prefix(b"key").at(base + 1)), Err(Error::Future { .. })));
    view.put(format!("key{number:03}").into(), "v".into(), 0)?;
    // A transaction sees its own changes at the revision to come, in order of the keys.
    let found = view.range(&Range::prefix(b"key"))?;
    assert_eq!((found.count, found.revision, view.revision()), (base, base + 1, base + 1));
    assert!(found.entries.is_sorted_by(|left, right| left.key < right.key));
    Ok(view.revision())
}

#[test]
fn transactions_of_one_group_see_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut revisions = block_on(async {
        // All are queued before the committer is woken, so they share groups.
        let all = (0..200).map(|number| store.transact(move |view| add(view, (number * 7) % 200)));
        join_all(all).await.into_iter().collect::<Result<Vec<_>, _>>().unwrap()
    });
    // The tasks run in any order.
    revisions.sort_unstable();
    assert_eq!(revisions, (2..=201).collect::<Vec<_>>());
    let before = store.contents();
    drop(store);
    assert_eq!(open(folder.path()).contents(), before);
}

#[test]
fn a_transaction_that_fails_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    block_on(async {
        let fails = |change: fn(&mut View<'_>) -> Result<(), Error>| {
            store.transact(move |view| {
                view.put("a".into(), "1".into(), 0)?;
                change(view)
            })
        };
        let twice = fails(|view| view.put("a".into(), "2".into(), 0).map(drop));
        assert!(matches!(twice.await, Err(Error::DuplicateKey)));
        let deleted = fails(|view| view.delete("a".into()).map(drop));
        assert!(matches!(deleted.await, Err(Error::DuplicateKey)));
        let leased = fails(|view| view.put("b".into(), "2".into(), 9).map(drop));
        assert!(matches!(leased.await, Err(Error::LeaseNotFound(9))));
        let empty = fails(|view| view.put("".into(), "2".into(), 0).map(drop));
        assert!(matches!(empty.await, Err(Error::EmptyKey)));
        let unchanged = store.transact(|view| view.delete("none".into())).await.unwrap();
        assert_eq!(unchanged, None);
    });
    assert_eq!(store.revision(), 1);
}

#[test]
fn a_compaction_of_the_same_group_counts() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    block_on(async {
        for number in 0..5 {
            store.transact(move |view| add(view, number)).await.unwrap();
        }
        let compact = store.compact(5);
        let read = store.transact(|view| Ok(view.range(&Range::prefix(b"key").at(4)).map(|found| found.count)));
        let (compacted, read) = futures::join!(compact, read);
        compacted.unwrap();
        assert!(matches!(read.unwrap(), Err(Error::Compacted { compacted: 5 })));
    });
}
