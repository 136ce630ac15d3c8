//! FlowSchemas: they match requests and divide them into flows. Pure.

use std::hash::{DefaultHasher, Hash, Hasher};

use corten_access::User;
use corten_meta::quote::quote;
use corten_meta::{Object, Value};
use serde_json::json;

use crate::request::RequestInfo;

pub struct FlowSchema {
    pub name: String,
    pub uid: String,
    pub precedence: i64,
    /// The priority level of matching requests.
    pub level: String,
    distinguisher: Distinguisher,
    rules: Vec<Rule>,
}

/// The distinguisher of flows.
#[derive(Clone, Copy)]
enum Distinguisher {
    Nothing,
    User,
    Namespace,
}

#[derive(Default)]
struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String },
}

struct ResourceRule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    cluster: bool,
    namespaces: Vec<String>,
}

struct PathRule {
    verbs: Vec<String>,
    paths: Vec<String>,
}

fn words(value: &Value, key: &str) -> Vec<String> {
    value[key].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

impl FlowSchema {
    /// Returns the schema that matches the requests that no other schema matches.
    pub fn catch_all() -> FlowSchema {
        let all_users = Rule { subjects: vec![Subject::Group("*".to_owned())], ..Rule::default() };
        FlowSchema {
            name: super::CATCH_ALL.to_owned(),
            uid: String::new(),
            precedence: 10_000,
            level: super::CATCH_ALL.to_owned(),
            distinguisher: Distinguisher::User,
            rules: vec![all_users],
        }
    }

    pub fn from_object(object: &Object) -> FlowSchema {
        let value = object.value();
        let spec = &value["spec"];
        let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
        let rule = |rule: &Value| Rule {
            subjects: list(rule, "subjects").iter().filter_map(subject).collect(),
            resources: list(rule, "resourceRules").iter().map(resource_rule).collect(),
            paths: list(rule, "nonResourceRules")
                .iter()
                .map(|r| PathRule { verbs: words(r, "verbs"), paths: words(r, "nonResourceURLs") })
                .collect(),
        };
        let level = spec.pointer("/priorityLevelConfiguration/name").and_then(Value::as_str).unwrap_or_default();
        FlowSchema {
            name: object.header.name.clone(),
            uid: object.header.uid.clone(),
            precedence: spec["matchingPrecedence"].as_i64().unwrap_or(1000),
            level: level.to_owned(),
            distinguisher: match spec.pointer("/distinguisherMethod/type").and_then(Value::as_str) {
                Some("ByUser") => Distinguisher::User,
                Some("ByNamespace") => Distinguisher::Namespace,
                _ => Distinguisher::Nothing,
            },
            rules: list(spec, "rules").iter().map(rule).collect(),
        }
    }

    pub fn matches(&self, user: &User, info: &RequestInfo) -> bool {
        self.rules.iter().any(|rule| {
            rule.subjects.iter().any(|subject| subject.matches(user))
                && if info.is_resource {
                    rule.resources.iter().any(|r| r.matches(info))
                } else {
                    rule.paths.iter().any(|r| r.matches(info))
                }
        })
    }

    /// Returns the string that distinguishes the flow of a request from others of the schema.
    pub fn distinguish<'a>(&self, user: &'a User, info: &'a RequestInfo) -> &'a str {
        match self.distinguisher {
            Distinguisher::Nothing => "",
            Distinguisher::User => &user.name,
            Distinguisher::Namespace => &info.namespace,
        }
    }

    /// Returns the hash of a request's flow.
    pub fn flow(&self, user: &User, info: &RequestInfo) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.name.hash(&mut hasher);
        self.distinguish(user, info).hash(&mut hasher);
        hasher.finish()
    }
}

fn subject(subject: &Value) -> Option<Subject> {
    let string = |pointer: &str| subject.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    match subject["kind"].as_str()? {
        "User" => Some(Subject::User(string("/user/name"))),
        "Group" => Some(Subject::Group(string("/group/name"))),
        "ServiceAccount" => Some(Subject::ServiceAccount {
            namespace: string("/serviceAccount/namespace"),
            name: string("/serviceAccount/name"),
        }),
        _ => None,
    }
}

fn resource_rule(rule: &Value) -> ResourceRule {
    ResourceRule {
        verbs: words(rule, "verbs"),
        groups: words(rule, "apiGroups"),
        resources: words(rule, "resources"),
        cluster: rule["clusterScope"] == true,
        namespaces: words(rule, "namespaces"),
    }
}

impl Subject {
    fn matches(&self, user: &User) -> bool {
        match self {
            Subject::User(name) => name == "*" || *name == user.name,
            Subject::Group(name) => name == "*" || user.is_in(name),
            Subject::ServiceAccount { namespace, name } => {
                let account = user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
                account.is_some_and(|(ns, account)| ns == namespace && (name == "*" || account == name))
            }
        }
    }
}

