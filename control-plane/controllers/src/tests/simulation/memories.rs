//! Managers with memory against managers without: over the same histories they write the same.
//!
//! Every remembered result in every simulation is also compared with a fresh reconcile where it occurs
//! (`runtime/memory.rs`); this test makes sure that there are any.

use super::cluster::{World, run};
use super::everyone::TOGETHER;
use super::workloads::WORLD;
use crate::runtime::memory::tests::{FORGETFUL, RECALLED, RESTLESS};

fn written(world: &World, seed: u64, forgetful: bool) -> Vec<String> {
    FORGETFUL.set(forgetful);
    RESTLESS.set(true);
    let written = run(world, seed, world.steps, world.faults);
    FORGETFUL.set(false);
    RESTLESS.set(false);
    written.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"))
}

#[test]
fn who_remembers_writes_what_one_writes_who_does_not() {
    for (world, seeds) in [(&WORLD, 101..103), (&TOGETHER, 101..102)] {
        let before = RECALLED.get();
        for seed in seeds {
            let (all, known) = (written(world, seed, true), written(world, seed, false));
            let differs = all.iter().zip(&known).position(|(a, b)| a != b);
            let at = differs.unwrap_or(all.len().min(known.len()));
            assert!(all == known, "seed {seed}, write {at}: {:?} and {:?}", all.get(at), known.get(at));
        }
        assert!(RECALLED.get() > before + 100, "next to nothing was remembered");
    }
}
