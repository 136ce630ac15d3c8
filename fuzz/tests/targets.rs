//! Tests that every target survives its seeds, the inputs that failed once, and a fixed number of mutations: the same
//! on every machine.
//!
//! The number of inputs bounds it. `FUZZ_INPUTS` runs more of them; `cargo xtask fuzz` searches, guided by coverage.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use fuzz::mutate::Mutator;
use fuzz::{Target, corpus, guard, memory, targets};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// The number of mutations of each target.
const INPUTS: usize = 500;
/// The seed of the mutations.
const SEED: u64 = 36;
/// The stack of a thread of the API server.
const STACK: usize = 2 << 20;

#[test]
fn every_target_survives_untrusted_bytes() {
    guard::prepare();
    let all: Vec<&Target> = targets::all().collect();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let worker = || {
            let mine = std::iter::from_fn(|| all.get(next.fetch_add(1, Ordering::Relaxed)));
            mine.filter_map(|target| survive(target).err()).collect::<Vec<_>>()
        };
        let start = |_| std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, worker);
        let started: Vec<_> = (0..threads).map(start).collect();
        started.into_iter().flat_map(|thread| thread.expect("a thread").join().expect("no panic")).collect()
    });
    // From here on a panic is printed as usual.
    let _ = std::panic::take_hook();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn survive(target: &Target) -> Result<(), String> {
    let inputs = std::env::var("FUZZ_INPUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(INPUTS);
    let mut corpus = (target.seeds)();
    assert!(!corpus.is_empty(), "{} has seeds", target.name);
    let mut mutator = Mutator::new(SEED, &corpus);
    corpus.extend(corpus::regressions(target));
    for input in &corpus {
        try_one(target, input)?;
    }
    for _ in 0..inputs {
        try_one(target, &mutator.mutated(&corpus))?;
    }
    Ok(())
}

fn try_one(target: &Target, input: &[u8]) -> Result<(), String> {
    guard::run(target, input).map_err(|failure| {
        let path = corpus::write(&std::env::temp_dir().join("fuzz-findings").join(target.name), input);
        let path = path.map_or_else(|error| error.to_string(), |path| path.display().to_string());
        format!("{}: {}: {} (the input is {path})", target.name, failure.place, failure.message)
    })
}

#[test]
fn names_are_unique() {
    let names: BTreeSet<&str> = targets::all().map(|target| target.name).collect();
    assert_eq!(names.len(), targets::all().count());
}
