//! Role-based access control on the live Role and Binding objects.
//!
//! The four resources are decoded into a `Policy` when one of them has changed since the last question;
//! an object that did not change keeps its decoded form. A policy is a snapshot: questions on it are pure.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use corten_meta::{Object, Value};

use super::Attributes;
use crate::authentication::User;
use crate::cache::ResourceCache;

/// One rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub groups: Vec<String>,
    pub resources: Vec<String>,
    pub names: Vec<String>,
    pub urls: Vec<String>,
}

impl Rule {
    pub fn from_value(rule: &Value) -> Rule {
        let list = |key: &str| {
            rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Rule {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            urls: list("nonResourceURLs"),
        }
    }

    /// Whether the rule covers the request.
    pub fn allows(&self, a: &Attributes<'_>) -> bool {
        if !has(&self.verbs, a.verb) {
            return false;
        }
        if !a.is_resource {
            return self.urls.iter().any(|url| url_matches(url, a.path));
        }
        has(&self.groups, a.group)
            && self.resources.iter().any(|resource| resource_matches(resource, a.resource, a.subresource))
            && (self.names.is_empty() || self.names.iter().any(|name| name == a.name))
    }

    /// The rule taken apart into rules of one verb, one group, one resource, one name: what escalation
    /// checks compare.
    pub fn atoms(&self) -> Vec<Rule> {
        let one = |s: &String| vec![s.clone()];
        let mut atoms = Vec::new();
        for verb in &self.verbs {
            for url in &self.urls {
                atoms.push(Rule { verbs: one(verb), urls: one(url), ..Rule::default() });
            }
            for group in &self.groups {
                for resource in &self.resources {
                    let base =
                        Rule { verbs: one(verb), groups: one(group), resources: one(resource), ..Rule::default() };
                    if self.names.is_empty() {
                        atoms.push(base);
                    } else {
                        atoms.extend(self.names.iter().map(|name| Rule { names: one(name), ..base.clone() }));
                    }
                }
            }
        }
        atoms
    }

    /// Whether this rule grants all that the atom grants.
    pub fn covers_atom(&self, atom: &Rule) -> bool {
        let Some(verb) = atom.verbs.first() else { return true };
        if !has(&self.verbs, verb) {
            return false;
        }
        if let Some(url) = atom.urls.first() {
            return self.urls.iter().any(|own| own == url || url_matches(own, url));
        }
        let (Some(group), Some(resource)) = (atom.groups.first(), atom.resources.first()) else { return true };
        let resource_covered = self.resources.iter().any(|own| {
            own == "*"
                || own == resource
                || own.strip_prefix("*/").is_some_and(|sub| resource.split_once('/').is_some_and(|(_, s)| s == sub))
        });
        has(&self.groups, group)
            && resource_covered
            && (self.names.is_empty() || atom.names.first().is_some_and(|name| self.names.contains(name)))
    }

    pub fn to_value(&self) -> Value {
        let mut value = serde_json::json!({ "verbs": self.verbs });
        let mut put = |key: &str, list: &Vec<String>| {
            if !list.is_empty() {
                value[key] = serde_json::json!(list);
            }
        };
        put("apiGroups", &self.groups);
        put("resources", &self.resources);
        put("resourceNames", &self.names);
        put("nonResourceURLs", &self.urls);
        value
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == "*" {
        return true;
    }
    if subresource.is_empty() {
        return rule == resource;
    }
    match rule.split_once('/') {
        Some(("*", sub)) => sub == subresource,
        Some((parent, sub)) => parent == resource && sub == subresource,
        None => false,
    }
}

fn url_matches(rule: &str, path: &str) -> bool {
    match rule.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => rule == path,
    }
}

/// A subject of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

impl Subject {
    fn matches(&self, user: &User, binding_namespace: &str) -> bool {
        match self.kind.as_str() {
            "User" => user.name == self.name,
            "Group" => user.is_in(&self.name),
            "ServiceAccount" => {
                let namespace = if self.namespace.is_empty() { binding_namespace } else { &self.namespace };
                !namespace.is_empty()
                    && user.name.strip_prefix("system:serviceaccount:").and_then(|n| n.split_once(':'))
                        == Some((namespace, &self.name))
            }
            _ => false,
        }
    }

