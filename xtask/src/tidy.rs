//! The project's own rules that no linter has: files begin with their purpose and stay short, packages depend on each
//! other only along the arrows of the design and their rooms only downwards, and the conformance register agrees with
//! its rules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::files::walk;

/// The most lines of a file; a longer one should be a folder.
const MOST_LINES: usize = 800;

/// The packages of ours that each package may depend on: the arrows of the cluster diagram. `*` may use all.
const ARROWS: &[(&str, &[&str])] = &[
    ("corten-meta", &[]),
    ("corten-api", &["corten-meta"]),
    ("corten-cel", &["corten-meta"]),
    ("corten-descriptions", &[]),
    ("corten-durable", &[]),
    ("corten-managed-fields", &["corten-meta", "corten-api"]),
    ("corten-listen", &[]),
    ("corten-protobuf", &["corten-meta", "corten-api"]),
    ("corten-structural", &["corten-meta", "corten-api", "corten-cel"]),
    ("corten-client", &["corten-meta", "corten-api"]),
    ("corten-crds", &["corten-meta", "corten-client"]),
    ("corten-snapshots", &["corten-meta", "corten-api", "corten-crds"]),
    ("corten-spans", &[]),
    ("corten-grpc", &[]),
    ("corten-etcd", &["corten-grpc"]),
    ("corten-members", &["corten-durable", "corten-etcd"]),
    ("corten-store", &["corten-etcd", "corten-spans"]),
    ("corten-outbound", &[]),
    ("corten-aws", &["corten-outbound"]),
    ("corten-backup", &["corten-outbound", "corten-store"]),
    ("corten-metric-sources", &["corten-meta", "corten-outbound"]),
    ("corten-etcd-server", &["corten-etcd", "corten-listen", "corten-store"]),
    ("corten-access", &["corten-meta"]),
    (
        "corten-admission",
        &[
            "corten-access",
            "corten-api",
            "corten-cel",
            "corten-managed-fields",
            "corten-meta",
            "corten-spans",
            "corten-store",
            "corten-structural",
        ],
    ),
    (
        "corten-apiserver",
        &[
            "corten-access",
            "corten-admission",
            "corten-meta",
            "corten-api",
            "corten-cel",
            "corten-store",
            "corten-descriptions",
            "corten-managed-fields",
            "corten-listen",
            "corten-metric-sources",
            "corten-protobuf",
            "corten-spans",
            "corten-structural",
        ],
    ),
    ("corten-scheduler", &["corten-meta", "corten-api", "corten-client", "corten-cel"]),
    ("corten-state-metrics", &["corten-meta"]),
    ("corten-cloud", &["corten-meta", "corten-api", "corten-aws", "corten-client", "corten-outbound"]),
    ("corten-controllers", &["corten-meta", "corten-api", "corten-client", "corten-crds", "corten-snapshots"]),
    ("corten-balancer", &["corten-listen"]),
    ("corten-bgp", &["corten-meta", "corten-api", "corten-client"]),
    ("corten-cri", &["corten-grpc"]),
    ("corten-files", &[]),
    ("corten-plugins", &["corten-grpc"]),
    ("corten-nftables", &[]),
    (
        "corten-kubelet",
        &[
            "corten-meta",
            "corten-api",
            "corten-client",
            "corten-cri",
            "corten-durable",
            "corten-files",
            "corten-plugins",
            "corten-listen",
            "corten-spans",
        ],
    ),
    ("corten-runtime", &["corten-meta", "corten-cri", "corten-durable", "corten-files", "corten-listen"]),
    ("corten-network", &["corten-durable", "corten-meta", "corten-api", "corten-client", "corten-nftables"]),
    ("corten-proxy", &["corten-meta", "corten-api", "corten-client", "corten-nftables", "corten-listen"]),
    ("corten-dns", &["corten-meta", "corten-api", "corten-client", "corten-listen"]),
    ("corten-simulate", &["corten-meta", "corten-api", "corten-client"]),
    ("corten-storage-plugin", &["corten-plugins"]),
    ("corten-storage-driver", &["corten-meta", "corten-files", "corten-plugins", "corten-storage-plugin"]),
    ("corten-ebs", &["corten-aws", "corten-outbound", "corten-plugins", "corten-storage-plugin"]),
    ("corten-routing", &[]),
    ("corten-edge", &["corten-meta", "corten-listen", "corten-routing"]),
    ("corten-gateway", &["corten-meta", "corten-client", "corten-crds", "corten-outbound", "corten-routing"]),
    ("corten-trace", &["corten-meta", "corten-client", "corten-spans"]),
    ("corten-acme", &["corten-meta", "corten-client", "corten-gateway"]),
    ("corten-storage-backup", &["corten-backup"]),
    (
        "corten-storage-control",
        &[
            "corten-meta",
            "corten-api",
            "corten-client",
            "corten-listen",
            "corten-plugins",
            "corten-snapshots",
            "corten-storage-backup",
        ],
    ),
    ("corten-top", &["corten-meta", "corten-client"]),
    ("corten-why", &["corten-meta", "corten-client"]),
    ("corten-console", &["corten-client", "corten-listen"]),
    ("corten", &["*"]),
    ("manual", &["*"]),
    ("testkit", &["*"]),
    ("testkit-aws", &[]),
    ("testkit-features", &[]),
    ("testkit-fixture", &["corten-meta", "corten-api"]),
    ("testkit-machine", &["corten-nftables"]),
    ("testkit-simulation", &["*"]),
    ("fuzz", &["*"]),
    ("xtask", &[]),
];

