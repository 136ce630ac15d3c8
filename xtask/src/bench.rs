//! `cargo xtask bench`: measures the release build and keeps the history in the tree.

use std::io::Write;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{root, tools};

/// The benchmarks by their names, which are unique in the workspace.
const BENCHES: &[&str] = &[
    "commit",
    "access",
    "placement",
    "rows",
    "controllers",
    "services",
    "traffic",
    "overlay",
    "answers",
    "proxies",
    "routes",
    "cluster",
    "node",
    "api",
];

pub fn run(flags: &[&str]) -> Result<()> {
    let record = match flags {
        [] => false,
        ["--record"] => true,
        _ => bail!("bench takes --record or nothing"),
    };
    ensure!(tools::is_root(), "the benchmarks run clusters: run them as root");
    tools::ensure_all(&root())?;
    if let Err(error) = tools::containerd(&root()) {
        eprintln!("without containerd to compare with: {error:#}");
    }
    let mut figures = Vec::new();
    for bench in BENCHES.iter().copied() {
        println!("$ cargo bench --workspace --bench {bench}");
        // Selecting a single package would give the dependencies other features, and build them again for each.
        let output = Command::new("cargo")
            .args(["bench", "--quiet", "--workspace", "--bench", bench])
            .current_dir(root())
            .output()
            .context("cargo cannot be run")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        print!("{text}");
        ensure!(output.status.success(), "{bench} failed: {}", String::from_utf8_lossy(&output.stderr));
        figures.extend(text.lines().filter(|line| line.matches('\t').count() == 2).map(str::to_owned));
    }
    if record { append(&figures) } else { Ok(()) }
}

/// Appends the figures to the history, with the day and the commit they belong to.
pub fn append(figures: &[String]) -> Result<()> {
    let output_of = |program: &str, arguments: &[&str]| -> Result<String> {
        let output = Command::new(program).args(arguments).current_dir(root()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let day = output_of("date", &["+%F"])?;
    let commit = output_of("git", &["rev-parse", "--short", "HEAD"])?;
    let path = root().join("bench/history.tsv");
    let mut file = std::fs::File::options().create(true).append(true).open(&path)?;
    for figure in figures {
        writeln!(file, "{day}\t{commit}\t{figure}")?;
    }
    println!("recorded in {}", path.display());
    Ok(())
}
