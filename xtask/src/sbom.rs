//! The software bill of materials of the binary `corten`: CycloneDX 1.6 in JSON, the same bytes from the same Cargo.lock.
//!
//! It lists every package that is compiled into the binary, and those that only build it (scope `excluded`), with
//! version, licence, digest and dependencies. It has a time only if SOURCE_DATE_EPOCH is set.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::licenses;
use crate::packages::{self, Locked, Package};

/// The package whose binary is described.
const ROOT: &str = "corten";

/// Writes the document to a path.
pub fn write(root: &Path, to: &Path) -> Result<()> {
    let time = std::env::var("SOURCE_DATE_EPOCH").ok().map(|text| text.parse()).transpose();
    let time = time.context("SOURCE_DATE_EPOCH is not a number of seconds")?;
    let document = document(&packages::read(root)?, &packages::locked(root)?, time)?;
    let text = serde_json::to_string_pretty(&document)? + "\n";
    std::fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))?;
    let count = document["components"].as_array().map_or(0, Vec::len);
    println!("{count} components are in {}", to.display());
    Ok(())
}

/// Returns the document, with a time in seconds since 1970 if there is one. Pure.
fn document(all: &[Package], locked: &[Locked], time: Option<u64>) -> Result<Value> {
    let by_id: BTreeMap<&str, &Package> = all.iter().map(|package| (package.id.as_str(), package)).collect();
    let main = all.iter().find(|package| package.name == ROOT).context("cargo does not know the package corten")?;
    let linked = reached(main, &by_id, true);
    let built = reached(main, &by_id, false);
    let parts: Vec<&Package> =
        all.iter().filter(|package| built.contains(package.id.as_str()) && package.id != main.id).collect();
    let components: Vec<Value> =
        parts.iter().map(|package| component(package, locked, linked.contains(package.id.as_str()))).collect();
    let dependencies: Vec<Value> =
        std::iter::once(&main).chain(&parts).map(|package| dependencies_of(package, &by_id)).collect();
    let mut described = component(main, locked, true);
    described["type"] = json!("application");
    let mut metadata = json!({"component": described, "lifecycles": [{"phase": "build"}]});
    if let Some(time) = time {
        metadata["timestamp"] = json!(timestamp(time));
    }
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": metadata,
        "components": components,
        "dependencies": dependencies,
    }))
}

/// Returns the packages that a package consists of, itself included; the tools of build scripts only if not
/// `linked_only`.
fn reached<'a>(main: &'a Package, by_id: &BTreeMap<&'a str, &'a Package>, linked_only: bool) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![main];
    while let Some(package) = open.pop() {
        if !found.insert(package.id.as_str()) {
            continue;
        }
        let wanted = package.dependencies.iter().filter(|dependency| dependency.is_linked || !linked_only);
        open.extend(wanted.filter_map(|dependency| by_id.get(dependency.id.as_str())));
    }
    found
}

/// Returns the package URL, which is also its reference within the document.
fn package_url(package: &Package) -> String {
    let Package { name, version, directory, .. } = package;
    match package.source.is_empty() {
        true => format!("pkg:github/corten-project/corten@{version}#{directory}"),
        false => format!("pkg:cargo/{name}@{}", version.replace('+', "%2B")),
    }
}

