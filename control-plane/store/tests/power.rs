//! Tests that a power cut at any moment loses no acknowledged write, on a disk that loses what was not synced.
//!
//! Writers as in the test of kills work on the disk; at random moments an image of it is taken, as a power cut would leave
//! it. The store in it opens without repair, has every write that was acknowledged before, and none by halves. Now and then
//! the writers are killed and go on with what an image has. `POWER_SEED` chooses the moments, `POWER_CUTS` their number for
//! each file system.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use support::writers::{self, Acknowledged, Child};
use support::{Chance, block_on};
use testkit_machine::machine::Machine;
use testkit_machine::power::{Disk, FileSystem};
use testkit_machine::tools;

/// The longest time between two cuts.
const LONGEST: Duration = Duration::from_millis(40);
/// The power comes back after one cut in so many.
const RETURNS: u64 = 8;

/// Runs the child; does nothing unless the parent started it.
#[test]
fn child() {
    writers::run_as_child();
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Checks a store before anything has repaired it.
fn check(dir: &Path, acknowledged: &mut Acknowledged, latest: Option<&Acknowledged>) {
    if dir.join("FORMAT").exists() {
        let findings = corten_store::verify(dir).unwrap();
        assert!(findings.is_empty(), "{findings:?}");
    }
    block_on(acknowledged.check(dir, latest));
}

/// Cuts the power of a disk at random moments; returns the number of acknowledged writes.
fn cut(kind: FileSystem, cuts: u64, seed: u64) -> Result<u64, String> {
    let machine = Machine::boot();
    let disk = Disk::attach(&machine, kind, Path::new("/run/disk"))?;
    let mut chance = Chance(seed);
    let mut acknowledged = Acknowledged::default();
    let mut child = Child::start(&disk.path("store"));
    for number in 1..=cuts {
        thread::sleep(Duration::from_micros(chance.below(LONGEST.as_micros() as u64)));
        child.report(&mut acknowledged);
        let image = disk.image().unwrap();
        if number % RETURNS != 0 {
            disk.inspect(image, |path| check(&path.join("store"), &mut acknowledged.clone(), None));
            continue;
        }
        // Writes that are acknowledged after the cut are not on the disk.
        let mut latest = acknowledged.clone();
        child.kill(&mut latest);
        disk.restore(&image);
        check(&disk.path("store"), &mut acknowledged, Some(&latest));
        child = Child::start(&disk.path("store"));
    }
    Ok(acknowledged.writes)
}

#[test]
fn acknowledged_writes_survive_power_cuts() {
    if !tools::is_root() {
        eprintln!("skipped: a machine needs root");
        return;
    }
    let begin = Instant::now();
    let (seed, cuts) = (number("POWER_SEED", 1), number("POWER_CUTS", 24));
    for kind in [FileSystem::Xfs, FileSystem::Ext4] {
        match cut(kind, cuts, seed) {
            Ok(writes) => {
                println!("{kind:?}, seed {seed}: {cuts} cuts, {writes} acknowledged writes, {:?}", begin.elapsed());
                assert!(writes >= cuts / 2, "the children hardly wrote: {writes}");
            }
            Err(reason) => {
                eprintln!("skipped: {reason}");
                return;
            }
        }
    }
}