/// The packages with messages for clients. They quote as upstream does, which `{:?}` does not.
const CLIENT_FACING: &[&str] = &[
    "machinery/meta/src",
    "machinery/api/src",
    "control-plane/access/src",
    "control-plane/admission/src",
    "control-plane/apiserver/src",
];

pub fn run(root: &Path) -> Result<()> {
    let mut problems = Vec::new();
    for file in rust_files(root)? {
        problems.extend(file_problems(root, &file)?);
    }
    problems.extend(arrow_problems(root)?);
    problems.extend(crate::floors::problems(root, &manifests(root)?)?);
    problems.extend(crate::conformance::problems(root)?);
    for problem in &problems {
        eprintln!("tidy: {problem}");
    }
    ensure!(problems.is_empty(), "{} problems", problems.len());
    Ok(())
}

fn file_problems(root: &Path, file: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
    let mut problems = Vec::new();
    if !text.starts_with("//!") {
        problems.push(format!("{name}: does not open with `//!`, what it is and why it exists"));
    }
    let lines = text.lines().count();
    if lines > MOST_LINES {
        problems.push(format!("{name}: {lines} lines; more than {MOST_LINES} want a folder with named steps"));
    }
    let speaks = CLIENT_FACING.iter().any(|folder| name.starts_with(folder)) && !name.ends_with("tests.rs");
    let own = text.lines().take_while(|line| speaks && line.trim() != "#[cfg(test)]").enumerate();
    // The codes of gRPC are words, which need no quotes.
    for (index, _) in own.filter(|(_, line)| line.contains(":?}") && !line.contains(".code()")) {
        problems.push(format!("{name}:{}: quote strings by `corten_meta::quote`, not by `{{:?}}`", index + 1));
    }
    for (index, line) in text.lines().enumerate() {
        for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("todo", "!("), concat!("unimplemented", "!(")] {
            if line.contains(word) {
                problems.push(format!("{name}:{}: {word} is not a way to finish", index + 1));
            }
        }
    }
    problems.extend(crate::words::problems(root, file, &text));
    Ok(problems)
}

fn arrow_problems(root: &Path) -> Result<Vec<String>> {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut problems = Vec::new();
    for manifest in manifests(root)? {
        let text = std::fs::read_to_string(&manifest)?;
        let Some(package) = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')) else {
            continue;
        };
        let Some(arrows) = allowed.get(package) else {
            problems
                .push(format!("{package}: a package that the diagram does not know; write it into xtask/src/tidy.rs"));
            continue;
        };
        for used in normal_dependencies(&text) {
            if used.starts_with("corten") && !arrows.contains(&"*") && !arrows.contains(&used) {
                problems.push(format!("{package}: depends on {used}, an arrow that the diagram does not have"));
            }
        }
    }
    Ok(problems)
}

/// Returns the dependencies of a package at run time; tests may use more.
fn normal_dependencies(manifest: &str) -> Vec<&str> {
    manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .collect()
}

fn manifests(root: &Path) -> Result<Vec<PathBuf>> {
    Ok(walk(root)?.into_iter().filter(|path| path.ends_with("Cargo.toml") && path.parent() != Some(root)).collect())
}

fn rust_files(root: &Path) -> Result<Vec<PathBuf>> {
    Ok(walk(root)?.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect())
}
