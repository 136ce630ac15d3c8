//! The packages of the workspace's build, from `cargo metadata` and Cargo.lock; `dependencies` checks them and `sbom`
//! lists them.
//!
//! `cargo metadata` is filtered by this machine's platform: packages of other platforms are not downloaded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A package of the workspace or of the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Cargo's identifier.
    pub id: String,
    pub name: String,
    pub version: String,
    /// The licence as the package states it; empty if it does not.
    pub license: String,
    pub description: String,
    /// The source of the package; empty for one of the workspace.
    pub source: String,
    /// The directory of a package of the workspace, relative to the root.
    pub directory: String,
    /// The dependencies that it is compiled with.
    pub dependencies: Vec<Dependency>,
}

/// An edge of the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    pub id: String,
    /// Whether the compiled package contains it, and not only its build script.
    pub is_linked: bool,
}

/// An entry of Cargo.lock.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Locked {
    pub name: String,
    pub version: String,
    pub source: String,
    pub checksum: String,
}

/// Returns the compiler's name for this machine's platform.
pub fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("rustc cannot be run")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not report its host")
}

/// Returns all packages that this platform uses, tests included.
pub fn read(root: &Path) -> Result<Vec<Package>> {
    let arguments = ["metadata", "--format-version", "1", "--locked", "--filter-platform", &host()?];
    let output = Command::new("cargo").args(arguments).current_dir(root).output().context("cargo cannot be run")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    parse(&serde_json::from_slice(&output.stdout)?, root)
}

/// Reads the answer of `cargo metadata`.
pub fn parse(metadata: &Value, root: &Path) -> Result<Vec<Package>> {
    let nodes = metadata.pointer("/resolve/nodes").and_then(Value::as_array).context("cargo resolved nothing")?;
    let used: BTreeMap<&str, &Value> = nodes.iter().map(|node| (text(node, "id"), node)).collect();
    let packages = metadata["packages"].as_array().context("cargo names no packages")?;
    let mut read: Vec<Package> =
        packages.iter().filter_map(|package| Some(package_of(package, used.get(text(package, "id"))?, root))).collect();
    read.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(read)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn package_of(package: &Value, node: &Value, root: &Path) -> Package {
    let manifest = Path::new(text(package, "manifest_path"));
    let directory = manifest.parent().and_then(|dir| dir.strip_prefix(root).ok());
    Package {
        id: text(package, "id").to_owned(),
        name: text(package, "name").to_owned(),
        version: text(package, "version").to_owned(),
        license: text(package, "license").to_owned(),
        description: text(package, "description").trim().to_owned(),
        source: text(package, "source").to_owned(),
        directory: directory.map(|dir| dir.display().to_string()).unwrap_or_default(),
        dependencies: node["deps"].as_array().into_iter().flatten().filter_map(dependency_of).collect(),
    }
}

/// Returns a dependency; `None` if only tests use it.
fn dependency_of(dependency: &Value) -> Option<Dependency> {
    let kinds: BTreeSet<&str> =
        dependency["dep_kinds"].as_array().into_iter().flatten().map(|kind| text(kind, "kind")).collect();
    let is_linked = kinds.contains("");
    let is_built = is_linked || kinds.contains("build");
    is_built.then(|| Dependency { id: text(dependency, "pkg").to_owned(), is_linked })
}

/// Reads Cargo.lock, also the packages of other platforms.
pub fn locked(root: &Path) -> Result<Vec<Locked>> {
    let text = std::fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    Ok(parse_lock(&text))
}

pub fn parse_lock(text: &str) -> Vec<Locked> {
    text.split("[[package]]").skip(1).map(locked_of).collect()
}

fn locked_of(section: &str) -> Locked {
    let field = |name: &str| {
        let value = section.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        value.and_then(|value| value.strip_suffix('"')).unwrap_or_default().to_owned()
    };
    Locked { name: field("name"), version: field("version"), source: field("source"), checksum: field("checksum") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_read() {
        let text = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"registry+x\"\nchecksum = \"ab\"\n\n[[package]]\nname = \"b\"\nversion = \"0.1.0\"\ndependencies = [\n \"a\",\n]\n";
        let locked = parse_lock(text);
        assert_eq!(locked.len(), 2);
        assert_eq!((locked[0].name.as_str(), locked[0].checksum.as_str()), ("a", "ab"));
        assert_eq!((locked[1].name.as_str(), locked[1].source.as_str()), ("b", ""));
    }
}
