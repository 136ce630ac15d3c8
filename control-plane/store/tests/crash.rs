//! Tests that killing the process at any moment loses no acknowledged write.
//!
//! The test starts itself again as a child, which writes under load and reports each acknowledged write on a pipe. The
//! parent kills it at a random moment, opens the directory, and checks for every reported write. The same directory is
//! used again and again, with small segments and checkpoints, so the kills also hit the changes of files and the
//! recovery itself.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use support::writers::{self, Acknowledged, Child};
use support::{Chance, block_on};

const KILLS: u64 = 1000;
/// The directories that are tested in parallel.
const LANES: u64 = 4;

/// Runs the child; does nothing unless the parent started it.
#[test]
fn child() {
    writers::run_as_child();
}

/// Starts a child and kills it: at any moment of its life, or only after its first write, which it would rarely reach
/// on a slow machine.
fn round(dir: &Path, once_it_writes: bool, chance: &mut Chance, acknowledged: &mut Acknowledged) {
    let child = Child::start(dir);
    if once_it_writes {
        child.wait_for_a_write(acknowledged);
    }
    thread::sleep(Duration::from_micros(chance.below(90_000)));
    child.kill(acknowledged);
}

#[test]
fn acknowledged_writes_survive_a_thousand_kills() {
    let begin = Instant::now();
    let lanes: Vec<_> = (0..LANES)
        .map(|lane| {
            thread::spawn(move || {
                let dir = tempfile::tempdir().unwrap();
                let mut chance = Chance(lane);
                let mut acknowledged = Acknowledged::default();
                for number in 0..KILLS / LANES {
                    round(dir.path(), number % 4 == 0, &mut chance, &mut acknowledged);
                    let latest = acknowledged.clone();
                    block_on(acknowledged.check(dir.path(), Some(&latest)));
                }
                acknowledged.writes
            })
        })
        .collect();
    let writes: u64 = lanes.into_iter().map(|lane| lane.join().unwrap()).sum();
    println!("{KILLS} kills, {writes} acknowledged writes, {:?}", begin.elapsed());
    assert!(writes >= KILLS / 4, "the children hardly wrote: {writes}");
}