    fn describe(&self) -> String {
        match self.kind.as_str() {
            "ServiceAccount" => format!("ServiceAccount {:?}", format!("{}/{}", self.name, self.namespace)),
            kind => format!("{kind} {:?}", self.name),
        }
    }
}

/// A decoded binding.
struct Binding {
    namespace: String,
    name: String,
    role_kind: String,
    role_name: String,
    subjects: Vec<Subject>,
}

impl Binding {
    fn from_object(object: &Object) -> Binding {
        let value = object.value();
        let text = |v: &Value, key: &str| v[key].as_str().unwrap_or_default().to_owned();
        let subject =
            |s: &Value| Subject { kind: text(s, "kind"), name: text(s, "name"), namespace: text(s, "namespace") };
        Binding {
            namespace: object.header.namespace.clone(),
            name: object.header.name.clone(),
            role_kind: text(&value["roleRef"], "kind"),
            role_name: text(&value["roleRef"], "name"),
            subjects: value["subjects"].as_array().into_iter().flatten().map(subject).collect(),
        }
    }

    fn describe(&self, subject: &Subject) -> String {
        let (kind, name) = if self.namespace.is_empty() {
            ("ClusterRoleBinding", self.name.clone())
        } else {
            ("RoleBinding", format!("{}/{}", self.name, self.namespace))
        };
        format!("RBAC: allowed by {kind} {name:?} of {} {:?} to {}", self.role_kind, self.role_name, subject.describe())
    }
}

type Decoded<T> = HashMap<String, (u64, Arc<T>)>;

/// A snapshot of all roles and bindings.
#[derive(Default, Clone)]
pub struct Policy {
    revisions: [u64; 4],
    cluster_roles: Decoded<Vec<Rule>>,
    roles: Decoded<Vec<Rule>>,
    cluster_bindings: Decoded<Binding>,
    bindings: Decoded<Binding>,
}

impl Policy {
    /// Whether RBAC allows the request, and by what.
    pub fn authorize(&self, a: &Attributes<'_>) -> Result<String, String> {
        let mut found = None;
        let mut errors = Vec::new();
        self.visit(a.user, a.namespace, &mut errors, |binding, subject, rule| {
            if rule.allows(a) {
                found = Some(binding.describe(subject));
            }
            found.is_none()
        });
        found.ok_or_else(|| match errors.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        })
    }

    /// Every rule that applies to a user in a namespace ("" is cluster scope only).
    pub fn rules_for(&self, user: &User, namespace: &str) -> Vec<Rule> {
        let mut rules = Vec::new();
        self.visit(user, namespace, &mut Vec::new(), |_, _, rule| {
            rules.push(rule.clone());
            true
        });
        rules
    }

    /// The rules of a role.
    pub fn role(&self, kind: &str, namespace: &str, name: &str) -> Option<Arc<Vec<Rule>>> {
        let found = match kind {
            "ClusterRole" => self.cluster_roles.get(name),
            _ => self.roles.get(&format!("{namespace}/{name}")),
        };
        found.map(|(_, rules)| Arc::clone(rules))
    }

    fn visit(
        &self,
        user: &User,
        namespace: &str,
        errors: &mut Vec<String>,
        mut each: impl FnMut(&Binding, &Subject, &Rule) -> bool,
    ) {
        let local = self.bindings.values().filter(|(_, b)| !namespace.is_empty() && b.namespace == namespace);
        for (_, binding) in self.cluster_bindings.values().chain(local) {
            let Some(subject) = binding.subjects.iter().find(|s| s.matches(user, &binding.namespace)) else { continue };
            let Some(rules) = self.role(&binding.role_kind, &binding.namespace, &binding.role_name) else {
                let kind = binding.role_kind.to_lowercase();
                errors.push(format!("{kind}.rbac.authorization.k8s.io {:?} not found", binding.role_name));
                continue;
            };
            for rule in rules.iter() {
                if !each(binding, subject, rule) {
                    return;
                }
            }
        }
    }
}

