//! Reads facts from upstream's type declarations that OpenAPI lacks: whether a field can be absent, how its zero value
//! is written, the order and names of a struct's fields, and the values of enums.
//!
//! Only names, tags and constants are read. A pointer field distinguishes absent from zero; a field without `omitempty`
//! is always written. Unmarked fields are the common case: zero is absent, and absent is not written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The facts about every field, by the type's name in OpenAPI.
#[derive(Default)]
pub struct Presence {
    structs: BTreeMap<String, Struct>,
    /// The values of every enum type, by the type's full name.
    enums: BTreeMap<String, BTreeSet<String>>,
    /// The values of all string constants, by their name alone.
    constants: BTreeMap<String, String>,
}

#[derive(Default)]
struct Struct {
    fields: BTreeMap<String, Declared>,
    /// The fields and inlined types, in the order of their declaration.
    order: Vec<Member>,
}

enum Member {
    Field(String),
    /// A type whose fields appear among the struct's own.
    Inlined(String),
}

/// The facts of a field's declaration.
#[derive(Default)]
pub struct Declared {
    /// The marks: `*` a pointer, `0` written also when it is zero, `z` not written when it is zero.
    pub marks: String,
    /// The name of its type, as decoding errors write it.
    pub type_name: String,
    /// The full name of the innermost named type of its values.
    named: Option<String>,
}

impl Presence {
    /// Reads the stable types below upstream's `staging/src/k8s.io`.
    pub fn read(staging: &Path) -> Result<Presence> {
        let mut presence = Presence::default();
        let mut sources = Vec::new();
        for (package, directory) in packages(staging)? {
            for file in go_files(&directory)? {
                let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
                sources.push((package.clone(), text));
            }
        }
        for (package, text) in &sources {
            presence.read_file(package, text);
            for (name, _, value) in constants(text) {
                if let Some(value) = quoted(value) {
                    presence.constants.insert(name.to_string(), value.to_string());
                }
            }
        }
        sources.iter().for_each(|(package, text)| presence.read_constants(package, text));
        Ok(presence)
    }

    fn read_file(&mut self, package: &str, text: &str) {
        let mut current: Option<String> = None;
        let mut is_enum = false;
        for line in text.lines() {
            let line = line.trim();
            if let Some(name) = line.strip_prefix("type ").and_then(|l| l.strip_suffix(" struct {")) {
                current = Some(format!("{package}.{name}"));
            } else if let Some(name) = line.strip_prefix("type ").and_then(|l| l.strip_suffix(" string")) {
                if is_enum {
                    self.enums.entry(format!("{package}.{name}")).or_default();
                }
            } else if line == "}" {
                current = None;
            } else if let (Some(name), Some((before, tag))) = (&current, line.split_once("`json:\"")) {
                let tag = tag.split('"').next().unwrap_or_default();
                self.structs.entry(name.clone()).or_default().read_field(package, before, tag);
            }
            // The mark is in the comment above its type.
            is_enum = line.starts_with("//") && (is_enum || line == "// +enum");
        }
    }

    /// Reads the constants of enums: `PodPending PodPhase = "Pending"`, `AddressTypeFQDN = AddressType("FQDN")`, or
    /// `AddressTypeIPv4 = AddressType(v1.IPv4Protocol)` by a constant of another package.
    fn read_constants(&mut self, package: &str, text: &str) {
        for (_, of, value) in constants(text) {
            let (of, value) = match value.split_once('(') {
                Some((of, inner)) if !value.starts_with('"') => (of, inner.trim_end_matches(')')),
                _ => (of, value),
            };
            let other = || self.constants.get(value.rsplit('.').next().unwrap_or_default()).map(String::as_str);
            let Some(value) = quoted(value).or_else(other).map(str::to_owned) else { continue };
            if let Some(values) = self.enums.get_mut(&format!("{package}.{of}")) {
                values.insert(value);
            }
        }
    }

    /// Returns the declaration of one field, and the structs that the field is inlined from, if any.
    pub fn of(&self, type_name: &str, field: &str) -> Option<(&Declared, Option<String>)> {
        let of = self.structs.get(type_name)?;
        if let Some(declared) = of.fields.get(field) {
            return Some((declared, None));
        }
        of.order.iter().find_map(|member| match member {
            Member::Inlined(inlined) => {
                let (declared, deeper) = self.of(inlined, field)?;
                let own = inlined.rsplit('.').next().unwrap_or_default();
                Some((declared, Some(deeper.map_or_else(|| own.to_string(), |deeper| format!("{own}.{deeper}")))))
            }
            Member::Field(_) => None,
        })
    }

