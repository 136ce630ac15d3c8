//! `cargo xtask seeds`: seeds of the simulated control plane (`testkit/simulation`), many of them, in an optimised build.
//!
//! With `--mutations`, the faults of `testkit/simulation/mutations.toml` are put into a copy of the sources, each is turned on
//! by a variable, and a seed must find it: a simulation that finds nothing proves nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

use crate::toml::{self, Section};

const PACKAGE: &str = "testkit-simulation";
const LIST: &str = "testkit/simulation/mutations.toml";
/// The variable that turns a mutation on.
const VARIABLE: &str = "CORTEN_MUTATION";
/// The seeds of a run, and those that may look for one mutation.
const SEEDS: u64 = 200;
const MUTATION_SEEDS: u64 = 20;

/// The settings of a run.
#[derive(Debug, PartialEq, Eq)]
struct Settings {
    count: Option<u64>,
    first: u64,
    mutations: bool,
}

/// Runs the command: `[--count N] [--first SEED] [--mutations]`.
pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let settings = parse(words)?;
    let target = root.join("target/simulation");
    if settings.mutations {
        return try_mutations(root, &target, &settings);
    }
    let program = build(root, &target)?;
    let status = command(&program, &settings, SEEDS).status().context("the simulation cannot be run")?;
    ensure!(status.success(), "a seed broke a promise; SIMULATION_SEED=N shows one");
    Ok(())
}

fn parse(words: &[&str]) -> Result<Settings> {
    let mut settings = Settings { count: None, first: 1, mutations: false };
    let number = |text: &str| text.parse().with_context(|| format!("{text:?} is not a number"));
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().copied().with_context(|| format!("{word} needs a number"));
        match *word {
            "--count" => settings.count = Some(number(value()?)?),
            "--first" => settings.first = number(value()?)?,
            "--mutations" => settings.mutations = true,
            other => bail!("unknown word {other:?}: cargo xtask seeds [--count N] [--first SEED] [--mutations]"),
        }
    }
    Ok(settings)
}

fn command(program: &Path, settings: &Settings, count: u64) -> Command {
    let mut command = Command::new(program);
    command.env("SIMULATION_SEEDS", settings.count.unwrap_or(count).to_string());
    command.env("SIMULATION_FIRST", settings.first.to_string());
    command
}

/// Builds the program from the sources in a directory.
fn build(sources: &Path, target: &Path) -> Result<PathBuf> {
    let output = Command::new("cargo")
        .args([
            "test",
            "--package",
            PACKAGE,
            "--profile",
            "fuzz",
            "--no-run",
            "--message-format",
            "json",
            "--target-dir",
        ])
        .arg(target)
        .current_dir(sources)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cargo cannot be run")?;
    ensure!(output.status.success(), "the simulation cannot be built");
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let programs = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let seeds = programs.filter(|message| message["target"]["name"] == "seeds");
    let path = seeds.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
    path.context("cargo named no program of the simulation")
}

/// A fault that is put into the code.
struct Mutation {
    name: String,
    file: String,
    from: String,
    to: String,
}

impl Mutation {
    fn parse(section: &Section) -> Result<Mutation> {
        section.expect(&["name", "file", "from", "to"])?;
        let text = |name: &str| section.text(name).map(str::to_owned);
        Ok(Mutation { name: text("name")?, file: text("file")?, from: text("from")?, to: text("to")? })
    }

    /// Returns the file with the fault, which the variable with its name turns on. Tests in the file stay as they are.
    fn apply(&self, content: &str) -> Result<String> {
        let Mutation { name, file, from, to } = self;
        let code = content.split("#[cfg(test)]").next().unwrap_or_default();
        let count = code.matches(from).count();
        ensure!(count == 1, "{LIST}: {file} has the expression of {name:?} {count} times");
        let is_on = format!("std::env::var_os({VARIABLE:?}).is_some_and(|name| name == {name:?})");
        Ok(content.replacen(from, &format!("(if {is_on} {{ {to} }} else {{ {from} }})"), 1))
    }
}

fn mutations(root: &Path) -> Result<Vec<Mutation>> {
    let text = std::fs::read_to_string(root.join(LIST)).with_context(|| format!("{LIST} cannot be read"))?;
    toml::parse(&text)?.iter().map(Mutation::parse).collect()
}

/// Tries every mutation, by a program of a copy of the sources; fails if no seed finds one.
fn try_mutations(root: &Path, target: &Path, settings: &Settings) -> Result<()> {
    let copy = target.join("sources");
    copy_sources(root, &copy)?;
    let mutations = mutations(root)?;
    for mutation in &mutations {
        let path = copy.join(&mutation.file);
        let content = std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", mutation.file))?;
        std::fs::write(&path, mutation.apply(&content)?)?;
    }
    let program = build(&copy, target)?;
    let mut unnoticed = Vec::new();
    for Mutation { name, .. } in mutations {
        let is_found = is_found(&program, &name, settings)?;
        println!("{name}: {}", if is_found { "found" } else { "NOT FOUND" });
        unnoticed.extend((!is_found).then_some(name));
    }
    ensure!(unnoticed.is_empty(), "no seed finds: {}", unnoticed.join("; "));
    Ok(())
}

fn is_found(program: &Path, name: &str, settings: &Settings) -> Result<bool> {
    let mut seeds = command(program, settings, MUTATION_SEEDS);
    let Output { status, stdout, .. } = seeds.env(VARIABLE, name).output().context("the simulation cannot be run")?;
    let shown = String::from_utf8_lossy(&stdout).into_owned();
    shown.lines().filter(|line| line.starts_with("    ")).take(3).for_each(|line| println!("{line}"));
    Ok(!status.success())
}

/// Copies the tracked files.
fn copy_sources(root: &Path, copy: &Path) -> Result<()> {
    let list = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().context("git cannot be run")?;
    ensure!(list.status.success(), "git cannot list the files");
    for name in String::from_utf8(list.stdout)?.split_terminator('\0') {
        let target = copy.join(name);
        let parent = target.parent().context("a file is in a directory")?;
        std::fs::create_dir_all(parent)?;
        let from = root.join(name);
        if std::fs::read(&from).ok() != std::fs::read(&target).ok() {
            std::fs::copy(&from, &target).with_context(|| format!("{name} cannot be copied"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutation_fits_its_file() {
        let root = crate::root();
        for mutation in mutations(&root).expect("the list is valid") {
            let content = std::fs::read_to_string(root.join(&mutation.file)).expect("the file is there");
            let mutated = mutation.apply(&content).expect("the text is there once");
            assert_ne!(mutated, content, "{}", mutation.name);
        }
    }

    #[test]
    fn words_become_settings() {
        let settings = parse(&["--count", "7", "--first", "3"]).expect("valid words");
        assert_eq!(settings, Settings { count: Some(7), first: 3, mutations: false });
        assert!(parse(&["--count"]).is_err() && parse(&["--hours", "2"]).is_err());
    }
}
