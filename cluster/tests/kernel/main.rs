//! Modes of a node that not every kernel has: WireGuard between nodes, IPVS, SCTP, and cgroups of version 2 alone. Real
//! clusters with real containers.
//!
//! `cargo xtask vm` runs this program in a virtual machine whose kernel has all of them. On other kernels a test whose mode
//! is missing is skipped, and counted as skipped; that is why the program has a `main` of its own. With `NOTHING_SKIPPED`
//! set, as in the virtual machine, a missing mode is a failure.
//!
//! Pods run this program too: it is the server and the client of SCTP, which busybox does not have (`sctp`).

mod cgroups;
mod clusters;
mod ipvs;
mod sctp;
mod sctp_services;
mod wireguard;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use clusters::Clusters;
use testkit::tools;

/// A test, and the part of the kernel that it needs.
struct Test {
    name: &'static str,
    /// Returns the reason why this kernel cannot run it, if there is one.
    missing: fn() -> Option<String>,
    run: fn(&Clusters),
}

const TESTS: [Test; 4] = [
    Test { name: "wireguard", missing: wireguard::missing, run: wireguard::pods_meet_encrypted },
    Test { name: "ipvs", missing: ipvs::missing, run: ipvs::services_are_served },
    Test { name: "sctp", missing: sctp::missing, run: sctp_services::services_and_policies },
    Test { name: "cgroups", missing: cgroups::missing, run: cgroups::limits_are_in_force },
];

/// The counts of the summary.
#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["sctp-serve", ports @ ..] => sctp::serve(ports),
        ["sctp-ask", address, port] => sctp::print_answer(address, port),
        words => run(words),
    }
}

/// Runs the tests whose names contain one of the words, or all without words. Options of other test programs are ignored.
fn run(words: &[&str]) -> ExitCode {
    let start = Instant::now();
    let filter: Vec<&&str> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let chosen = |test: &&Test| filter.is_empty() || filter.iter().any(|word| test.name.contains(**word));
    let clusters = Clusters::default();
    let mut counts = Counts::default();
    for test in TESTS.iter().filter(chosen) {
        run_test(test, &clusters, &mut counts);
    }
    drop(clusters);
    let Counts { passed, failed, skipped } = counts;
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    let seconds = start.elapsed().as_secs_f64();
    println!("test result: {verdict}. {passed} passed; {failed} failed; {skipped} skipped; finished in {seconds:.2}s");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_test(test: &Test, clusters: &Clusters, counts: &mut Counts) {
    let missing = if tools::is_root() { (test.missing)() } else { Some("a cluster needs root".to_owned()) };
    if let Some(reason) = missing {
        let must_run = std::env::var_os("NOTHING_SKIPPED").is_some();
        let verdict = if must_run { "FAILED" } else { "skipped" };
        println!("test {} ... {verdict}: {reason}; `cargo xtask vm` runs it in a virtual machine", test.name);
        if must_run {
            counts.failed += 1;
        } else {
            counts.skipped += 1;
        }
        return;
    }
    println!("test {} ... runs", test.name);
    let start = Instant::now();
    let ended = catch_unwind(AssertUnwindSafe(|| (test.run)(clusters)));
    let seconds = start.elapsed().as_secs_f64();
    if ended.is_ok() {
        counts.passed += 1;
        println!("test {} ... ok ({seconds:.0} s)", test.name);
    } else {
        counts.failed += 1;
        clusters.print_logs();
        println!("test {} ... FAILED ({seconds:.0} s)", test.name);
    }
}
