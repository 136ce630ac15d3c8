//! The project's own commands: `cargo xtask check | test | conformance | compare | images | faults | seeds | swap | fuzz |
//! bench | dist | reference | sbom | tidy | schema | vm`.
//!
//! Every command that the README asks a contributor to run is here, so that a fresh machine needs only Rust, gcc and
//! root.

mod archive;
mod bench;
mod bench_etcd;
mod compare;
mod conformance;
mod dependencies;
mod dist;
mod faults;
mod files;
mod floors;
mod fuzz;
mod images;
mod licenses;
mod packages;
mod presence;
mod sbom;
mod schema;
mod seeds;
mod swap;
mod testing;
mod tidy;
mod toml;
mod tools;
mod vm;
mod words;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str = "usage: cargo xtask <command>

  check                 formatting, lints, tidy rules, dependencies and unit tests
  test [--record] [FILTER]    everything: fetches what the tests need, runs every test, real clusters included, and says
                        how long each part took; --record appends that to bench/history.tsv
  conformance [--all] [--focus REGEX] …    upstream's end-to-end suite against a cluster; conformance/README.md
  compare --ours KUBECONFIG --theirs KUBECONFIG [--most N] [FILE…]    the same requests to two API servers
  images --programs DIR [--output DIR]     the container images that the suite's specs run; conformance/images.toml
  bench [--record]      measures the release build; --record appends to bench/history.tsv
  bench-etcd --corten BINARY …    ours and upstream's API server over one etcd of three members, with the same load;
                        further flags are those of `corten bench api`
  dist [--programs DIR] [--output DIR]     a release: archive, Debian package, OCI image, bill of materials, sums
  faults [--churn] [--minutes N] [--seed N] [--rate N]     servers over etcd under load and faults, and a checker; with
                        --churn up to seven servers join and leave
  seeds [--count N] [--first SEED] [--mutations]     the whole control plane in simulation, once for each seed; with
                        --mutations, faults that are put into the code must be found
  swap [--upstream DIR] [--corten BINARY] [--only N]     clusters in which one part is upstream's, or all but one
  fuzz [TARGET] [--minutes N]     feeds mutated bytes to every decoder, guided by coverage, for an hour or N minutes
  sbom [FILE]           writes what the binary is made of, as CycloneDX, to target/sbom.cdx.json or FILE
  dependencies          sources, licences and duplicate versions of what we build on
  reference             writes the manual's reference pages, docs/reference, from the code
  tools                 fetches what the tests need into target/tools
  vm [--minutes N] [NAME…]    tests of modes that the host's kernel may lack, in a virtual machine with Debian's kernel
  tidy                  the rules of the house that no linter knows
  schema --from DIR --types DIR   writes machinery/api/schema/v1.36.tbl from a directory of OpenAPI v3 documents
                        and upstream's `staging/src/k8s.io`";

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Vec<String>) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["check"] => check(),
        ["test", words @ ..] => testing::run(words),
        ["conformance", words @ ..] => conformance::run(&root(), words),
        ["compare", words @ ..] => compare::run(&root(), words),
        ["images", words @ ..] => images::run(&root(), words),
        ["bench", flags @ ..] => bench::run(flags),
        ["bench-etcd", flags @ ..] => bench_etcd::run(flags),
        ["dist", words @ ..] => dist::run(&root(), words),
        ["faults", words @ ..] => faults::run(&root(), words),
        ["seeds", words @ ..] => seeds::run(&root(), words),
        ["swap", words @ ..] => swap::run(&root(), words),
        ["fuzz", words @ ..] => fuzz::run(&root(), words),
        ["sbom"] => sbom::write(&root(), &root().join("target/sbom.cdx.json")),
        ["sbom", file] => sbom::write(&root(), Path::new(file)),
        ["dependencies"] => dependencies::run(&root()),
        ["tools"] => tools::ensure_all(&root()),
        ["reference"] => reference(),
        ["vm", filter @ ..] => vm::run(&root(), filter),
        ["tidy"] => tidy::run(&root()),
        ["schema", "--from", dir, "--types", types] => {
            schema::generate(Path::new(dir), Path::new(types), &root().join("machinery/api/schema/v1.36.tbl"))
        }
        _ => bail!("{USAGE}"),
    }
}

fn check() -> Result<()> {
    let start = Instant::now();
    cargo(&["fmt", "--all", "--check"])?;
    tidy::run(&root())?;
    dependencies::run(&root())?;
    cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    cargo(&["test", "--quiet", "--workspace", "--lib", "--bins"])?;
    println!("check: all good in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// By the test that refuses stale pages: what it needs is what the other tests have built.
fn reference() -> Result<()> {
    let arguments = ["test", "--quiet", "--package", "manual", "reference"];
    let status = cargo_command(&arguments)?.env("WRITE_REFERENCE", "1").status().context("cargo cannot be run")?;
    ensure!(status.success(), "the reference pages cannot be written");
    Ok(())
}

/// Returns the workspace's root, as cargo reports it now: a binary that was copied with its `target` directory must not
/// use the directory where it was built.
pub fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).parent().map(Path::to_owned).unwrap_or_default()
}

/// Runs cargo at the root and passes its output through.
pub fn cargo(arguments: &[&str]) -> Result<()> {
    println!("$ cargo {}", arguments.join(" "));
    let status = cargo_command(arguments)?.status().context("cargo cannot be run")?;
    ensure!(status.success(), "cargo {} failed", arguments.join(" "));
    Ok(())
}

/// A cargo command at the root.
pub fn cargo_command(arguments: &[&str]) -> Result<Command> {
    // By name, as a person calls it: another path to the same compiler would build everything anew.
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(root());
    if let Some(folder) = facts()? {
        command.env("KUBERNETES_FACTS", folder);
    }
    // Build scripts see these variables of xtask's own package, and would run again after a build without xtask.
    let own = std::env::vars_os().map(|(name, _)| name);
    for name in own.filter(|name| is_own_variable(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    // Nodes look for mkfs.xfs by PATH, and servers for etcd; one of the host's comes first.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::split_paths(&path).chain(tools::programs(&root()));
    command.env("PATH", std::env::join_paths(path)?);
    // A build for a single use needs no incremental data, which is a third of it.
    if std::env::var_os("CI").is_some() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    Ok(command)
}

/// Reports whether cargo set a variable because it runs xtask.
fn is_own_variable(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO_CRATE_NAME"
}

/// Data of upstream to compare with: the folder that `KUBERNETES_FACTS` names, else the one beside the checkout. Tests look at the
/// variable alone, so none of them is skipped where the data is.
pub fn facts() -> Result<Option<PathBuf>> {
    if let Some(named) = std::env::var_os("KUBERNETES_FACTS").map(PathBuf::from) {
        ensure!(named.is_dir(), "KUBERNETES_FACTS names {}, which is no folder", named.display());
        return Ok(Some(named));
    }
    Ok(Some(root().join("../shared/kubernetes-v1.36")).filter(|beside| beside.is_dir()))
}