    /// Returns the names of all fields of a type, in the order of their declaration.
    pub fn order(&self, type_name: &str) -> Vec<&str> {
        let members = self.structs.get(type_name).into_iter().flat_map(|of| &of.order);
        members
            .flat_map(|member| match member {
                Member::Field(name) => vec![name.as_str()],
                Member::Inlined(inlined) => self.order(inlined),
            })
            .collect()
    }

    /// Returns the enum values of a field's type, sorted.
    pub fn enum_of(&self, declared: &Declared) -> Option<&BTreeSet<String>> {
        self.enums.get(declared.named.as_deref()?).filter(|values| !values.is_empty())
    }
}

impl Struct {
    fn read_field(&mut self, package: &str, before: &str, tag: &str) {
        let mut parts = before.split_whitespace();
        let Some(go_name) = parts.next() else { return };
        let go_type = parts.last().unwrap_or(go_name);
        let mut words = tag.split(',');
        let name = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        if name.is_empty() && words.contains(&"inline") {
            self.order.push(Member::Inlined(qualified(package, go_type.trim_start_matches('*'))));
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
        let inner = innermost(go_type);
        let is_named = inner.rsplit('.').next().is_some_and(|name| name.starts_with(char::is_uppercase));
        let declared = Declared {
            marks,
            type_name: shown(package, go_type.trim_start_matches('*')),
            named: is_named.then(|| qualified(package, inner)),
        };
        self.fields.insert(name.to_string(), declared);
        self.order.push(Member::Field(name.to_string()));
    }
}

/// Returns the innermost type of a pointer, list or map.
fn innermost(go_type: &str) -> &str {
    go_type.rsplit([']', '*']).next().unwrap_or(go_type)
}

/// Returns a type as decoding errors write it, with the last part of each package: `[]v1.KeyUsage`,
/// `map[v1.QualifiedName]v1.DeviceAttribute`.
fn shown(package: &str, go_type: &str) -> String {
    if let Some((key, value)) = go_type.strip_prefix("map[").and_then(|t| t.split_once(']')) {
        return format!("map[{}]{}", shown(package, key), shown(package, value));
    }
    for prefix in ["[]", "*"] {
        if let Some(inner) = go_type.strip_prefix(prefix) {
            return format!("{prefix}{}", shown(package, inner));
        }
    }
    match go_type.split_once('.') {
        Some(("types" | "resource" | "runtime" | "intstr", _)) => go_type.to_string(),
        Some((_, name)) => format!("v1.{name}"),
        None if go_type.starts_with(char::is_uppercase) => {
            format!("{}.{go_type}", package.rsplit('.').next().unwrap_or("v1"))
        }
        None => go_type.to_string(),
    }
}

/// Returns the OpenAPI name of a type as it is written in a package.
fn qualified(package: &str, go_type: &str) -> String {
    match go_type.split_once('.') {
        Some(("metav1", name)) => format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}"),
        Some((_, name)) => format!("io.k8s.api.core.v1.{name}"),
        None => format!("{package}.{go_type}"),
    }
}

/// Returns every package of the stable API with its directory.
/// Every `Name Type = value` of a file, and `Name = value` with an empty type.
fn constants(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).filter_map(|line| {
        let (before, value) = line.split_once(" = ")?;
        let mut words = before.split_whitespace().filter(|word| *word != "const");
        let name = words.next()?;
        let of = words.next().unwrap_or_default();
        words.next().is_none().then_some((name, of, value))
    })
}

fn quoted(value: &str) -> Option<&str> {
    value.strip_prefix('"')?.split('"').next()
}

fn packages(staging: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut packages = vec![
        ("io.k8s.apimachinery.pkg.apis.meta.v1".to_string(), staging.join("apimachinery/pkg/apis/meta/v1")),
        ("io.k8s.apimachinery.pkg.version".to_string(), staging.join("apimachinery/pkg/version")),
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

/// Returns the files of a package that declare types.
fn go_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if (name.starts_with("types") || name == "watch.go") && name.ends_with(".go") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
