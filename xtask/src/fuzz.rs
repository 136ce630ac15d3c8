//! Runs the fuzzer: builds the package `fuzz` with counters at every edge of the code, and divides the time among the
//! targets.
//!
//! The stable compiler has the instrumentation (LLVM's coverage pass for sanitizers); the fuzzer itself reads the
//! counters. The build has its own directory, `target/fuzz`, so that it does not disturb the normal build.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::packages;

/// The compiler flags for inline counters at every edge. Build scripts and procedural macros have none: `--target`
/// excludes them.
const INSTRUMENTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table";
/// The default duration of all targets together.
const MINUTES: u64 = 60;
/// The least time of a target.
const LEAST_SECONDS: u64 = 5;

struct Wanted<'a> {
    target: Option<&'a str>,
    minutes: u64,
}

/// Runs one target or all of them; fails if any input fails.
pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let wanted = wanted(words)?;
    let fuzzer = build(root)?;
    let all = list(&fuzzer)?;
    let names: Vec<&str> =
        all.iter().map(String::as_str).filter(|name| wanted.target.is_none_or(|it| it == *name)).collect();
    ensure!(!names.is_empty(), "there is no such target; there are: {}", all.join(", "));
    let seconds = (wanted.minutes * 60 / names.len() as u64).max(LEAST_SECONDS);
    let folder = root.join("target/fuzz/runs");
    let mut failed = Vec::new();
    for name in names {
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(&fuzzer).args(["run", name, &seconds.to_string()]).arg(folder.join(name));
        if !command.status().context("the fuzzer cannot be run")?.success() {
            failed.push(name);
        }
    }
    ensure!(failed.is_empty(), "inputs failed, see target/fuzz/runs/*/findings: {}", failed.join(", "));
    Ok(())
}

fn wanted<'a>(words: &[&'a str]) -> Result<Wanted<'a>> {
    let minutes = |text: &str| text.parse().with_context(|| format!("{text:?} is not a number of minutes"));
    Ok(match words {
        [] => Wanted { target: None, minutes: MINUTES },
        ["--minutes", number] => Wanted { target: None, minutes: minutes(number)? },
        [target] => Wanted { target: Some(target), minutes: MINUTES },
        [target, "--minutes", number] => Wanted { target: Some(target), minutes: minutes(number)? },
        _ => bail!("usage: cargo xtask fuzz [TARGET] [--minutes N]"),
    })
}

/// Builds the instrumented fuzzer and returns its path.
fn build(root: &Path) -> Result<PathBuf> {
    let host = packages::host()?;
    let directory = root.join("target/fuzz");
    let status = Command::new("cargo")
        .args(["build", "--package", "fuzz", "--bin", "fuzz", "--profile", "fuzz", "--target", &host, "--target-dir"])
        .arg(&directory)
        .env("RUSTFLAGS", INSTRUMENTED)
        .current_dir(root)
        .status()
        .context("cargo cannot be run")?;
    ensure!(status.success(), "the fuzzer cannot be built");
    Ok(directory.join(host).join("fuzz/fuzz"))
}

fn list(fuzzer: &Path) -> Result<Vec<String>> {
    let output = Command::new(fuzzer).arg("list").output().context("the fuzzer cannot be run")?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}
