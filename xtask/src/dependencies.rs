//! Checks the dependencies of this project: their source, their licence, and that no package has two versions without a
//! reason. Part of `cargo xtask check`; it needs no tool and no network.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, ensure};

use crate::licenses;
use crate::packages::{self, Locked, Package};

/// The name of the registry in Cargo.lock. Each of its packages has a checksum there, which cargo compares with the
/// download.
const REGISTRY: &str = "registry+";

/// The packages with two versions, and the reasons. An entry without a valid reason must be removed.
const TWICE: &[(&str, &str)] = &[
    ("base64", "hyper-util and reqwest are a version ahead of the rest"),
    ("bitflags", "defmt, an optional part of an embedded target's crates, has the old one"),
    ("block-buffer", "comes with digest"),
    ("cpufeatures", "comes with digest"),
    ("crypto-common", "comes with digest"),
    ("digest", "tungstenite uses the next version of RustCrypto, aes-gcm and ours the last"),
    ("getrandom", "ring has the old one"),
    ("hashbrown", "petgraph, of the protobuf compiler, has the old one"),
    ("netlink-sys", "rtnetlink is a version ahead of our own sockets"),
    ("nix", "rtnetlink is a version behind"),
    ("rand_core", "imbl has the old one"),
    ("syn", "derive macros move to the next version one by one; none of it is in the binary"),
    ("synstructure", "comes with syn"),
];

pub fn run(root: &Path) -> Result<()> {
    let used = packages::read(root)?;
    let locked = packages::locked(root)?;
    let mut problems = source_problems(&locked);
    problems.extend(license_problems(&used));
    problems.extend(duplicate_problems(&used, TWICE));
    for problem in &problems {
        eprintln!("dependencies: {problem}");
    }
    ensure!(problems.is_empty(), "{} dependencies are not as they should be", problems.len());
    Ok(())
}

/// Returns the packages that are not from the registry, or have no checksum.
fn source_problems(locked: &[Locked]) -> Vec<String> {
    let foreign: Vec<&Locked> = locked.iter().filter(|package| !package.source.is_empty()).collect();
    let registry = foreign.iter().map(|package| &package.source).find(|source| source.starts_with(REGISTRY));
    let problem = |package: &&Locked| {
        let Locked { name, version, source, checksum } = package;
        let is_digest = checksum.len() == 64 && checksum.bytes().all(|byte| byte.is_ascii_hexdigit());
        match (Some(source) == registry, is_digest) {
            (false, _) => Some(format!("{name} {version} comes from {source}, which is not the registry")),
            (true, false) => Some(format!("{name} {version} has no checksum")),
            (true, true) => None,
        }
    };
    foreign.iter().filter_map(problem).collect()
}

fn license_problems(used: &[Package]) -> Vec<String> {
    let refused = used.iter().filter(|package| !licenses::is_allowed(&package.license));
    refused
        .map(|package| format!("{} {} has the licence {:?}", package.name, package.version, package.license))
        .collect()
}

fn duplicate_problems(used: &[Package], allowed: &[(&str, &str)]) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in used {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    let several: BTreeMap<&str, Vec<&str>> = versions
        .into_iter()
        .filter(|(_, versions)| versions.len() > 1)
        .map(|(name, versions)| (name, versions.into_iter().collect()))
        .collect();
    let is_listed = |name: &str| allowed.iter().any(|(known, _)| *known == name);
    let unlisted = several.iter().filter(|(name, versions)| !is_listed(name) || versions.len() > 2);
    let mut problems: Vec<String> = unlisted
        .map(|(name, versions)| format!("{name} is there in several versions: {}", versions.join(", ")))
        .collect();
    let stale = allowed.iter().filter(|(name, _)| !several.contains_key(name));
    problems.extend(
        stale.map(|(name, _)| format!("{name} is there once: take it from the list in xtask/src/dependencies.rs")),
    );
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked(source: &str, checksum: &str) -> Locked {
        Locked { name: "a".into(), version: "1.0.0".into(), source: source.into(), checksum: checksum.into() }
    }

    fn package(name: &str, version: &str, license: &str) -> Package {
        Package {
            id: format!("{name}@{version}"),
            name: name.into(),
            version: version.into(),
            license: license.into(),
            description: String::new(),
            source: "registry+a".into(),
            directory: String::new(),
            dependencies: Vec::new(),
        }
    }

    #[test]
    fn packages_come_from_the_registry_with_a_checksum() {
        let digest = "0".repeat(64);
        let good = [locked("", ""), locked("registry+a", &digest)];
        assert!(source_problems(&good).is_empty());
        let sources = [locked("git+a", ""), locked("registry+a", ""), locked("registry+b", &digest)];
        for bad in sources {
            let [own, first] = good.clone();
            assert_eq!(source_problems(&[own, first, bad]).len(), 1);
        }
    }

    #[test]
    fn licences_are_of_the_list() {
        assert!(license_problems(&[package("a", "1.0.0", "MIT")]).is_empty());
        assert_eq!(license_problems(&[package("a", "1.0.0", "GPL-3.0-only"), package("b", "1.0.0", "")]).len(), 2);
    }

    #[test]
    fn a_package_has_two_versions_only_for_a_valid_reason() {
        let used = [package("a", "1.0.0", "MIT"), package("a", "2.0.0", "MIT"), package("b", "1.0.0", "MIT")];
        assert!(duplicate_problems(&used, &[("a", "why")]).is_empty());
        assert_eq!(duplicate_problems(&used, &[]).len(), 1);
        assert_eq!(duplicate_problems(&used, &[("a", "why"), ("b", "why")]).len(), 1);
        let thrice = [&used[..], &[package("a", "3.0.0", "MIT")]].concat();
        assert_eq!(duplicate_problems(&thrice, &[("a", "why")]).len(), 1);
    }
}
