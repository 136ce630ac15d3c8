//! The rules of webhooks and policies that match requests.

use corten_meta::Value;

/// A rule: operations on resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// `pods`, `pods/*`, `*/scale`, `*`.
    resources: Vec<String>,
    names: Vec<String>,
    scope: Scope,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Scope {
    #[default]
    All,
    Namespaced,
    Cluster,
}

/// The request that a rule is matched with.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub operation: &'a str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespaced: bool,
    pub name: &'a str,
}

impl Rule {
    pub fn from_value(rule: &Value) -> Rule {
        let list = |key: &str| {
            rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Rule {
            operations: list("operations"),
            groups: list("apiGroups"),
            versions: list("apiVersions"),
            resources: list("resources"),
            names: list("resourceNames"),
            scope: match rule["scope"].as_str() {
                Some("Namespaced") => Scope::Namespaced,
                Some("Cluster") => Scope::Cluster,
                _ => Scope::All,
            },
        }
    }

    pub fn matches(&self, q: &Question<'_>) -> bool {
        let has = |list: &[String], wanted: &str| list.iter().any(|item| item == "*" || item == wanted);
        let scope = match self.scope {
            Scope::All => true,
            Scope::Namespaced => q.namespaced,
            Scope::Cluster => !q.namespaced,
        };
        scope
            && has(&self.operations, q.operation)
            && has(&self.groups, q.group)
            && has(&self.versions, q.version)
            && self.resources.iter().any(|resource| resource_matches(resource, q))
            && (self.names.is_empty() || self.names.iter().any(|name| name == q.name))
    }
}

fn resource_matches(rule: &str, q: &Question<'_>) -> bool {
    let (resource, subresource) = rule.split_once('/').unwrap_or((rule, ""));
    (resource == "*" || resource == q.resource) && (subresource == "*" || subresource == q.subresource)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rules_match_as_upstream() {
        let pods = Question {
            operation: "CREATE",
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "",
            namespaced: true,
            name: "a",
        };
        let status = Question { operation: "UPDATE", subresource: "status", ..pods };
        let nodes = Question { resource: "nodes", namespaced: false, ..pods };
        let rule = |operation: &str, resource: &str, scope: &str| {
            Rule::from_value(&json!({ "operations": [operation], "apiGroups": [""], "apiVersions": ["v1"],
                                      "resources": [resource], "scope": scope }))
        };
        for (rule, expected) in [
            (rule("CREATE", "pods", "*"), [true, false, false]),
            (rule("*", "pods/*", "*"), [true, true, false]),
            (rule("*", "*/status", "*"), [false, true, false]),
            (rule("*", "*", "*"), [true, false, true]),
            (rule("*", "*/*", "*"), [true, true, true]),
            (rule("*", "*/*", "Namespaced"), [true, true, false]),
            (rule("*", "*/*", "Cluster"), [false, false, true]),
            (rule("DELETE", "*/*", "*"), [false, false, false]),
        ] {
            assert_eq!([pods, status, nodes].map(|q| rule.matches(&q)), expected, "{rule:?}");
        }
        let named = Rule { names: vec!["b".to_owned()], ..rule("*", "pods", "*") };
        assert!(!named.matches(&pods) && named.matches(&Question { name: "b", ..pods }));
    }
}
