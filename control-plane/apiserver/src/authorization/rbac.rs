//! Role-based access control on the live Role and Binding objects.
//!
//! The four resources are decoded into a `Policy`, which applies their changes at its next use. A policy is an
//! immutable snapshot, indexed by subject: a request reads only the bindings of its user and groups, however many
//! others there are.

use std::sync::{Arc, Mutex};

use corten_access::{Attributes, Rule, User};
use corten_meta::field::aggregate;
use corten_meta::quote::quote;
use corten_meta::{Object, Value};
use imbl::{HashMap, OrdMap};

use crate::cache::{ChangeKind, ResourceCache, Window};
use crate::error::Error;
use crate::registry::Registry;

/// A subject of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

impl Subject {
    /// Returns the index key of a binding of this subject.
    fn key(&self, binding_namespace: &str) -> String {
        let namespace = if self.namespace.is_empty() { binding_namespace } else { &self.namespace };
        match self.kind.as_str() {
            "ServiceAccount" => key(binding_namespace, "ServiceAccount", &format!("{namespace}:{}", self.name)),
            kind => key(binding_namespace, kind, &self.name),
        }
    }

    fn describe(&self) -> String {
        match self.kind.as_str() {
            "ServiceAccount" => format!("ServiceAccount {}", quote(&format!("{}/{}", self.name, self.namespace))),
            kind => format!("{kind} {}", quote(&self.name)),
        }
    }
}

/// Returns the index key of the bindings of a namespace, or of the cluster, for a name of a kind.
fn key(namespace: &str, kind: &str, name: &str) -> String {
    [namespace, kind, name].join("\n")
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
        let string = |v: &Value, key: &str| v[key].as_str().unwrap_or_default().to_owned();
        let subject =
            |s: &Value| Subject { kind: string(s, "kind"), name: string(s, "name"), namespace: string(s, "namespace") };
        Binding {
            namespace: object.header.namespace.clone(),
            name: object.header.name.clone(),
            role_kind: string(&value["roleRef"], "kind"),
            role_name: string(&value["roleRef"], "name"),
            subjects: value["subjects"].as_array().into_iter().flatten().map(subject).collect(),
        }
    }

    /// Returns the key of the binding among all bindings.
    fn id(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn describe(&self, subject: &Subject) -> String {
        let (kind, name) = if self.namespace.is_empty() {
            ("ClusterRoleBinding", self.name.clone())
        } else {
            ("RoleBinding", format!("{}/{}", self.name, self.namespace))
        };
        format!(
            "RBAC: allowed by {kind} {name} of {} {} to {}",
            self.role_kind,
            quote(&self.role_name),
            subject.describe(),
            name = quote(&name)
        )
    }
}

/// A snapshot of all roles and bindings. Copies share their common parts, so that a change costs only its own size.
#[derive(Default, Clone)]
pub struct Policy {
    /// The rules by namespace and name; ClusterRoles have no namespace.
    roles: HashMap<String, Arc<Vec<Rule>>>,
    bindings: HashMap<String, Arc<Binding>>,
    /// The bindings by their subjects, in the order of their names.
    by_subject: HashMap<String, OrdMap<String, Arc<Binding>>>,
}

impl Policy {
    /// Returns the reason why RBAC allows the request, or an error.
    pub fn authorize(&self, a: &Attributes<'_>) -> Result<String, String> {
        let mut found = None;
        let mut errors = Vec::new();
        self.visit(a.user, a.namespace, &mut errors, |binding, subject, rule| {
            if rule.allows(a) {
                found = Some(binding.describe(subject));
            }
            found.is_none()
        });
        found.ok_or_else(|| match errors.is_empty() {
            true => String::new(),
            false => format!("RBAC: {}", aggregate(&errors).unwrap_or_default()),
        })
    }

    /// Returns all rules that apply to a user in a namespace ("" is cluster scope only).
    pub fn rules_for(&self, user: &User, namespace: &str) -> Vec<Rule> {
        let mut rules = Vec::new();
        self.visit(user, namespace, &mut Vec::new(), |_, _, rule| {
            rules.push(rule.clone());
            true
        });
        rules
    }

