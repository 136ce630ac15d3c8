//! The rules of roles, and the requests that they allow.

use corten_meta::Value;

use crate::Attributes;

/// A rule of a role.
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

    /// Reports whether the rule allows the request.
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

    /// Splits the rule into rules of one verb, one group, one resource and one name, which escalation checks compare.
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

    /// Reports whether this rule grants everything that the atom grants.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::User;

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
