//! `cargo xtask swap`: clusters in which one part is upstream's and the others are ours, and the other way round. Each must
//! bring up a Deployment whose Service answers, roll it, complete a Job, and delete a namespace.
//!
//! Upstream's programs come from a directory of the user; a part that is not there is left out with a sentence. Runtime,
//! network and proxy are ours in every cluster.

mod checks;
mod identity;
mod image;
mod parts;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::tools;
use parts::{Cluster, Programs};

/// The variable with the directory of upstream's programs.
const VARIABLE: &str = "KUBERNETES_BINARIES";

/// A part of a cluster that may be ours or upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    ApiServer,
    ControllerManager,
    Scheduler,
    Kubelet,
}

impl Part {
    pub const ALL: [Part; 4] = [Part::ApiServer, Part::ControllerManager, Part::Scheduler, Part::Kubelet];

    /// Returns the name of upstream's program.
    pub fn program(self) -> &'static str {
        match self {
            Part::ApiServer => "kube-apiserver",
            Part::ControllerManager => "kube-controller-manager",
            Part::Scheduler => "kube-scheduler",
            Part::Kubelet => "kubelet",
        }
    }
}

/// A cluster to try: its parts that are upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combination {
    pub upstream: Vec<Part>,
}

impl Combination {
    /// Returns all clusters in which one part differs from the others, and those in which none does.
    fn all() -> Vec<Combination> {
        let mut all = vec![Combination { upstream: Vec::new() }];
        all.extend(Part::ALL.map(|part| Combination { upstream: vec![part] }));
        let others = |part: Part| Part::ALL.into_iter().filter(|other| *other != part).collect();
        all.extend(Part::ALL.map(|part| Combination { upstream: others(part) }));
        all.push(Combination { upstream: Part::ALL.to_vec() });
        all
    }

    pub fn is_upstream(&self, part: Part) -> bool {
        self.upstream.contains(&part)
    }

    fn title(&self) -> String {
        let name = |part: &Part| part.program();
        match self.upstream.len() {
            0 => "all parts ours".to_owned(),
            4 => "all parts upstream's".to_owned(),
            _ => format!("upstream's {}", self.upstream.iter().map(name).collect::<Vec<_>>().join(", ")),
        }
    }
}

/// The settings of a run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Settings {
    upstream: Option<PathBuf>,
    corten: Option<PathBuf>,
    /// The number of the only combination to try.
    only: Option<usize>,
}

/// Runs the command: `[--upstream DIR] [--corten BINARY] [--only N]`.
pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let settings = parse(words)?;
    ensure!(tools::is_root(), "machines made of namespaces need root");
    tools::ensure_all(root)?;
    let upstream = settings.upstream.or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
    let Some(upstream) = upstream else {
        println!("skipped: name the directory of upstream's programs by --upstream or {VARIABLE}");
        return Ok(());
    };
    let corten = settings.corten.unwrap_or_else(|| root.join("target/debug/corten"));
    ensure!(corten.exists(), "{} does not exist; build it first, or name another by --corten", corten.display());
    let programs = Programs { corten, upstream, etcd: etcd()? };
    let mut failed = Vec::new();
    for (number, combination) in Combination::all().iter().enumerate() {
        if settings.only.is_some_and(|only| only != number) {
            continue;
        }
        let title = format!("{number}: {}", combination.title());
        let missing: Vec<&str> = programs.missing(combination);
        if !missing.is_empty() {
            println!("{title}: skipped, {} holds no {}", programs.upstream.display(), missing.join(", "));
            continue;
        }
        match attempt(&programs, combination) {
            Ok(()) => println!("{title}: passed"),
            Err(error) => {
                println!("{title}: FAILED: {error:#}");
                failed.push(title);
            }
        }
    }
    ensure!(failed.is_empty(), "{} combinations failed", failed.len());
    Ok(())
}

/// Starts a cluster, checks it, and keeps its logs if a check fails.
fn attempt(programs: &Programs, combination: &Combination) -> Result<()> {
    let cluster = Cluster::start(programs, combination)?;
    checks::run(&cluster).with_context(|| format!("the logs are in {}", cluster.keep_logs().display()))
}

fn etcd() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("ETCD_BINARY") {
        return Ok(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("etcd")).find(|path| path.exists());
    found.context("upstream's API server needs an etcd: name one by ETCD_BINARY")
}

fn parse(words: &[&str]) -> Result<Settings> {
    let mut settings = Settings::default();
    for pair in words.chunks(2) {
        let [name, value] = pair else { bail!("{} needs a value", pair[0]) };
        match *name {
            "--upstream" => settings.upstream = Some(value.into()),
            "--corten" => settings.corten = Some(value.into()),
            "--only" => settings.only = Some(value.parse().with_context(|| format!("--only {value:?} is no number"))?),
            other => bail!("{other:?} is not one of --upstream, --corten and --only"),
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_swapped_in_both_directions() {
        let all = Combination::all();
        assert_eq!(all.len(), 10);
        for part in Part::ALL {
            let alone = |combination: &&Combination| combination.upstream == [part];
            let left = |combination: &&Combination| !combination.is_upstream(part) && combination.upstream.len() == 3;
            assert_eq!(all.iter().filter(alone).count(), 1);
            assert_eq!(all.iter().filter(left).count(), 1);
        }
        assert_eq!(all[3].title(), "upstream's kube-scheduler");
    }

    #[test]
    fn words_become_settings() {
        let settings = parse(&["--upstream", "/programs", "--only", "3"]).unwrap();
        assert_eq!(settings, Settings { upstream: Some("/programs".into()), corten: None, only: Some(3) });
        for bad in [&["--only"][..], &["--only", "x"], &["--part", "x"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