    /// Returns the rules of a role.
    pub fn role(&self, kind: &str, namespace: &str, name: &str) -> Option<Arc<Vec<Rule>>> {
        let namespace = if kind == "ClusterRole" { "" } else { namespace };
        self.roles.get(&format!("{namespace}/{name}")).cloned()
    }

    fn visit(
        &self,
        user: &User,
        namespace: &str,
        errors: &mut Vec<String>,
        mut each: impl FnMut(&Binding, &Subject, &Rule) -> bool,
    ) {
        let account = user.name.strip_prefix("system:serviceaccount:");
        let mut seen: Vec<*const Binding> = Vec::new();
        let scopes = std::iter::once("").chain(Some(namespace).filter(|namespace| !namespace.is_empty()));
        for scope in scopes {
            let names = std::iter::once(("User", user.name.as_str()))
                .chain(account.map(|account| ("ServiceAccount", account)))
                .chain(user.groups.iter().map(|group| ("Group", group.as_str())));
            for key in names.map(|(kind, name)| key(scope, kind, name)) {
                for binding in self.by_subject.get(&key).into_iter().flat_map(|bindings| bindings.values()) {
                    // A binding that matches the user in several ways counts once.
                    if seen.contains(&Arc::as_ptr(binding)) {
                        continue;
                    }
                    seen.push(Arc::as_ptr(binding));
                    let Some(subject) = binding.subjects.iter().find(|s| s.key(scope) == key) else { continue };
                    let Some(rules) = self.role(&binding.role_kind, &binding.namespace, &binding.role_name) else {
                        let kind = binding.role_kind.to_lowercase();
                        errors
                            .push(format!("{kind}.rbac.authorization.k8s.io {} not found", quote(&binding.role_name)));
                        continue;
                    };
                    if !rules.iter().all(|rule| each(binding, subject, rule)) {
                        return;
                    }
                }
            }
        }
    }

    fn set_role(&mut self, object: &Object, is_there: bool) {
        let id = format!("{}/{}", object.header.namespace, object.header.name);
        if is_there {
            let rules = object.value()["rules"].as_array().into_iter().flatten().map(Rule::from_value).collect();
            self.roles.insert(id, Arc::new(rules));
        } else {
            self.roles.remove(&id);
        }
    }

    fn set_binding(&mut self, object: &Object, is_there: bool) {
        let new = Binding::from_object(object);
        let id = new.id();
        if let Some(old) = self.bindings.remove(&id) {
            for subject in &old.subjects {
                let key = subject.key(&old.namespace);
                if let Some(bindings) = self.by_subject.get_mut(&key) {
                    bindings.remove(&id);
                    if bindings.is_empty() {
                        self.by_subject.remove(&key);
                    }
                }
            }
        }
        if is_there {
            let new = Arc::new(new);
            for subject in &new.subjects {
                let key = subject.key(&new.namespace);
                self.by_subject.entry(key).or_default().insert(id.clone(), Arc::clone(&new));
            }
            self.bindings.insert(id, new);
        }
    }
}

/// The live policy.
pub struct Rbac {
    caches: [Arc<ResourceCache>; 4],
    current: Mutex<Current>,
}

/// A policy, and the generation and revision of each cache that it has applied.
#[derive(Default)]
struct Current {
    policy: Arc<Policy>,
    applied: [Option<(u64, u64)>; 4],
}

impl Rbac {
    /// Makes the live policy of a registry's roles and bindings.
    pub fn of_registry(registry: &Registry) -> Result<Rbac, Error> {
        let cache = |plural: &str| {
            let cache = registry.cache("rbac.authorization.k8s.io", "v1", plural);
            cache.ok_or_else(|| Error::Config(format!("the kind table has no {plural}")))
        };
        let caches = [cache("clusterroles")?, cache("roles")?, cache("clusterrolebindings")?, cache("rolebindings")?];
        Ok(Rbac { caches, current: Mutex::default() })
    }

