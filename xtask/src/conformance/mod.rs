//! `cargo xtask conformance`: tests the cluster with upstream's own end-to-end suite, and registers the results.
//!
//! The suite, ginkgo and kubectl are upstream's own programs, built by the user; nothing of them is fetched.

mod cluster;
mod counts;
pub mod node;
mod register;
mod registry;
mod report;
mod rules;
mod run;
mod suite;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::tools;
use cluster::{Cluster, Programs};
pub use counts::problems;
use register::Register;
use registry::Registry;
use report::{Outcome, Ran};
use rules::Rules;
use run::{Ended, Interrupts};
use suite::{Part, Suite};

const USAGE: &str =
    "usage: cargo xtask conformance [--all] [--not-passed] [--nodes N] [--procs N] [--focus REGEX] [--skip REGEX]
           [--seed N] [-- FLAGS OF `corten up`]
       cargo xtask conformance --list | --report FILE

  --all           every spec that conformance/not-applicable.toml has no rule for, and not the [Conformance] specs alone
  --not-passed    only specs that are not registered as passed
  --nodes N       nodes of the cluster; 2 if absent
  --procs N       specs that run at the same time; 4 if absent. [Serial] specs run alone, after the others
  --focus, --skip only specs that match, only specs that do not
  --seed N        the order of the specs, as an earlier run's log has it
  --list          runs nothing, and brings the register to the specs of another version of the suite
  --report FILE   runs nothing, and registers what ginkgo's JSON report of another run says

E2E_TEST, GINKGO, KUBECTL   upstream's programs, where they are not on PATH
CONFORMANCE_IMAGES          a folder of docker or OCI archives, as `cargo xtask images` makes them
CONFORMANCE_MANIFESTS       a folder of manifests that are applied before the specs run; none if absent
CORTEN                      the binary to prove; the release build if absent";

/// The options of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    all: bool,
    not_passed: bool,
    list: bool,
    report: Option<PathBuf>,
    nodes: usize,
    procs: usize,
    focus: Option<String>,
    skip: Option<String>,
    seed: Option<u64>,
    /// The flags for `corten up`.
    flags: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            all: false,
            not_passed: false,
            list: false,
            report: None,
            nodes: 2,
            procs: 4,
            focus: None,
            skip: None,
            seed: None,
            flags: Vec::new(),
        }
    }
}

impl Options {
    fn parse(words: &[&str]) -> Result<Options> {
        let mut options = Options::default();
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value\n{USAGE}"));
            match word {
                "--all" => options.all = true,
                "--not-passed" => options.not_passed = true,
                "--list" => options.list = true,
                "--report" => options.report = Some(value()?.into()),
                "--nodes" => options.nodes = number(word, value()?)?,
                "--procs" => options.procs = number(word, value()?)?,
                "--seed" => options.seed = Some(value()?.parse().context("--seed must be a number")?),
                "--focus" => options.focus = Some(value()?.to_owned()),
                "--skip" => options.skip = Some(value()?.to_owned()),
                "--" => options.flags.extend(words.by_ref().map(str::to_owned)),
                _ => bail!("{USAGE}"),
            }
        }
        Ok(options)
    }
}

fn number(flag: &str, text: &str) -> Result<usize> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.with_context(|| format!("{flag} must be a number above 0, not {text:?}"))
}

pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let options = Options::parse(words)?;
    let rules = Rules::read(root)?;
    if options.list {
        return list(root, &rules);
    }
    if let Some(path) = &options.report {
        let ran = report::read(path)?;
        let regressions = register_results(root, &rules, &ran)?;
        return report_failures(&ran, &regressions);
    }
    ensure!(tools::is_root(), "a cluster makes namespaces, mounts and cgroups: run this as root");
    let suite = Suite::find()?;
    let selected = selected(root, &suite, &options, &rules)?;
    let images = images()?;
    let corten = corten(root)?;
    tools::ensure_busybox(root)?;
    let interrupts = Interrupts::keep()?;
    let dir = run_directory(root)?;
    println!("starting {} nodes, importing {} archives", options.nodes, images.len());
    let programs = Programs { corten: &corten, kubectl: &suite.kubectl, runc: &tools::ensure_runc(root)? };
    let cluster = Cluster::up(&programs, Registry::read(&images)?, options.nodes, &options.flags)?;
    cluster.import(&images)?;
    if let Some(manifests) = std::env::var_os("CONFORMANCE_MANIFESTS") {
        cluster.apply(&std::path::absolute(manifests)?)?;
    }
    let mut ran = Vec::new();
    let mut regressions = Vec::new();
    for (part, specs) in selected {
        let log = dir.join(format!("{}.log", part.name()));
        println!("{} specs, {}: {}", specs.len(), part.name(), log.display());
        let mut command = cluster.command(&suite.ginkgo)?;
        command.args(suite::arguments(&suite, &options, &rules, part, &specs, &cluster.kubeconfig(), &dir));
        let ended = run::run(command, &log, &interrupts)?;
        cluster.keep_logs(&dir)?;
        let report = report::read(&dir.join(format!("{}.json", part.name())));
        let part_ran = report.with_context(|| format!("see {}", log.display()))?;
        regressions.extend(register_results(root, &rules, &part_ran)?);
        ran.extend(part_ran);
        ensure!(ended == Ended::ByItself, "interrupted; the finished specs are registered");
    }
    report_failures(&ran, &regressions)
}

