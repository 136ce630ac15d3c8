//! Checks the layers of packages: rooms stand on floors, so that the modules of a package use each other in one
//! direction.
//!
//! A room is a module directly below `src/`, with all its files. The arrows are read from the code: `use` and paths
//! that begin with `crate`, `super` or `self`. Tests may use everything. No circle may include several rooms, or more
//! than a handful of files. The floors of the API server and of admission, which have the most, are listed here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The most files that may use each other in a circle.
const HANDFUL: usize = 4;

/// The floors of a package, from the top down. A room uses rooms of lower floors, and of its own.
struct House {
    package: &'static str,
    floors: &'static [Floor],
}

/// A floor and its rooms.
struct Floor {
    name: &'static str,
    rooms: &'static [&'static str],
}

const HOUSES: &[House] = &[ADMISSION, API_SERVER];

const ADMISSION: House = House {
    package: "control-plane/admission",
    floors: &[
        Floor { name: "chain", rooms: &["chain", "fuzz"] },
        Floor {
            name: "plugins",
            rooms: &[
                "admin_access",
                "advice",
                "certificate_subject_restriction",
                "claim_status",
                "default_ingress_class",
                "default_storage_class",
                "default_toleration_seconds",
                "device_selectors",
                "limit_ranger",
                "mountable_secrets",
                "namespace_lifecycle",
                "node_checks",
                "node_declared_features",
                "node_object",
                "node_restriction",
                "persistent_volume_claim_resize",
                "pod_resize",
                "pod_security",
                "pod_topology_labels",
                "policy",
                "priority",
                "rbac_escalation",
                "resource_quota",
                "runtime_class",
                "service_account",
                "service_allocation",
                "service_families",
                "signing_request",
                "storage_object_in_use_protection",
                "taint_nodes_by_condition",
                "webhook",
            ],
        },
        Floor { name: "a write", rooms: &["plugin", "expressions", "attributes", "rules", "durations"] },
        Floor {
            name: "ground",
            rooms: &["allocation", "client_config", "door", "metrics", "operation", "reinvocation", "touched"],
        },
    ],
};

const API_SERVER: House = House {
    package: "control-plane/apiserver",
    floors: &[
        Floor { name: "edge", rooms: &["serve", "in_process", "fuzz"] },
        Floor { name: "pipeline", rooms: &["pipeline", "dispatch", "paths"] },
        Floor { name: "server", rooms: &["server"] },
        Floor {
            name: "answers beside the verbs",
            rooms: &["subresources", "virtual_resources", "resource_metrics", "aggregation", "proxy"],
        },
        Floor { name: "verbs", rooms: &["verbs"] },
        Floor { name: "write path", rooms: &["write"] },
        Floor {
            name: "guards",
            rooms: &["admission", "flow_control", "audit", "authentication", "limits", "drain", "bootstrap", "repair"],
        },
        Floor { name: "custom resources", rooms: &["decode", "custom_resources", "discovery", "websocket"] },
        Floor { name: "request", rooms: &["target", "core", "authorization", "context", "follow"] },
        Floor {
            name: "registry",
            rooms: &["content", "deadline", "response", "registry", "outbound", "stored_reader"],
        },
        Floor { name: "cache", rooms: &["body", "cache"] },
        Floor {
            name: "ground",
            rooms: &[
                "compression",
                "config",
                "encryption",
                "error",
                "health",
                "metrics",
                "negotiation",
                "peer",
                "upstream_order",
                "request",
                "request_line",
                "scheme",
                "site",
                "storage_format",
                "tasks",
                "write_timeout",
                "version_priority",
                "warnings",
            ],
        },
    ],
};

/// A module of a package: its path below `src/`, without `mod` and the extension.
type Module = String;

/// The modules that each module uses.
type Arrows = BTreeMap<Module, BTreeSet<Module>>;