impl ResourceRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        let resource = if info.subresource.is_empty() {
            info.resource.clone()
        } else {
            format!("{}/{}", info.resource, info.subresource)
        };
        let scope = if info.namespace.is_empty() { self.cluster } else { has(&self.namespaces, &info.namespace) };
        scope
            && has(&self.verbs, info.verb.as_str())
            && has(&self.groups, &info.group)
            && has(&self.resources, &resource)
    }
}

impl PathRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        let path = |rule: &String| match rule.strip_suffix('*') {
            Some(prefix) => info.path.starts_with(prefix),
            None => *rule == info.path,
        };
        has(&self.verbs, info.verb.as_str()) && self.paths.iter().any(path)
    }
}

/// Returns the FlowSchema with its `Dangling` condition; `None` if it is up to date.
pub fn dangling(schema: &Value, level: &str, exists: bool, now: jiff::Timestamp) -> Option<Value> {
    let (status, reason, rest) =
        if exists { ("False", "Found", "and it exists") } else { ("True", "NotFound", "but there is no such object") };
    let message =
        format!("This FlowSchema references the PriorityLevelConfiguration object named {} {rest}", quote(level));
    let conditions = schema.pointer("/status/conditions").and_then(Value::as_array);
    let present = conditions.into_iter().flatten().find(|c| c["type"] == "Dangling");
    if present.is_some_and(|c| c["status"] == status && c["reason"] == reason && c["message"] == message) {
        return None;
    }
    let kept = present.filter(|c| c["status"] == status).map(|c| c["lastTransitionTime"].clone());
    let time = kept.unwrap_or_else(|| corten_meta::time::rfc3339(now).into());
    Some(json!({ "type": "Dangling", "status": status, "reason": reason, "message": message,
                 "lastTransitionTime": time }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(rules: Value) -> FlowSchema {
        let object = json!({ "metadata": { "name": "s", "uid": "u" }, "spec": {
            "priorityLevelConfiguration": { "name": "l" }, "distinguisherMethod": { "type": "ByUser" }, "rules": rules } });
        FlowSchema::from_object(&Object::from_value(&object, 1).unwrap())
    }

    fn request(method: &str, path: &str) -> RequestInfo {
        RequestInfo::parse(&method.parse().unwrap(), path, "")
    }

    #[test]
    fn requests_are_matched_as_upstream() {
        let nodes = json!([{ "kind": "Group", "group": { "name": "system:nodes" } }]);
        let leases = json!([{ "verbs": ["*"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                              "namespaces": ["*"] }]);
        let schema = schema(json!([
            { "subjects": nodes, "resourceRules": leases },
            { "subjects": [{ "kind": "ServiceAccount", "serviceAccount": { "namespace": "a", "name": "*" } }],
              "resourceRules": [{ "verbs": ["get"], "apiGroups": [""], "resources": ["nodes", "nodes/status"],
                                  "clusterScope": true }],
              "nonResourceRules": [{ "verbs": ["get"], "nonResourceURLs": ["/healthz", "/debug/*"] }] },
        ]));
        let node = User::new("system:node:n", &["system:nodes"]);
        let account = User::service_account("a", "x");
        let other = User::service_account("b", "x");
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        for (user, method, path, expected) in [
            (&node, "PUT", lease, true),
            (&node, "GET", "/apis/coordination.k8s.io/v1/leases", false),
            (&account, "PUT", lease, false),
            (&account, "GET", "/api/v1/nodes/n", true),
            (&account, "GET", "/api/v1/nodes/n/status", true),
            (&account, "GET", "/api/v1/nodes/n/proxy", false),
            (&account, "GET", "/healthz", true),
            (&account, "GET", "/healthz/x", false),
            (&account, "GET", "/debug/x", true),
            (&other, "GET", "/api/v1/nodes/n", false),
        ] {
            assert_eq!(schema.matches(user, &request(method, path)), expected, "{} {method} {path}", user.name);
        }
        let info = request("GET", "/api/v1/pods");
        assert_ne!(schema.flow(&account, &info), schema.flow(&other, &info));
    }

    #[test]
    fn the_dangling_condition_is_set_once() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let condition = dangling(&json!({}), "l", false, now).unwrap();
        assert_eq!(condition["reason"], "NotFound");
        let schema = json!({ "status": { "conditions": [condition] } });
        assert_eq!(dangling(&schema, "l", false, now), None);
        assert_eq!(dangling(&schema, "l", true, now).unwrap()["status"], "False");
    }
}
