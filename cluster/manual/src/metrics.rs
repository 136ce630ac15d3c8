//! The page of metrics: every family with its type and HELP, and its endpoint.
//!
//! Families that are declared in one place are read from the sources. Others are written while a page is served; those
//! come from a running cluster: the test of the manual refuses a family that the page lacks, and adds it on request. A
//! row stays as long as the sources contain its name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use regex::Regex;

use crate::heading;

pub const FILE: &str = "docs/reference/metrics.md";

/// The endpoints of the families of a directory.
const PLACES: &[(&str, &str)] = &[
    ("control-plane/apiserver", "API server"),
    ("control-plane/scheduler", "scheduler"),
    ("control-plane/controllers", "controller manager"),
    ("machinery/client", "scheduler, controller manager"),
    ("machinery/meta", "`/metrics/slis`"),
    ("node/kubelet", "kubelet"),
    ("node/dns", "cluster DNS"),
];

/// The least length of a literal: shorter ones do not identify a family.
const LEAST_LITERAL: usize = 8;

/// A row of the page: name, type, endpoint and HELP of a family. Two endpoints may describe one name differently.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    name: String,
    place: String,
    kind: String,
    help: String,
}

/// Returns the page.
pub fn page(root: &Path) -> Result<String> {
    let sources = sources(root)?;
    let declared = declared(&sources)?;
    let literals = literals(&sources);
    let says_so = |row: &Row| {
        let mut of_name = declared.iter().filter(|other| other.name == row.name).peekable();
        of_name.peek().is_none() || of_name.any(|other| other.help == row.help)
    };
    let is_named = |row: &Row| literals.iter().any(|literal| row.name.ends_with(literal));
    let mut rows = kept(root);
    rows.retain(|row| is_named(row) && says_so(row));
    // The endpoint at which a running cluster showed a family is more exact than that of its directory.
    let is_known =
        |row: &Row, rows: &BTreeSet<Row>| rows.iter().any(|other| (&other.name, &other.help) == (&row.name, &row.help));
    for row in declared {
        if !is_known(&row, &rows) {
            rows.insert(row);
        }
    }
    let mut out = heading("Metrics");
    out.push_str(
        "Names, types and meanings are upstream's where upstream has the metric. [Monitoring](../monitoring.md) says how to \
         read them.\n\n| metric | type | served by | HELP |\n|---|---|---|---|\n",
    );
    for Row { name, place, kind, help } in &rows {
        out.push_str(&format!("| `{name}` | {kind} | {place} | {help} |\n"));
    }
    Ok(out)
}

/// Returns the rows of the page in the tree.
fn kept(root: &Path) -> BTreeSet<Row> {
    let text = std::fs::read_to_string(root.join(FILE)).unwrap_or_default();
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.strip_suffix(" |")?.splitn(4, " | ").collect();
        let [name, kind, place, help] = cells.as_slice() else { return None };
        let name = name.trim_end_matches('`').to_owned();
        Some(Row { name, place: (*place).to_owned(), kind: (*kind).to_owned(), help: (*help).to_owned() })
    });
    rows.collect()
}

/// The forms of declarations of a family: its name, its type, perhaps its labels, and its HELP.
const DECLARATIONS: [&str; 4] = [
    r#"name: "([a-z0-9_]+)",\s*kind: Kind::(\w+)[^"]*?labels: &?\[[^\]]*\],\s*help: "((?:[^"\\]|\\.)*)""#,
    r#""([a-z0-9_]+)",\s*Kind::(\w+)(?:\([^)]*\))?,\s*(?:&?\[[^\]]*\],\s*)?"((?:[^"\\]|\\.)*)""#,
    r#"= "([a-z0-9_]+)",\s*\[[^\]]*\],\s*(&\[\]|[A-Z]+),\s*"((?:[^"\\]|\\.)*)""#,
    r#""([a-z0-9_]+)",\s*"(counter|gauge|histogram)",\s*"((?:[^"\\]|\\.)*)""#,
];

/// Returns the families that the sources declare in one place.
fn declared(sources: &[(String, String)]) -> Result<BTreeSet<Row>> {
    let patterns = DECLARATIONS.iter().map(|pattern| Regex::new(pattern)).collect::<Result<Vec<_>, _>>()?;
    let mut rows = BTreeSet::new();
    for (path, text) in sources {
        let Some((_, place)) = PLACES.iter().find(|(folder, _)| path.starts_with(folder)) else { continue };
        let own = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for found in patterns.iter().flat_map(|pattern| pattern.captures_iter(own)) {
            let kind = kind(&found[2]);
            // The kubelet writes its pages itself.
            let help = match path.starts_with("node/kubelet") {
                true => crate::cell(&found[3]),
                false => help(&found[1], &kind, &found[3]).with_context(|| found[1].to_owned())?,
            };
            rows.insert(Row { name: found[1].to_owned(), place: (*place).to_owned(), kind, help });
        }
    }
    Ok(rows)
}

/// Returns the type of a family; the kubelet's have it by their buckets.
fn kind(declared: &str) -> String {
    match declared {
        "&[]" => "counter".to_owned(),
        "Counter" | "Gauge" | "Histogram" | "counter" | "gauge" | "histogram" => declared.to_lowercase(),
        _ => "histogram".to_owned(),
    }
}

/// Returns the HELP as it is served: upstream's words where upstream promises the family.
fn help(name: &str, kind: &str, help: &str) -> Option<String> {
    let mut exposition = corten_meta::metrics::Exposition::default();
    exposition.family(name, kind, help);
    let text = exposition.finish();
    let line = text.lines().next()?.strip_prefix(&format!("# HELP {name} "))?;
    Some(crate::cell(line))
}

/// Returns every source that counts, by its path in the tree.
fn sources(root: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for folder in ["machinery", "control-plane", "node", "cluster/src"] {
        for path in rust_files(&root.join(folder))? {
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            if text.contains("amily(") || text.contains("Family {") || text.contains("# HELP") {
                found.push((path.strip_prefix(root)?.display().to_string(), text));
            }
        }
    }
    Ok(found)
}

fn literals(sources: &[(String, String)]) -> BTreeSet<String> {
    let quoted = sources.iter().flat_map(|(_, text)| text.split(['"', ' ', '\n']));
    let is_name = |word: &&str| {
        word.len() >= LEAST_LITERAL && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    quoted.filter(is_name).map(str::to_owned).collect()
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}
