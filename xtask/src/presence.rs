//! Reads from upstream's type declarations what OpenAPI does not say: whether a field can be absent, and how its zero
//! value is written.
//!
//! Only names and tags are read. A field that is a pointer tells absent from zero; a field without `omitempty` is
//! always written. Unmarked fields are the common case: zero is absent, and absent is not written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The marks of every field, by the type's name in OpenAPI.
#[derive(Default)]
pub struct Presence {
    structs: BTreeMap<String, Struct>,
}

#[derive(Default)]
struct Struct {
    marks: BTreeMap<String, String>,
    /// Types whose fields appear among the struct's own.
    inlined: Vec<String>,
}

impl Presence {
    /// Reads the stable types below upstream's `staging/src/k8s.io`.
    pub fn read(staging: &Path) -> Result<Presence> {
        let mut presence = Presence::default();
        for (package, directory) in packages(staging)? {
            for file in go_files(&directory)? {
                let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
                presence.read_file(&package, &text);
            }
        }
        Ok(presence)
    }

    fn read_file(&mut self, package: &str, text: &str) {
        let mut current: Option<String> = None;
        for line in text.lines() {
            let line = line.trim();
            if let Some(name) = line.strip_prefix("type ").and_then(|l| l.strip_suffix(" struct {")) {
                current = Some(format!("{package}.{name}"));
            } else if line == "}" {
                current = None;
            } else if let (Some(name), Some((before, tag))) = (&current, line.split_once("`json:\"")) {
                let tag = tag.split('"').next().unwrap_or_default();
                self.structs.entry(name.clone()).or_default().read_field(package, before, tag);
            }
        }
    }

    /// The marks of one field: `*` a pointer, `0` written also when it is zero, `z` not written when it is zero; and
    /// the struct that the field is inlined from, if it is.
    pub fn of(&self, type_name: &str, field: &str) -> Option<(&str, Option<&str>)> {
        let of = self.structs.get(type_name)?;
        if let Some(marks) = of.marks.get(field) {
            return Some((marks, None));
        }
        of.inlined.iter().find_map(|inlined| {
            let (marks, _) = self.of(inlined, field)?;
            Some((marks, inlined.rsplit('.').next()))
        })
    }
}

impl Struct {
    fn read_field(&mut self, package: &str, before: &str, tag: &str) {
        let Some(go_type) = before.split_whitespace().last() else { return };
        let mut words = tag.split(',');
        let name = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        if name.is_empty() && words.contains(&"inline") {
            self.inlined.push(qualified(package, go_type.trim_start_matches('*')));
            return;
        }
        let mut marks = String::new();
        if go_type.starts_with('*') {
            marks.push('*');
        }
        if !words.contains(&"omitempty") {
            marks.push('0');
        }
        if words.contains(&"omitzero") {
            marks.push('z');
        }
        if let Some(named) = named_scalar(package, go_type) {
            marks.push(':');
            marks.push_str(&named);
        }
        self.marks.insert(name.to_string(), marks);
    }
}

/// The name that decoding errors have for the values of a field, when it is a named type: `v1.RestartPolicy`.
fn named_scalar(package: &str, go_type: &str) -> Option<String> {
    let inner = go_type.trim_start_matches('*').trim_start_matches("[]").trim_start_matches('*');
    let inner = inner.rsplit(']').next().unwrap_or(inner);
    let name = inner.rsplit('.').next().unwrap_or(inner);
    let is_named = name.chars().next().is_some_and(char::is_uppercase);
    let version = package.rsplit('.').next().unwrap_or("v1");
    is_named.then(|| match inner.split_once('.') {
        Some(("types", name)) => format!("types.{name}"),
        Some((_, name)) => format!("v1.{name}"),
        None => format!("{version}.{name}"),
    })
}

/// The OpenAPI name of a type as it is written in a package.
fn qualified(package: &str, go_type: &str) -> String {
    match go_type.split_once('.') {
        Some(("metav1", name)) => format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}"),
        Some((_, name)) => format!("io.k8s.api.core.v1.{name}"),
        None => format!("{package}.{go_type}"),
    }
}

/// Every package of the stable API with its directory.
fn packages(staging: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut packages = vec![
        ("io.k8s.apimachinery.pkg.apis.meta.v1".to_string(), staging.join("apimachinery/pkg/apis/meta/v1")),
        (
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1".to_string(),
            staging.join("apiextensions-apiserver/pkg/apis/apiextensions/v1"),
        ),
        (
            "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1".to_string(),
            staging.join("kube-aggregator/pkg/apis/apiregistration/v1"),
        ),
    ];
    for group in std::fs::read_dir(staging.join("api")).with_context(|| format!("read {}", staging.display()))? {
        let group = group?.path();
        for version in ["v1", "v2"] {
            if group.join(version).is_dir() {
                let name = group.file_name().unwrap_or_default().to_string_lossy();
                packages.push((format!("io.k8s.api.{name}.{version}"), group.join(version)));
            }
        }
    }
    Ok(packages)
}

/// The files of a package that declare types.
fn go_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("types") && name.ends_with(".go") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
