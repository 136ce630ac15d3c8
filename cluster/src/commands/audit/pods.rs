//! Pods of users and the Pod Security levels of their namespaces, for sections 5.2 to 5.7.

use std::collections::BTreeMap;

use corten_meta::Value;

use super::Outcome;
use super::facts::Facts;

/// The namespaces of the cluster's own components.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// A Pod Security level, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

pub fn of_users(facts: &Facts) -> impl Iterator<Item = &Value> {
    facts.objects.pods.iter().filter(|pod| !SYSTEM.contains(&namespace(pod)))
}

pub fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// Returns the name of a pod with its namespace.
pub fn name(pod: &Value) -> String {
    format!("{}/{}", namespace(pod), pod["metadata"]["name"].as_str().unwrap_or_default())
}

pub fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten())
}

/// Returns the namespaces with pods of users, and the number of those pods.
pub fn used_namespaces(facts: &Facts) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for pod in of_users(facts) {
        *counts.entry(namespace(pod).to_owned()).or_insert(0) += 1;
    }
    counts
}

/// Fails for namespaces with pods whose Pod Security level is below `least`.
pub fn admits(facts: &Facts, least: Level) -> Outcome {
    let disabled = facts.flags.access.disable_admission_plugins.iter().any(|plugin| plugin == "PodSecurity");
    let used = used_namespaces(facts);
    if used.is_empty() {
        return Outcome::Pass("no namespace holds pods of users".to_owned());
    }
    let open = used.iter().filter(|(name, _)| disabled || level(facts, name) < least);
    let open = open.map(|(name, pods)| format!("namespace {name} ({pods} pods) enforces {}", word(level(facts, name))));
    Outcome::of(open.collect(), format!("{} namespaces with pods forbid it", used.len()))
}

fn level(facts: &Facts, namespace: &str) -> Level {
    let found = facts.objects.namespaces.iter().find(|object| object["metadata"]["name"] == namespace);
    let label = found.and_then(|object| object["metadata"]["labels"]["pod-security.kubernetes.io/enforce"].as_str());
    match label {
        Some("restricted") => Level::Restricted,
        Some("baseline") => Level::Baseline,
        _ => Level::Privileged,
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Privileged => "no Pod Security level",
        Level::Baseline => "the level baseline",
        Level::Restricted => "the level restricted",
    }
}

/// Fails for the pods of users with a violation.
pub fn without(facts: &Facts, seen: &str, wrong: impl Fn(&Value) -> Option<String>) -> Outcome {
    let found = of_users(facts).filter_map(|pod| wrong(pod).map(|what| format!("pod {} {what}", name(pod))));
    let count = of_users(facts).count();
    Outcome::of(found.collect(), format!("{count} pods of users: {seen}"))
}