/// Returns every arrow that points upwards and every circle that is too large.
pub fn problems(root: &Path, packages: &[PathBuf]) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for manifest in packages {
        let folder = manifest.parent().unwrap_or(root);
        let name = folder.strip_prefix(root).unwrap_or(folder).display().to_string();
        let source = folder.join("src");
        if !source.is_dir() {
            continue;
        }
        let arrows = arrows(&source)?;
        problems.extend(circles(&arrows).into_iter().filter(|circle| circle.len() > HANDFUL).map(|circle| {
            let files = circle.into_iter().collect::<Vec<_>>().join(", ");
            format!("{name}: these files use each other in a circle: {files}")
        }));
        problems.extend(circles(&between_rooms(&arrows)).into_iter().map(|circle| {
            let rooms = circle.into_iter().collect::<Vec<_>>().join(", ");
            format!("{name}: these rooms use each other in a circle: {rooms}")
        }));
        for house in HOUSES.iter().filter(|house| house.package == name) {
            problems.extend(upward(house, &arrows));
        }
    }
    Ok(problems)
}

/// Returns the arrows of a house that point upwards, and the rooms that stand on no floor.
fn upward(house: &House, arrows: &Arrows) -> Vec<String> {
    let floor = |room: &str| house.floors.iter().position(|floor| floor.rooms.contains(&room));
    let mut problems = BTreeSet::new();
    for (from, targets) in arrows {
        let Some(here) = floor(room(from)) else {
            problems.insert(format!("{}: {} stands on no floor; see xtask/src/floors.rs", house.package, room(from)));
            continue;
        };
        for to in targets {
            if let Some(there) = floor(room(to)).filter(|there| *there < here) {
                let above = house.floors[there].name;
                let below = house.floors[here].name;
                problems.insert(format!("{}: {from} ({below}) uses {to} ({above}), upwards", house.package));
            }
        }
    }
    problems.into_iter().collect()
}

fn room(module: &str) -> &str {
    module.split('/').next().unwrap_or(module)
}

fn between_rooms(arrows: &Arrows) -> Arrows {
    let mut rooms = Arrows::new();
    for (from, targets) in arrows {
        let others = targets.iter().map(|to| room(to)).filter(|to| *to != room(from)).map(str::to_owned);
        rooms.entry(room(from).to_owned()).or_default().extend(others);
    }
    rooms
}

/// Reads the arrows between the modules of a source folder. `lib.rs` and `main.rs` only declare the rooms.
fn arrows(source: &Path) -> Result<Arrows> {
    let mut files = BTreeMap::new();
    for file in crate::files::walk(source)? {
        let Ok(path_of) = file.strip_prefix(source) else { continue };
        let path_of = path_of.with_extension("").display().to_string();
        let module = path_of.strip_suffix("/mod").unwrap_or(&path_of).to_owned();
        if file.extension().is_some_and(|extension| extension == "rs") && !is_test(&module) {
            files.insert(module, file);
        }
    }
    files.remove("lib");
    files.remove("main");
    let mut arrows = Arrows::new();
    for (module, file) in &files {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let targets = paths(without_tests(&text)).into_iter().filter_map(|path| resolve(module, &path, &files));
        arrows.insert(module.clone(), targets.filter(|target| target != module).collect());
    }
    Ok(arrows)
}

fn is_test(module: &str) -> bool {
    module.split('/').any(|part| part == "tests" || part.ends_with("_tests"))
}

fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

/// Returns the module that a path in another module refers to.
fn resolve(module: &str, path: &[String], files: &BTreeMap<Module, PathBuf>) -> Option<Module> {
    let mut path_of: Vec<&str> = if path[0] == "crate" { Vec::new() } else { module.split('/').collect() };
    for word in path {
        match word.as_str() {
            "crate" | "self" => {}
            "super" => drop(path_of.pop()),
            word => path_of.push(word),
        }
    }
    (1..=path_of.len()).rev().map(|length| path_of[..length].join("/")).find(|candidate| files.contains_key(candidate))
}

/// Returns the paths in a source file that begin in this package.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                read_path(&code[at..], &mut Vec::new(), &mut paths);
            }
        }
    }
    paths
}