/// Returns the specs of each part that the options select; parts without specs are left out.
fn selected(root: &Path, suite: &Suite, options: &Options, rules: &Rules) -> Result<Vec<(Part, Vec<String>)>> {
    let mut names = suite::specs(&suite.e2e_test)?;
    let (register, gone) = Register::read(root)?.for_suite(&names, rules);
    if let Some(spec) = gone.first() {
        bail!("e2e.test is not of the register's version: it has no {spec:?}; `--list` brings the register to it");
    }
    if options.not_passed {
        names.retain(|name| !register.is_passed(name));
    }
    let mut selected = Vec::new();
    for part in [Part::Parallel, Part::Serial] {
        let specs = suite::select(&names, options, rules, part)?;
        selected.push((part, specs.into_iter().map(str::to_owned).collect::<Vec<_>>()));
    }
    selected.retain(|(_, specs)| !specs.is_empty());
    ensure!(!selected.is_empty(), "no spec is selected");
    Ok(selected)
}

/// Registers the results of a run, beside those that other runs wrote in the meantime. Returns the specs that are
/// registered as passed and failed.
fn register_results(root: &Path, rules: &Rules, ran: &[Ran]) -> Result<Vec<String>> {
    let mut register = Register::read(root)?;
    let regressions = register.update(ran);
    register.write(root)?;
    counts::write(root, &register, rules)?;
    Ok(regressions)
}

/// Prints the failures, and fails if there are any.
fn report_failures(ran: &[Ran], regressions: &[String]) -> Result<()> {
    let mut passed = 0;
    let mut failed = 0;
    for Ran { name, outcome } in ran {
        match outcome {
            Outcome::Passed => passed += 1,
            Outcome::Failed(words) => {
                failed += 1;
                eprintln!("failed: {name}: {words}");
            }
            Outcome::Skipped(words) => println!("skipped: {name}: {words}"),
        }
    }
    println!("{passed} passed, {failed} failed, {} skipped themselves", ran.len() - passed - failed);
    for name in regressions {
        eprintln!("registered as passed, and failed: {name}");
    }
    ensure!(regressions.is_empty(), "{} specs failed that are registered as passed", regressions.len());
    ensure!(failed == 0, "{failed} specs failed");
    Ok(())
}

/// Updates the register to the specs of the suite.
fn list(root: &Path, rules: &Rules) -> Result<()> {
    let names = suite::specs(&Suite::e2e_test()?)?;
    let before = if root.join(register::FILE).exists() { Register::read(root)? } else { Register::default() };
    let (register, gone) = before.for_suite(&names, rules);
    register.write(root)?;
    counts::write(root, &register, rules)?;
    println!("{} specs registered, {} gone", register.len(), gone.len());
    Ok(())
}

/// Returns the archives to import.
fn images() -> Result<Vec<PathBuf>> {
    const REMEDY: &str = "make a folder of them by `cargo xtask images` and name it by CONFORMANCE_IMAGES";
    let dir =
        std::env::var_os("CONFORMANCE_IMAGES").with_context(|| format!("the suite's images are missing: {REMEDY}"))?;
    let dir = std::path::absolute(dir)?;
    let entries = std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut archives: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    archives.retain(|path| path.extension().is_some_and(|extension| extension == "tar"));
    archives.sort();
    ensure!(!archives.is_empty(), "{} holds no *.tar: {REMEDY}", dir.display());
    Ok(archives)
}

/// Returns the binary to test.
fn corten(root: &Path) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("CORTEN") {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "CORTEN names {}, which is no file", path.display());
        return Ok(path.canonicalize()?);
    }
    crate::cargo(&["build", "--release"])?;
    Ok(root.join("target/release/corten"))
}

/// Returns a new directory for the reports and logs of this run.
fn run_directory(root: &Path) -> Result<PathBuf> {
    let output = Command::new("date").args(["-u", "+%Y-%m-%dT%H-%M-%S"]).output().context("date cannot be run")?;
    let runs = root.join("target/conformance");
    std::fs::create_dir_all(&runs)?;
    let mut dir = runs.join(String::from_utf8_lossy(&output.stdout).trim());
    // Another run may have begun in this second.
    while let Err(error) = std::fs::create_dir(&dir) {
        ensure!(error.kind() == std::io::ErrorKind::AlreadyExists, "cannot make {}: {error}", dir.display());
        dir.as_mut_os_string().push("-another");
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        assert_eq!(Options::parse(&[]).unwrap(), Options::default());
        let flags = vec!["--port".to_owned(), "1".to_owned()];
        let words = ["--all", "--nodes", "3", "--focus", "a b", "--seed", "7", "--", "--port", "1"];
        let expected =
            Options { all: true, nodes: 3, focus: Some("a b".into()), seed: Some(7), flags, ..Options::default() };
        assert_eq!(Options::parse(&words).unwrap(), expected);
        for words in [&["--nodes", "0"][..], &["--nodes"], &["--what"], &["--seed", "x"]] {
            assert!(Options::parse(words).is_err(), "{words:?}");
        }
    }
}