    /// Returns the current policy.
    pub fn policy(&self) -> Arc<Policy> {
        let mut current = self.current.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = [0, 1, 2, 3].map(|i: usize| Some((self.caches[i].generation(), self.caches[i].revision())));
        if current.applied != now {
            self.apply(&mut current, now);
        }
        Arc::clone(&current.policy)
    }

    /// Applies the changes since the last use; reads everything again if a cache no longer has them.
    fn apply(&self, current: &mut Current, now: [Option<(u64, u64)>; 4]) {
        let mut policy = Policy::clone(&current.policy);
        let mut changed = Vec::new();
        for (at, cache) in self.caches.iter().enumerate() {
            if current.applied[at] == now[at] {
                continue;
            }
            let known = current.applied[at].filter(|(generation, _)| Some(*generation) == now[at].map(|now| now.0));
            match known.map(|(_, revision)| cache.since(revision, u64::MAX)) {
                Some(Window::Changes(changes)) => changed.extend(changes.into_iter().map(|change| (at, change))),
                _ => return self.read(current, now),
            }
        }
        for (at, change) in changed {
            let is_there = change.kind != ChangeKind::Deleted;
            match at {
                0 | 1 => policy.set_role(&change.item.object, is_there),
                _ => policy.set_binding(&change.item.object, is_there),
            }
        }
        *current = Current { policy: Arc::new(policy), applied: now };
    }

    fn read(&self, current: &mut Current, now: [Option<(u64, u64)>; 4]) {
        let mut policy = Policy::default();
        for (at, cache) in self.caches.iter().enumerate() {
            for object in cache.list("") {
                match at {
                    0 | 1 => policy.set_role(&object, true),
                    _ => policy.set_binding(&object, true),
                }
            }
        }
        *current = Current { policy: Arc::new(policy), applied: now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_are_found_by_their_subjects_and_removed() {
        let object = |value: serde_json::Value| Object::from_value(&value, 1).unwrap();
        let role = |name: &str, namespace: &str| {
            object(serde_json::json!({ "metadata": { "name": name, "namespace": namespace },
                "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }] }))
        };
        let binding = |namespace: &str, kind: &str, subjects: serde_json::Value| {
            object(serde_json::json!({ "metadata": { "name": "b", "namespace": namespace },
                "roleRef": { "kind": kind, "name": "r" }, "subjects": subjects }))
        };
        let mut policy = Policy::default();
        let robot = User::service_account("n", "robot");
        let jane = User::new("jane", &["dev"]);
        let may = |policy: &Policy, user: &User, namespace: &str| {
            let a = Attributes { resource: "pods", namespace, ..Attributes::resource(user, "get") };
            policy.authorize(&a).is_ok()
        };
        let subjects = serde_json::json!([{ "kind": "ServiceAccount", "name": "robot" }, { "kind": "Group", "name": "dev" },
            { "kind": "User", "name": "jane" }]);
        policy.set_binding(&binding("n", "Role", subjects.clone()), true);
        assert!(!may(&policy, &jane, "n"), "there is no role yet");
        policy.set_role(&role("r", "n"), true);
        assert!(may(&policy, &jane, "n") && may(&policy, &robot, "n"));
        assert!(!may(&policy, &jane, "m") && !may(&policy, &jane, "") && !may(&policy, &User::new("eve", &[]), "n"));
        assert_eq!(policy.rules_for(&jane, "n").len(), 1, "named twice, bound once");
        let before = policy.clone();
        policy.set_binding(&binding("n", "Role", serde_json::json!([{ "kind": "User", "name": "eve" }])), true);
        assert!(!may(&policy, &jane, "n") && may(&policy, &User::new("eve", &[]), "n"));
        assert!(may(&before, &jane, "n"), "a snapshot stays");
        policy.set_binding(&binding("n", "Role", subjects.clone()), false);
        assert!(policy.by_subject.is_empty() && policy.bindings.is_empty());
        // A ClusterRoleBinding counts in every namespace, and a ServiceAccount subject must have a namespace.
        policy.set_role(&role("r", ""), true);
        policy.set_binding(&binding("", "ClusterRole", subjects), true);
        assert!(may(&policy, &jane, "m") && may(&policy, &jane, "") && !may(&policy, &robot, "n"));
    }
}
