//! `corten audit`: compares the running cluster with the CIS Kubernetes Benchmark, item by item.
//!
//! Three steps: `gather` reads files, settings, probes and objects into [`Facts`]; the sections hold one table of items
//! whose checks are pure functions of the facts; this file runs the checks and prints the report. A check must never
//! pass without a fact that could have failed it: an item without such a fact is not applicable, with its reason.

mod bindings;
mod control_plane;
mod etcd;
mod facts;
pub mod gather;
mod nodes;
mod pods;
mod policies;
mod settings;
mod store;
#[cfg(test)]
mod tests;
mod tls;

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use corten_meta::Value;
use serde_json::json;

use self::facts::Facts;
use crate::cli;
use crate::preflight;

/// One recommendation of the benchmark.
struct Item {
    /// The number of the item in the benchmark.
    id: &'static str,
    title: &'static str,
    /// The remedy of a failure.
    remedy: &'static str,
    check: fn(&Facts) -> Outcome,
}

const fn item(id: &'static str, title: &'static str, remedy: &'static str, check: fn(&Facts) -> Outcome) -> Item {
    Item { id, title, remedy, check }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// With the observation.
    Pass(String),
    /// With all violations.
    Fail(Vec<String>),
    /// With the reason.
    NotApplicable(&'static str),
}

impl Outcome {
    /// Passes if there is no violation.
    fn of(found: Vec<String>, seen: impl Into<String>) -> Outcome {
        if found.is_empty() { Outcome::Pass(seen.into()) } else { Outcome::Fail(found) }
    }

    /// Passes if the condition holds; otherwise fails with `wrong`.
    fn when(holds: bool, seen: impl Into<String>, wrong: impl Into<String>) -> Outcome {
        if holds { Outcome::Pass(seen.into()) } else { Outcome::Fail(vec![wrong.into()]) }
    }

    fn word(&self) -> &'static str {
        match self {
            Outcome::Pass(_) => "pass",
            Outcome::Fail(_) => "fail",
            Outcome::NotApplicable(_) => "n/a",
        }
    }
}

/// An item with its outcome.
struct Line {
    item: &'static Item,
    outcome: Outcome,
}

const SECTIONS: [(&str, &[Item]); 5] = [
    ("1 Control plane components", control_plane::ITEMS),
    ("2 Store", store::ITEMS),
    ("3 Control plane configuration", settings::ITEMS),
    ("4 Worker nodes", nodes::ITEMS),
    ("5 Policies", policies::ITEMS),
];

pub async fn run(flags: &cli::AuditCommand) -> Result<()> {
    preflight::root_for("audit")?;
    let facts = gather::facts(&flags.directories).await?;
    let lines = check_all(&facts);
    match flags.output {
        Some(cli::AuditOutput::Json) => println!("{:#}", document(&lines)),
        None => print!("{}", text(&lines)),
    }
    let failed = count(&lines, "fail");
    ensure!(failed == 0, "{failed} items of the benchmark failed");
    Ok(())
}

/// Checks every item.
fn check_all(facts: &Facts) -> Vec<Line> {
    let items = SECTIONS.iter().flat_map(|(_, items)| items.iter());
    items.map(|item| Line { item, outcome: (item.check)(facts) }).collect()
}

fn count(lines: &[Line], word: &str) -> usize {
    lines.iter().filter(|line| line.outcome.word() == word).count()
}

/// Returns the report for people: every item, the observation, and the remedy of a failure.
fn text(lines: &[Line]) -> String {
    let mut out = String::new();
    let mut rest = lines.iter();
    for (title, items) in SECTIONS {
        let _ = writeln!(out, "{title}");
        for line in rest.by_ref().take(items.len()) {
            describe(&mut out, line);
        }
        out.push('\n');
    }
    let _ = writeln!(
        out,
        "{} passed, {} failed, {} not applicable",
        count(lines, "pass"),
        count(lines, "fail"),
        count(lines, "n/a")
    );
    out
}

fn describe(out: &mut String, line: &Line) {
    let Item { id, title, remedy, .. } = line.item;
    let _ = writeln!(out, "  [{}] {id:<7} {title}", line.outcome.word());
    match &line.outcome {
        Outcome::Pass(seen) => {
            let _ = writeln!(out, "                 {seen}");
        }
        Outcome::NotApplicable(reason) => {
            let _ = writeln!(out, "                 {reason}");
        }
        Outcome::Fail(found) => {
            for one in found {
                let _ = writeln!(out, "                 {one}");
            }
            let _ = writeln!(out, "                 remedy: {remedy}");
        }
    }
}

/// Returns the report for programs.
fn document(lines: &[Line]) -> Value {
    let items: Vec<Value> = lines.iter().map(entry).collect();
    json!({
        "items": items,
        "totals": {
            "pass": count(lines, "pass"),
            "fail": count(lines, "fail"),
            "notApplicable": count(lines, "n/a"),
        },
    })
}

fn entry(line: &Line) -> Value {
    let Item { id, title, remedy, .. } = line.item;
    let (status, found) = match &line.outcome {
        Outcome::Pass(seen) => ("pass", vec![seen.clone()]),
        Outcome::Fail(found) => ("fail", found.clone()),
        Outcome::NotApplicable(reason) => ("notApplicable", vec![(*reason).to_owned()]),
    };
    json!({ "id": id, "title": title, "status": status, "found": found, "remedy": remedy })
}
