//! RBAC rights of subjects that are no components of the cluster: the items of section 5.1.

use corten_meta::Value;

use super::facts::Facts;

/// Groups with the prefix of the cluster's components that contain users.
const USERS: [&str; 3] = ["system:authenticated", "system:unauthenticated", "system:serviceaccounts"];

/// The user name of the API server towards kubelets.
const API_SERVER: &str = "kube-apiserver-kubelet-client";

/// A right: any of these verbs on any of these resources.
pub struct Right {
    pub group: &'static str,
    pub resources: &'static [&'static str],
    pub verbs: &'static [&'static str],
}

/// Lists the bindings that grant a right to a subject outside of the cluster's own components.
pub fn holders(facts: &Facts, right: &Right) -> Vec<String> {
    granted(facts, |rule| {
        let group = has(&rule["apiGroups"], right.group);
        let resource = right.resources.iter().any(|resource| has(&rule["resources"], resource));
        group && resource && right.verbs.iter().any(|verb| has(&rule["verbs"], verb))
    })
}

/// Lists the bindings to others whose role has a rule that fits.
pub fn granted(facts: &Facts, fits: impl Fn(&Value) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for binding in all(facts) {
        let subjects = others(binding);
        if !subjects.is_empty() && rules(facts, binding).iter().any(&fits) {
            found.push(describe(binding, &subjects));
        }
    }
    found
}

/// Lists the bindings to others that name this ClusterRole.
pub fn of_role(facts: &Facts, role: &str) -> Vec<String> {
    let named = all(facts).filter(|binding| binding["roleRef"]["name"] == role);
    let named = named.map(|binding| (binding, others(binding))).filter(|(_, subjects)| !subjects.is_empty());
    named.map(|(binding, subjects)| describe(binding, &subjects)).collect()
}

/// Reports whether any binding names this ServiceAccount.
pub fn binds_account(facts: &Facts, namespace: &str, name: &str) -> bool {
    all(facts).flat_map(subjects).any(|subject| {
        subject["kind"] == "ServiceAccount" && subject["namespace"] == namespace && subject["name"] == name
    })
}

/// Lists the bindings that name a subject.
pub fn naming(facts: &Facts, kind: &str, name: &str) -> Vec<String> {
    let bindings = all(facts)
        .filter(|binding| subjects(binding).any(|subject| subject["kind"] == kind && subject["name"] == name));
    bindings.map(|binding| describe(binding, &[name.to_owned()])).collect()
}

fn all(facts: &Facts) -> impl Iterator<Item = &Value> {
    facts.objects.cluster_role_bindings.iter().chain(&facts.objects.role_bindings)
}

fn subjects(binding: &Value) -> impl Iterator<Item = &Value> {
    binding["subjects"].as_array().into_iter().flatten()
}

/// Returns the subjects that are no components of the cluster.
fn others(binding: &Value) -> Vec<String> {
    let outside = subjects(binding).filter(|subject| !is_part(subject));
    outside.map(|subject| format!("{} {}", text(&subject["kind"]), text(&subject["name"]))).collect()
}

fn is_part(subject: &Value) -> bool {
    let name = text(&subject["name"]);
    match text(&subject["kind"]) {
        "ServiceAccount" => subject["namespace"] == "kube-system",
        "User" => name == API_SERVER || name.starts_with("system:") && name != "system:anonymous",
        "Group" => {
            let is_of_cluster = name.starts_with("system:") || name == "kubeadm:cluster-admins";
            is_of_cluster && !USERS.iter().any(|users| name.starts_with(users))
        }
        _ => false,
    }
}

fn rules(facts: &Facts, binding: &Value) -> Vec<Value> {
    let reference = &binding["roleRef"];
    let roles = if reference["kind"] == "Role" { &facts.objects.roles } else { &facts.objects.cluster_roles };
    let namespace = &binding["metadata"]["namespace"];
    let role = roles.iter().find(|role| {
        let is_near = reference["kind"] != "Role" || role["metadata"]["namespace"] == *namespace;
        is_near && role["metadata"]["name"] == reference["name"]
    });
    role.and_then(|role| role["rules"].as_array()).cloned().unwrap_or_default()
}

fn describe(binding: &Value, subjects: &[String]) -> String {
    let kind = text(&binding["kind"]);
    let name = text(&binding["metadata"]["name"]);
    let role = text(&binding["roleRef"]["name"]);
    let place = match binding["metadata"]["namespace"].as_str() {
        Some(namespace) => format!(" in {namespace}"),
        None => String::new(),
    };
    format!("{kind} {name}{place} gives {role} to {}", subjects.join(", "))
}

pub fn has_wildcard(list: &Value) -> bool {
    list.as_array().into_iter().flatten().any(|known| known == "*")
}

/// Reports whether a list has a word or a wildcard.
fn has(list: &Value, word: &str) -> bool {
    list.as_array().into_iter().flatten().any(|known| known == "*" || known == word)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