/// Reads one path, or each path in braces. Returns the rest of the source.
fn read_path<'a>(text: &'a str, before: &mut Vec<String>, paths: &mut Vec<Vec<String>>) -> &'a str {
    let length = before.len();
    let mut rest = text;
    loop {
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                rest = rest.trim_start().trim_start_matches(',').trim_start();
                if rest.is_empty() || rest.starts_with('}') {
                    break;
                }
                let left = read_path(rest, before, paths);
                let end = left.find([',', '}']).unwrap_or(left.len());
                rest = &left[end..];
            }
            rest = rest.strip_prefix('}').unwrap_or(rest);
            break;
        }
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        if end == 0 {
            break;
        }
        before.push(rest[..end].to_owned());
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(more) => rest = more,
            None => {
                paths.push(before.clone());
                break;
            }
        }
    }
    before.truncate(length);
    rest
}

/// Returns the circles of a graph: sets of nodes of which each reaches every other.
fn circles(arrows: &Arrows) -> Vec<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = arrows.keys().map(|from| (from, reach(arrows, from))).collect();
    let mut circles: BTreeSet<BTreeSet<Module>> = BTreeSet::new();
    for (from, targets) in &reached {
        let back = |to: &&&Module| reached.get(**to).is_some_and(|theirs| theirs.contains(from));
        let circle: BTreeSet<Module> = targets.iter().filter(back).map(|to| (*to).clone()).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

fn reach<'a>(arrows: &'a Arrows, from: &'a Module) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(next) = left.pop() {
        left.extend(arrows.get(next).into_iter().flatten().filter(|to| reached.insert(*to)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        paths(text).into_iter().map(|path| path.join("::")).collect()
    }

    #[test]
    fn paths_are_read_from_code() {
        let uses =
            "use crate::a::{self, B, c::{D, e::F}};\npub use super::g::H as I;\nfn f() { crate::j::k() }\n// crate::l";
        let mut found = read(uses);
        found.sort();
        let expected =
            ["crate::a::B", "crate::a::c::D", "crate::a::c::e::F", "crate::a::self", "crate::j::k", "super::g::H"];
        assert_eq!(found, expected);
        assert_eq!(read("use xcrate::a; ::super::b"), Vec::<String>::new());
    }

    #[test]
    fn a_path_leads_to_the_nearest_module() {
        let files: BTreeMap<Module, PathBuf> =
            ["a", "a/b", "c"].map(|module| (module.to_owned(), PathBuf::new())).into();
        let from = |module: &str, path: &str| {
            let path: Vec<String> = path.split("::").map(str::to_owned).collect();
            resolve(module, &path, &files)
        };
        assert_eq!(from("c", "crate::a::b::Type").as_deref(), Some("a/b"));
        assert_eq!(from("a/b", "super::super::c::f").as_deref(), Some("c"));
        assert_eq!(from("a", "self::b::Type").as_deref(), Some("a/b"));
        assert_eq!(from("a", "crate::Root"), None);
    }

    #[test]
    fn circles_and_upward_arrows_are_found() {
        let arrows: Arrows = [("up/x", vec!["down"]), ("down", vec!["up/y"]), ("up/y", vec![]), ("new", vec![])]
            .into_iter()
            .map(|(from, to)| (from.to_owned(), to.into_iter().map(str::to_owned).collect()))
            .collect();
        assert_eq!(circles(&arrows).len(), 0);
        let rooms = circles(&between_rooms(&arrows));
        assert_eq!(rooms, [BTreeSet::from(["down".to_owned(), "up".to_owned()])]);
        let floors = &[Floor { name: "top", rooms: &["up"] }, Floor { name: "ground", rooms: &["down"] }];
        let problems = upward(&House { package: "p", floors }, &arrows);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("down (ground) uses up/y (top)"), "{problems:?}");
        assert!(problems[1].contains("new stands on no floor"), "{problems:?}");
    }
}
