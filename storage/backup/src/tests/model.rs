//! A repository and a model of it: random backups, deletions and prunes, some of them killed. At every moment every
//! backup restores to its content.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::memory::Memory;
use super::{TestClock, assert_restores, back_up, secret};
use crate::{Error, Owner, Repository};

#[derive(Clone, Debug)]
enum Step {
    BackUp(Vec<u8>),
    /// A backup that is killed after some writes.
    Killed(Vec<u8>, usize),
    Delete(usize),
    Prune,
    KilledPrune(usize),
    Hours(i64),
}

fn chunks() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0..6_u8, 1..4)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => chunks().prop_map(Step::BackUp),
        2 => (chunks(), 0..8_usize).prop_map(|(chunks, writes)| Step::Killed(chunks, writes)),
        2 => (0..4_usize).prop_map(Step::Delete),
        2 => Just(Step::Prune),
        1 => (0..6_usize).prop_map(Step::KilledPrune),
        2 => (1..3_i64).prop_map(Step::Hours),
    ]
}

/// Accepts success, and a session that excludes this one.
fn done_or_busy<T>(result: Result<T, Error>) -> bool {
    match result {
        Ok(_) => true,
        Err(Error::Busy(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

async fn play(steps: Vec<Step>) {
    let objects = Memory::new();
    let clock = TestClock::new();
    let repository = Repository::open(objects.clone(), &secret(1), clock.clock(), Owner::default()).await.unwrap();
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (number, step) in steps.into_iter().enumerate() {
        let id = format!("b{number}");
        match step {
            Step::BackUp(chunks) => {
                if done_or_busy(back_up(&repository, &id, &chunks).await) {
                    model.insert(id, chunks);
                }
            }
            Step::Killed(chunks, writes) => {
                objects.kill_after(writes);
                let confirmed = back_up(&repository, &id, &chunks).await.is_ok();
                objects.revive();
                let exists = repository.list().await.unwrap().contains(&id);
                assert!(exists || !confirmed, "a confirmed backup is missing");
                if exists {
                    model.insert(id, chunks);
                }
            }
            Step::Delete(index) => {
                if let Some(id) = model.keys().nth(index).cloned() {
                    repository.delete(&id).await.unwrap();
                    model.remove(&id);
                }
            }
            Step::Prune => {
                done_or_busy(repository.prune().await);
            }
            Step::KilledPrune(writes) => {
                objects.kill_after(writes);
                let _ = repository.prune().await;
                objects.revive();
            }
            Step::Hours(hours) => clock.advance(hours),
        }
        assert_eq!(repository.list().await.unwrap(), model.keys().cloned().collect::<Vec<_>>());
    }
    clock.advance(2);
    for (id, chunks) in &model {
        assert_restores(&repository, id, chunks).await;
    }
    let verified = repository.verify().await.unwrap();
    assert_eq!(verified.problems, Vec::<String>::new());
    // In the end nothing is stored but what the backups name.
    repository.prune().await.unwrap();
    assert_eq!(objects.names("chunks/").len(), verified.chunks);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_backup_restores_whatever_happened_beside_it(steps in prop::collection::vec(step(), 1..14)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(steps));
    }
}