/// The live policy.
pub struct Rbac {
    caches: [Arc<ResourceCache>; 4],
    current: Mutex<Arc<Policy>>,
}

impl Rbac {
    /// `caches` are those of clusterroles, roles, clusterrolebindings, rolebindings.
    pub fn new(caches: [Arc<ResourceCache>; 4]) -> Rbac {
        Rbac { caches, current: Mutex::default() }
    }

    /// The policy of this moment.
    pub fn policy(&self) -> Arc<Policy> {
        let mut current = self.current.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let revisions = [0, 1, 2, 3].map(|i: usize| self.caches[i].revision());
        if current.revisions != revisions {
            let mut next = Policy::clone(&current);
            next.revisions = revisions;
            refresh(&mut next.cluster_roles, &self.caches[0], rules_of);
            refresh(&mut next.roles, &self.caches[1], rules_of);
            refresh(&mut next.cluster_bindings, &self.caches[2], Binding::from_object);
            refresh(&mut next.bindings, &self.caches[3], Binding::from_object);
            *current = Arc::new(next);
        }
        Arc::clone(&current)
    }
}

fn rules_of(object: &Object) -> Vec<Rule> {
    object.value()["rules"].as_array().into_iter().flatten().map(Rule::from_value).collect()
}

/// Decodes what changed and forgets what is gone.
fn refresh<T>(decoded: &mut Decoded<T>, cache: &ResourceCache, decode: fn(&Object) -> T) {
    let snapshot = cache.snapshot(0);
    decoded.retain(|key, _| snapshot.items.contains_key(key));
    for (key, item) in snapshot.items.iter() {
        let revision = item.object.revision;
        if decoded.get(key).is_none_or(|(known, _)| *known != revision) {
            decoded.insert(key.clone(), (revision, Arc::new(decode(&item.object))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &str, groups: &str, resources: &str, names: &str) -> Rule {
        let list = |s: &str| s.split(',').filter(|p| !p.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        let groups = groups.split(',').map(str::to_owned).collect();
        Rule { verbs: list(verbs), groups, resources: list(resources), names: list(names), urls: Vec::new() }
    }

    #[test]
    fn rules_match_as_upstream() {
        let user = User::new("u", &[]);
        let ask = |rule: &Rule, verb, group, resource, subresource, name| {
            let a = Attributes { group, resource, subresource, name, ..Attributes::resource(&user, verb) };
            rule.allows(&a)
        };
        let pods = rule("get,list", "", "pods", "");
        assert!(ask(&pods, "get", "", "pods", "", "x"));
        assert!(!ask(&pods, "get", "", "pods", "log", "x"));
        assert!(!ask(&pods, "get", "apps", "pods", "", "x"));
        assert!(!ask(&pods, "watch", "", "pods", "", "x"));
        let scale = rule("*", "*", "*/scale", "");
        assert!(ask(&scale, "update", "apps", "deployments", "scale", "x"));
        assert!(!ask(&scale, "update", "apps", "deployments", "", "x"));
        let named = rule("get", "", "secrets", "a");
        assert!(ask(&named, "get", "", "secrets", "", "a"));
        assert!(!ask(&named, "get", "", "secrets", "", ""));
        let urls =
            Rule { verbs: vec!["get".into()], urls: vec!["/healthz".into(), "/api/*".into()], ..Rule::default() };
        let path = |path| Attributes { is_resource: false, path, ..Attributes::resource(&user, "get") };
        assert!(urls.allows(&path("/healthz")));
        assert!(urls.allows(&path("/api/v1")));
        assert!(!urls.allows(&path("/healthz/x")));
    }

    #[test]
    fn atoms_are_covered_only_by_wider_rules() {
        let wide = rule("*", "apps", "deployments", "");
        assert!(rule("get,delete", "apps", "deployments", "a").atoms().iter().all(|a| wide.covers_atom(a)));
        let narrow = rule("get", "apps", "deployments", "a");
        assert!(!rule("get", "apps", "deployments", "").atoms().iter().all(|a| narrow.covers_atom(a)));
        assert!(!rule("get", "apps", "deployments,daemonsets", "").atoms().iter().all(|a| wide.covers_atom(a)));
    }
}
