//! The RBAC bootstrap policy: roles and bindings of the cluster's own components, from the table
//! `bootstrap_policy.tbl`.
//!
//! Each start adds missing rules and subjects again, unless an object's annotation disables the update. Additional ones
//! are kept.

use corten_access::Rule;
use corten_meta::Value;
use serde_json::{Map, json};

const TABLE: &str = include_str!("bootstrap_policy.tbl");
pub const GROUP: &str = "rbac.authorization.k8s.io";
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// Returns the roles and bindings of every cluster, with their plurals; aggregated roles have their initial rules.
pub fn wanted() -> Vec<(&'static str, Value)> {
    let table = objects();
    let complete = |(plural, object): &(&'static str, Value)| {
        let mut object = object.clone();
        if object.get("aggregationRule").is_some() {
            object["rules"] = json!(aggregated_rules(&table, &object));
        }
        (*plural, object)
    };
    table.iter().map(complete).collect()
}

/// Returns the initial rules of an aggregated role: those of the roles that it selects, by name, each once. The
/// aggregation controller keeps them current afterwards.
fn aggregated_rules(table: &[(&'static str, Value)], role: &Value) -> Vec<Value> {
    let selectors: Vec<&Value> =
        role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array).into_iter().flatten().collect();
    let is_selected = |other: &Value| {
        let labels = corten_meta::labels(other);
        selectors.iter().any(|s| corten_meta::Selector::from_label_selector(s).is_ok_and(|s| s.matches(&labels)))
    };
    let mut selected: Vec<&Value> =
        table.iter().filter(|(plural, o)| *plural == "clusterroles" && is_selected(o)).map(|(_, o)| o).collect();
    selected.sort_unstable_by_key(|o| corten_meta::name(o));
    let mut rules: Vec<Value> = Vec::new();
    for other in selected {
        let own = match other["rules"].as_array() {
            Some(own) => own.clone(),
            None => aggregated_rules(table, other),
        };
        for rule in own {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    rules
}

/// Returns the rules of a ClusterRole in the table.
pub fn rules_of(cluster_role: &str) -> Vec<Rule> {
    let found =
        objects().into_iter().find(|(plural, o)| *plural == "clusterroles" && corten_meta::name(o) == cluster_role);
    let rules = found.map(|(_, object)| object["rules"].clone()).unwrap_or_default();
    rules.as_array().into_iter().flatten().map(Rule::from_value).collect()
}

/// Reads the table: the plural and the object of each entry, in order.
fn objects() -> Vec<(&'static str, Value)> {
    let mut objects: Vec<(&'static str, Value)> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(rule) = line.strip_prefix("  ") {
            if let Some(rules) = objects.last_mut().and_then(|(_, object)| object["rules"].as_array_mut()) {
                rules.push(read_rule(rule));
            }
        } else if let Some(entry) = read_head(line) {
            objects.push(entry);
        }
    }
    objects
}

/// Reads the head of an entry: `clusterrole NAME …`, `role NAMESPACE NAME …`, or a binding.
fn read_head(line: &str) -> Option<(&'static str, Value)> {
    let mut words = line.split(' ');
    let (plural, kind, namespaced, binding) = match words.next()? {
        "clusterrole" => ("clusterroles", "ClusterRole", false, false),
        "role" => ("roles", "Role", true, false),
        "clusterrolebinding" => ("clusterrolebindings", "ClusterRoleBinding", false, true),
        "rolebinding" => ("rolebindings", "RoleBinding", true, true),
        _ => return None,
    };
    let mut metadata = json!({
        "annotations": { AUTOUPDATE: "true" },
        "labels": { "kubernetes.io/bootstrapping": "rbac-defaults" },
    });
    if namespaced {
        metadata["namespace"] = words.next()?.into();
    }
    metadata["name"] = words.next()?.into();
    let mut object = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind });
    if binding {
        let role_kind = if namespaced { "Role" } else { "ClusterRole" };
        object["roleRef"] = json!({ "apiGroup": GROUP, "kind": role_kind, "name": words.next()? });
        let subjects: Vec<Value> = words.filter_map(read_subject).collect();
        if !subjects.is_empty() {
            object["subjects"] = json!(subjects);
        }
    } else {
        let mut selectors = Vec::new();
        for word in words {
            if let Some(label) = word.strip_prefix("label=") {
                metadata["labels"][label] = "true".into();
            } else if let Some(label) = word.strip_prefix("aggregate=") {
                selectors.push(json!({ "matchLabels": { label: "true" } }));
            }
        }
        object["rules"] = json!([]);
        if !selectors.is_empty() {
            object["aggregationRule"] = json!({ "clusterRoleSelectors": selectors });
            object["rules"] = Value::Null;
        }
    }
    object["metadata"] = metadata;
    Some((plural, object))
}

fn read_subject(word: &str) -> Option<Value> {
    let (kind, name) = word.split_once(':')?;
    Some(match kind {
        "sa" => {
            let (namespace, name) = name.split_once('/')?;
            json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace })
        }
        "user" => json!({ "apiGroup": GROUP, "kind": "User", "name": name }),
        _ => json!({ "apiGroup": GROUP, "kind": "Group", "name": name }),
    })
}

