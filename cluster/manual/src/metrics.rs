//! The page of metrics: every family of the components' lists with its type, its endpoints and its HELP.

use std::collections::BTreeMap;

use crate::{cell, heading};

/// Returns the page. A family of several endpoints has one row, unless they describe it differently.
pub fn page() -> String {
    let mut rows: BTreeMap<[&str; 3], Vec<&str>> = BTreeMap::new();
    for list in corten::reference::metrics() {
        for family in list.families {
            rows.entry([family.name, family.kind.name(), family.help]).or_default().extend(list.endpoints);
        }
    }
    let mut out = heading("Metrics");
    out.push_str(
        "Names, types and meanings are upstream's where upstream has the metric. [Monitoring](../monitoring.md) says how to \
         read them.\n\n| metric | type | served by | HELP |\n|---|---|---|---|\n",
    );
    for ([name, kind, help], endpoints) in &rows {
        out.push_str(&format!("| `{name}` | {kind} | {} | {} |\n", endpoints.join(", "), cell(help)));
    }
    out
}
