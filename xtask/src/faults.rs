//! `cargo xtask faults`: three servers over three etcd members under a load of requests, while machines, servers and members
//! fail one after the other, or up to seven servers that join and leave (`--churn`); a checker proves from all answers that
//! every promise was kept.
//!
//! The run is a test of the binary (`cluster/tests/servers/faults`), which makes a short one with every run of the tests. A seed
//! gives the same faults again, though not the same interleaving.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::{cargo_command, tools};

/// The test that makes the run, and the one in which servers join and leave.
const TEST: &str = "every_promise_is_kept_under_faults";
const CHURN_TEST: &str = "servers_that_join_and_leave_keep_every_promise";

/// The settings of a run.
#[derive(Debug, PartialEq, Eq)]
struct Settings {
    minutes: u64,
    seed: u64,
    /// The requests a second.
    rate: u64,
    /// Whether servers join and leave in the place of faults.
    is_churn: bool,
}

/// Runs the command: `[--churn] [--minutes N] [--seed N] [--rate N]`.
pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let settings = parse(words, seed_of_now())?;
    ensure!(tools::is_root(), "machines made of namespaces need root");
    tools::ensure_all(root)?;
    println!("seed {}, {} minutes, {} requests a second", settings.seed, settings.minutes, settings.rate);
    let test = if settings.is_churn { CHURN_TEST } else { TEST };
    let length = if settings.is_churn { "CHURN_MINUTES" } else { "FAULTS_MINUTES" };
    let mut command =
        cargo_command(&["test", "--quiet", "--package", "corten", "--test", "servers", test, "--", "--nocapture"])?;
    for (name, value) in [(length, settings.minutes), ("FAULTS_SEED", settings.seed), ("FAULTS_RATE", settings.rate)] {
        command.env(name, value.to_string());
    }
    let status = command.status().context("cargo cannot be run")?;
    ensure!(status.success(), "the run failed; `--seed {}` makes the same faults again", settings.seed);
    Ok(())
}

fn parse(words: &[&str], seed: u64) -> Result<Settings> {
    let is_churn = words.first() == Some(&"--churn");
    let words = if is_churn { &words[1..] } else { words };
    let mut settings = Settings { minutes: 10, seed, rate: 200, is_churn };
    for pair in words.chunks(2) {
        let [name, value] = pair else { bail!("{} needs a number", pair[0]) };
        let target = match *name {
            "--minutes" => &mut settings.minutes,
            "--seed" => &mut settings.seed,
            "--rate" => &mut settings.rate,
            other => bail!("{other:?} is not one of --minutes, --seed and --rate, after --churn"),
        };
        *target = value.parse().with_context(|| format!("{name} {value:?} is no number"))?;
    }
    ensure!(settings.rate > 0, "--rate 0 sends nothing");
    Ok(settings)
}

fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map(|now| now.as_secs()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_settings() {
        assert_eq!(parse(&[], 7).unwrap(), Settings { minutes: 10, seed: 7, rate: 200, is_churn: false });
        let given = parse(&["--churn", "--rate", "500", "--minutes", "2", "--seed", "1"], 7).unwrap();
        assert_eq!(given, Settings { minutes: 2, seed: 1, rate: 500, is_churn: true });
        for bad in [&["--rate"][..], &["--rate", "x"], &["--rate", "0"], &["--hours", "1"]] {
            assert!(parse(bad, 7).is_err(), "{bad:?}");
        }
    }
}