fn read_rule(line: &str) -> Value {
    let words: Vec<&str> = line.split(' ').collect();
    let list = |index: usize| -> Value { words.get(index).copied().unwrap_or_default().split(',').collect() };
    let mut rule = Map::new();
    if words.get(1) == Some(&"url") {
        rule.insert("nonResourceURLs".to_owned(), list(2));
    } else {
        let groups = words.get(1).copied().unwrap_or_default().split(',').map(|g| if g == "core" { "" } else { g });
        rule.insert("apiGroups".to_owned(), groups.collect());
        rule.insert("resources".to_owned(), list(2));
        if let Some(names) = words.get(3).and_then(|w| w.strip_prefix("names=")) {
            rule.insert("resourceNames".to_owned(), names.split(',').collect());
        }
    }
    rule.insert("verbs".to_owned(), list(0));
    Value::Object(rule)
}

/// Adds missing rules, subjects, labels and annotations; returns `None` if nothing is missing.
pub fn repair(present: &Value, wanted: &Value) -> Option<Value> {
    if corten_meta::annotations(present).get(AUTOUPDATE).is_some_and(|v| v == "false") {
        return None;
    }
    let mut object = present.clone();
    for field in ["labels", "annotations"] {
        for (key, value) in wanted["metadata"][field].as_object().into_iter().flatten() {
            if object["metadata"][field].get(key).is_none() {
                object["metadata"][field][key] = value.clone();
            }
        }
    }
    // The rules of an aggregated role belong to its controller.
    if wanted.get("aggregationRule").is_none() && wanted["rules"].is_array() {
        let held: Vec<Rule> = present["rules"].as_array().into_iter().flatten().map(Rule::from_value).collect();
        let mut rules = present["rules"].as_array().cloned().unwrap_or_default();
        for rule in wanted["rules"].as_array().into_iter().flatten() {
            let covered = Rule::from_value(rule).atoms().iter().all(|atom| held.iter().any(|h| h.covers_atom(atom)));
            if !covered {
                rules.push(rule.clone());
            }
        }
        object["rules"] = json!(rules);
    }
    if wanted["subjects"].is_array() {
        let mut subjects = present["subjects"].as_array().cloned().unwrap_or_default();
        for subject in wanted["subjects"].as_array().into_iter().flatten() {
            let same = |s: &Value| ["kind", "name", "namespace"].iter().all(|k| s.get(k) == subject.get(k));
            if !subjects.iter().any(same) {
                subjects.push(subject.clone());
            }
        }
        object["subjects"] = json!(subjects);
    }
    (object != *present).then_some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns upstream's golden file, if it is available.
    fn upstream(file: &str) -> Option<Vec<Value>> {
        let directory = std::env::var("KUBERNETES_FACTS").ok()?;
        let yaml = std::fs::read(format!("{directory}/rbac/{file}.yaml")).ok()?;
        let list = corten_meta::decode_yaml(&yaml).expect("upstream's file is YAML");
        Some(list["items"].as_array().expect("a list").clone())
    }

    #[test]
    fn the_table_equals_upstream() {
        let ours = objects();
        let mut compared = 0;
        for file in [
            "cluster-roles",
            "controller-roles",
            "namespace-roles",
            "cluster-role-bindings",
            "controller-role-bindings",
            "namespace-role-bindings",
        ] {
            let Some(items) = upstream(file) else {
                eprintln!("skipped: KUBERNETES_FACTS does not name a directory with rbac/{file}.yaml");
                return;
            };
            for item in items {
                let same = |o: &Value| {
                    o["kind"] == item["kind"]
                        && o["metadata"]["name"] == item["metadata"]["name"]
                        && o["metadata"].get("namespace") == item["metadata"].get("namespace")
                };
                let found =
                    ours.iter().map(|(_, o)| o).find(|o| same(o)).unwrap_or_else(|| panic!("{item} is missing"));
                assert_eq!(*found, item);
                compared += 1;
            }
        }
        assert_eq!(compared, ours.len());
    }

    #[test]
    fn every_line_of_the_table_is_read() {
        let ours = objects();
        assert!(ours.len() > 100, "{}", ours.len());
        assert!(ours.iter().any(|(_, o)| corten_meta::name(o) == "system:kube-scheduler"));
        assert!(!rules_of("system:node").is_empty());
    }

    #[test]
    fn aggregated_roles_have_initial_rules() {
        let rules = |name: &str| {
            let found = wanted().into_iter().find(|w| w.0 == "clusterroles" && corten_meta::name(&w.1) == name);
            found.unwrap().1["rules"].as_array().unwrap().len()
        };
        assert!(rules("view") > 5 && rules("edit") > rules("view") && rules("admin") > rules("edit"));
    }

    #[test]
    fn repair_adds_and_never_removes() {
        let wanted = read_head("clusterrolebinding b r group:g").unwrap().1;
        let mut present = wanted.clone();
        assert_eq!(repair(&present, &wanted), None);
        present["subjects"] = json!([{ "kind": "User", "name": "extra" }]);
        let repaired = repair(&present, &wanted).unwrap();
        assert_eq!(repaired["subjects"].as_array().unwrap().len(), 2);
        present["metadata"]["annotations"][AUTOUPDATE] = "false".into();
        assert_eq!(repair(&present, &wanted), None);
    }
}
