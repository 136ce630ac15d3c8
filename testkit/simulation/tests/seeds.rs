//! Runs seeds of the simulated control plane, each in a process of its own.
//!
//! `SIMULATION_SEEDS=1000` runs so many, from `SIMULATION_FIRST` on; `SIMULATION_SEED=7` runs one, and prints what happened.
//! `RUST_LOG` shows the log of the components.

use std::path::Path;
use std::process::{Command, ExitCode, Output};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use testkit_simulation::run::run;

/// The seeds of a usual run: enough to notice that something is broken.
const SEEDS: u64 = 4;
/// The seeds that have found a fault of the program, which is mended.
const REGRESSIONS: [u64; 0] = [];
/// The first argument of the process of a seed.
const CHILD: &str = "--seed";
/// A directory in memory.
const MEMORY: &str = "/dev/shm";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [CHILD, seed] => simulate(seed.parse().expect("a seed is a number")),
        _ => run_all(),
    }
}

/// Runs one seed and prints what happened.
fn simulate(seed: u64) -> ExitCode {
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    }
    let outcome = run(seed);
    outcome.journal.iter().for_each(|line| println!("{line}"));
    outcome.broken.iter().for_each(|line| println!("broken: {line}"));
    println!("{} changes, digest {:016x}", outcome.revision, outcome.digest);
    if outcome.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the seeds, as many at once as there are processors.
fn run_all() -> ExitCode {
    let start = Instant::now();
    let seeds = seeds();
    let next = AtomicUsize::new(0);
    let failed = AtomicU64::new(0);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let is_ok = try_seed(*seed, seeds[0] == *seed);
                    failed.fetch_add(u64::from(!is_ok), Ordering::SeqCst);
                }
            });
        }
    });
    let failed = failed.into_inner();
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    let passed = seeds.len() as u64 - failed;
    let seconds = start.elapsed().as_secs_f64();
    println!("test result: {verdict}. {passed} passed; {failed} failed; finished in {seconds:.2}s");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn seeds() -> Vec<u64> {
    if let Some(seed) = number("SIMULATION_SEED") {
        return vec![seed];
    }
    let first = number("SIMULATION_FIRST").unwrap_or(1);
    let count = number("SIMULATION_SEEDS").unwrap_or(SEEDS);
    REGRESSIONS.into_iter().chain(first..first + count).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a seed in a process, and one that must replay in another.
fn try_seed(seed: u64, must_replay: bool) -> bool {
    let output = child(seed);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_single = number("SIMULATION_SEED").is_some();
    let mut problems: Vec<String> =
        text.lines().filter(|line| line.starts_with("broken: ")).map(str::to_owned).collect();
    if !output.status.success() && problems.is_empty() {
        problems.push(format!("the process failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    if must_replay {
        let second = String::from_utf8_lossy(&child(seed).stdout).into_owned();
        let apart = text.lines().zip(second.lines()).find(|(one, other)| one != other);
        problems.extend(apart.map(|(one, other)| format!("the seed does not replay: {one:?} and {other:?}")));
    }
    let verdict = if problems.is_empty() { "ok" } else { "FAILED" };
    let shown = if is_single { text } else { String::new() };
    println!("{shown}test seed {seed} ... {verdict}");
    problems.iter().for_each(|problem| println!("    {problem}"));
    problems.is_empty()
}

fn child(seed: u64) -> Output {
    let memory = Path::new(MEMORY);
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let directory = tempfile::Builder::new().prefix("simulation-").tempdir_in(parent).expect("a directory in memory");
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.args([CHILD, &seed.to_string()]).current_dir(directory.path());
    if std::env::var_os("RUST_LOG").is_some() {
        command.stderr(std::process::Stdio::inherit());
    }
    command.output().expect("this program runs again")
}