fn component(package: &Package, locked: &[Locked], is_linked: bool) -> Value {
    let url = package_url(package);
    let mut component = json!({
        "type": "library",
        "bom-ref": url,
        "name": package.name,
        "version": package.version,
        "scope": if is_linked { "required" } else { "excluded" },
        "licenses": [{"expression": licenses::expression(&package.license)}],
        "purl": url,
    });
    if !package.description.is_empty() {
        component["description"] = json!(package.description);
    }
    let is_same = |locked: &&Locked| locked.name == package.name && locked.version == package.version;
    let checksum = locked.iter().find(is_same).map(|locked| locked.checksum.as_str()).unwrap_or_default();
    if !checksum.is_empty() {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

fn dependencies_of(package: &Package, by_id: &BTreeMap<&str, &Package>) -> Value {
    let used = package.dependencies.iter().filter_map(|dependency| by_id.get(dependency.id.as_str()));
    let used: BTreeSet<String> = used.map(|package| package_url(package)).collect();
    json!({"ref": package_url(package), "dependsOn": used})
}

/// Formats seconds since 1970 as RFC 3339.
fn timestamp(seconds: u64) -> String {
    let days = seconds / 86_400;
    let within = seconds % 86_400;
    // The calendar repeats every 400 years of 146,097 days; years begin in March, so that a leap day is the last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", within / 3_600, within / 60 % 60, within % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::Dependency;

    fn package(name: &str, source: &str, dependencies: &[(&str, bool)]) -> Package {
        let dependency = |(id, is_linked): &(&str, bool)| Dependency { id: (*id).into(), is_linked: *is_linked };
        Package {
            id: name.into(),
            name: name.into(),
            version: "1.0.0+x".into(),
            license: "MIT/Apache-2.0".into(),
            description: "text".into(),
            source: source.into(),
            directory: if source.is_empty() { format!("dir/{name}") } else { String::new() },
            dependencies: dependencies.iter().map(dependency).collect(),
        }
    }

    fn sample() -> (Vec<Package>, Vec<Locked>) {
        let packages = vec![
            package("corten", "", &[("corten-meta", true), ("tool", false)]),
            package("corten-meta", "", &[("lib", true)]),
            package("lib", "registry+x", &[]),
            package("tool", "registry+x", &[("lib", true)]),
            package("unused", "registry+x", &[]),
        ];
        let lock = |name: &str| Locked {
            name: name.into(),
            version: "1.0.0+x".into(),
            source: "registry+x".into(),
            checksum: "ab".repeat(32),
        };
        (packages, vec![lock("lib"), lock("tool")])
    }

    /// Checks a document against the requirements of CycloneDX 1.6.
    fn check_shape(document: &Value) {
        assert_eq!((&document["bomFormat"], &document["specVersion"]), (&json!("CycloneDX"), &json!("1.6")));
        assert_eq!(document["version"], 1);
        let components = document["components"].as_array().expect("components");
        let main = &document["metadata"]["component"];
        let mut references = BTreeSet::new();
        for component in components.iter().chain([main]) {
            for field in ["type", "bom-ref", "name", "version", "purl"] {
                assert!(component[field].as_str().is_some_and(|text| !text.is_empty()), "{field} of {component}");
            }
            assert!(component["purl"].as_str().is_some_and(|url| url.starts_with("pkg:")));
            assert!(component["licenses"][0]["expression"].is_string());
            assert!(["required", "excluded"].iter().any(|scope| component["scope"] == *scope));
            for hash in component["hashes"].as_array().into_iter().flatten() {
                assert_eq!(hash["alg"], "SHA-256");
                assert_eq!(hash["content"].as_str().map(str::len), Some(64));
            }
            assert!(references.insert(component["bom-ref"].clone().to_string()), "a reference is unique");
        }
        let graph = document["dependencies"].as_array().expect("dependencies");
        assert_eq!(graph.len(), references.len());
        for node in graph {
            let used = node["dependsOn"].as_array().expect("a list");
            for reference in used.iter().chain([&node["ref"]]) {
                assert!(references.contains(&reference.to_string()), "{reference} is a component");
            }
        }
    }

    #[test]
    fn a_document_has_the_shape_of_cyclonedx() {
        let (packages, locked) = sample();
        let made = document(&packages, &locked, None).unwrap();
        check_shape(&made);
        let names: Vec<&str> =
            made["components"].as_array().unwrap().iter().filter_map(|component| component["name"].as_str()).collect();
        assert_eq!(names, ["corten-meta", "lib", "tool"]);
        assert_eq!(made["components"][1]["scope"], "required");
        assert_eq!(made["components"][2]["scope"], "excluded");
        assert_eq!(made["components"][1]["purl"], "pkg:cargo/lib@1.0.0%2Bx");
        assert!(made["metadata"].get("timestamp").is_none());
    }

    #[test]
    fn the_sbom_of_this_workspace_is_complete_and_reproducible() {
        let root = crate::root();
        let make = || document(&packages::read(&root).unwrap(), &packages::locked(&root).unwrap(), Some(0)).unwrap();
        let made = make();
        check_shape(&made);
        assert_eq!(made.to_string(), make().to_string());
        let foreign = made["components"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|component| component["purl"].as_str().is_some_and(|url| url.starts_with("pkg:cargo/")));
        for component in foreign {
            assert!(component["hashes"].is_array(), "{} has a digest", component["name"]);
        }
    }

    #[test]
    fn timestamps_are_calendar_times() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(timestamp(1_763_337_599), "2025-11-16T23:59:59Z");
    }
}
