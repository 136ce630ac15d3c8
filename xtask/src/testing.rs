//! `cargo xtask test`: every test, and at its end how long each part took. With `--record` the figures go into the history.

use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::{bench, cargo, cargo_command, facts, root, tidy, tools};

/// The bytes that tests of whole clusters need beside the build: a node takes less than 1 GiB for a full disk.
const LEAST_DISK: u64 = 3 << 30;
/// The parts that are shown; the rest is summed.
const SHOWN: usize = 25;

/// A part of the run and its seconds.
#[derive(Debug, PartialEq)]
struct Part {
    name: String,
    seconds: f64,
}

pub fn run(words: &[&str]) -> Result<()> {
    let (record, filter) = match words {
        ["--record", filter @ ..] => (true, filter),
        filter => (false, filter),
    };
    ensure!(tools::is_root(), "the tests make namespaces, mounts and cgroups: run them as root");
    match facts()? {
        Some(folder) => println!("upstream's data: {}", folder.display()),
        None => println!("without upstream's data: tests that compare with it are skipped"),
    }
    let mut parts = vec![
        timed("tools", || tools::ensure_all(&root()))?,
        timed("tidy", || tidy::run(&root()))?,
        // The whole binary first: tests of whole clusters run it.
        timed("build", || cargo(&["build", "--workspace", "--all-targets"]))?,
    ];
    let left = tools::disk_left(&std::env::temp_dir())?;
    ensure!(
        left >= LEAST_DISK,
        "{} MiB are left on the disk of temporary files, and the tests need {}: nodes run no pods on a full disk",
        left >> 20,
        LEAST_DISK >> 20
    );
    let start = Instant::now();
    let (tests, passed) = test(filter)?;
    parts.extend(tests);
    println!("{}", summary(&parts));
    println!("all tests: {:.0} s", start.elapsed().as_secs_f64());
    ensure!(passed, "some tests failed");
    if record {
        bench::append(&figures(&parts, start.elapsed().as_secs_f64()))?;
    }
    Ok(())
}

fn timed(name: &str, work: impl FnOnce() -> Result<()>) -> Result<Part> {
    let start = Instant::now();
    work()?;
    Ok(Part { name: name.to_owned(), seconds: start.elapsed().as_secs_f64() })
}

/// Runs the tests and passes their output through, in which they say how long they took.
fn test(filter: &[&str]) -> Result<(Vec<Part>, bool)> {
    let arguments = [&["test", "--workspace", "--no-fail-fast"], filter].concat();
    println!("$ cargo {}", arguments.join(" "));
    let (reader, writer) = std::io::pipe()?;
    let mut command: Command = cargo_command(&arguments)?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().context("cargo cannot be run")?;
    // Its ends of the pipe are closed here, so that the last line is the last.
    drop(command);
    let mut parts = Vec::new();
    let mut running = String::new();
    for line in BufReader::new(reader).lines() {
        let line = line?;
        println!("{line}");
        if let Some(name) = target(&line) {
            running = name;
        } else if let Some(seconds) = finished(&line) {
            parts.push(Part { name: running.clone(), seconds });
        }
    }
    Ok((parts, child.wait()?.success()))
}

/// The target that a line says to run: `Running tests/walk.rs (target/debug/deps/walk-0a1b)`.
fn target(line: &str) -> Option<String> {
    let line = line.trim();
    if let Some(package) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{package}, documentation"));
    }
    let (source, program) = line.strip_prefix("Running ")?.split_once(" (")?;
    let file = program.trim_end_matches(')').rsplit('/').next()?;
    let name = file.rsplit_once('-').map_or(file, |(name, _)| name);
    let kind = if source.starts_with("unittests") { "units" } else { "tests" };
    Some(format!("{name}, {kind}"))
}

/// The seconds of `test result: ok. …; finished in 1.25s`.
fn finished(line: &str) -> Option<f64> {
    line.strip_prefix("test result: ")?.rsplit_once("finished in ")?.1.trim_end_matches('s').parse().ok()
}

/// The slowest parts, and the rest as one.
fn summary(parts: &[Part]) -> String {
    let mut sorted: Vec<&Part> = parts.iter().collect();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let (shown, rest) = sorted.split_at(sorted.len().min(SHOWN));
    let mut lines: Vec<String> = shown.iter().map(|part| format!("{:>8.1} s  {}", part.seconds, part.name)).collect();
    if !rest.is_empty() {
        let seconds: f64 = rest.iter().map(|part| part.seconds).sum();
        lines.push(format!("{seconds:>8.1} s  {} others", rest.len()));
    }
    lines.join("\n")
}

/// The figures of a run for the history.
fn figures(parts: &[Part], all: f64) -> Vec<String> {
    let each = parts.iter().filter(|part| part.seconds >= 1.0);
    let mut figures: Vec<String> = each.map(|part| format!("test: {}\t{:.1}\ts", part.name, part.seconds)).collect();
    figures.push(format!("test: all tests\t{all:.1}\ts"));
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_from_the_output() {
        for (line, expected) in [
            ("     Running unittests src/lib.rs (target/debug/deps/corten_meta-0a1b)", Some("corten_meta, units")),
            ("     Running tests/walk.rs (target/debug/deps/walk-0a1b)", Some("walk, tests")),
            ("   Doc-tests corten_meta", Some("corten_meta, documentation")),
            ("running 3 tests", None),
        ] {
            assert_eq!(target(line).as_deref(), expected, "{line}");
        }
        let line = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.50s";
        assert_eq!(finished(line), Some(12.5));
        assert_eq!(finished("test a ... ok"), None);
    }

    #[test]
    fn the_slowest_parts_come_first() {
        let part = |name: &str, seconds: f64| Part { name: name.to_owned(), seconds };
        let parts = [part("a", 0.5), part("b", 2.0), part("c", 1.0)];
        assert_eq!(summary(&parts), "     2.0 s  b\n     1.0 s  c\n     0.5 s  a");
        let many: Vec<Part> = (0..30).map(|number| part(&number.to_string(), f64::from(number))).collect();
        assert!(summary(&many).ends_with("    10.0 s  5 others"), "{}", summary(&many));
        assert_eq!(figures(&parts, 9.0), ["test: b\t2.0\ts", "test: c\t1.0\ts", "test: all tests\t9.0\ts"]);
    }
}
