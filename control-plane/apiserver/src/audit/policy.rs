//! The audit policy: the audit level of each request. Pure.

use corten_access::User;
use corten_meta::Value;
use corten_meta::quote::quote;

use crate::context::Level;
use crate::request::RequestInfo;

const STAGES: &[&str] = &["RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"];

/// The policy's settings for a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub level: Level,
    pub omit_stages: Vec<String>,
    pub omit_managed_fields: bool,
}

/// An audit policy.
pub struct Policy {
    omit_stages: Vec<String>,
    omit_managed_fields: bool,
    rules: Vec<Rule>,
}

struct Rule {
    level: Level,
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    /// Groups, each with resources and names.
    resources: Vec<(String, Vec<String>, Vec<String>)>,
    namespaces: Vec<String>,
    urls: Vec<String>,
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

fn words(value: &Value, key: &str) -> Vec<String> {
    value[key].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn stages(value: &Value) -> Result<Vec<String>, String> {
    let stages = words(value, "omitStages");
    match stages.iter().find(|stage| !STAGES.contains(&stage.as_str())) {
        Some(unknown) => {
            Err(format!("omitStages: {unknown} is no stage ({})", STAGES.join(", "), unknown = quote(unknown)))
        }
        None => Ok(stages),
    }
}

impl Policy {
    /// Reads a Policy of audit.k8s.io/v1, in YAML or JSON.
    pub fn parse(yaml: &str) -> Result<Policy, String> {
        let policy = corten_meta::decode_yaml(yaml.as_bytes()).map_err(|e| e.to_string())?;
        if policy["apiVersion"] != "audit.k8s.io/v1" || policy["kind"] != "Policy" {
            return Err("it is no Policy of audit.k8s.io/v1".to_owned());
        }
        let rules = policy["rules"].as_array().cloned().unwrap_or_default();
        if rules.is_empty() {
            return Err("it has no rules".to_owned());
        }
        let numbered = rules.iter().enumerate();
        let rules = numbered.map(|(at, rule)| Rule::parse(rule).map_err(|e| format!("rules[{at}]: {e}")));
        Ok(Policy {
            omit_stages: stages(&policy)?,
            omit_managed_fields: policy["omitManagedFields"] == true,
            rules: rules.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the settings of the first rule that matches; a request that no rule matches has the level None.
    pub fn level(&self, user: &User, info: &RequestInfo) -> Settings {
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(user, info)) else { return Settings::default() };
        let omit_stages = rule.omit_stages.iter().chain(&self.omit_stages).cloned().collect();
        let omit_managed_fields = rule.omit_managed_fields.unwrap_or(self.omit_managed_fields);
        Settings { level: rule.level, omit_stages, omit_managed_fields }
    }
}

impl Rule {
    fn parse(rule: &Value) -> Result<Rule, String> {
        let resources = rule["resources"].as_array().cloned().unwrap_or_default();
        let urls = words(rule, "nonResourceURLs");
        let namespaces = words(rule, "namespaces");
        if !urls.is_empty() && (!resources.is_empty() || !namespaces.is_empty()) {
            return Err("rules cannot apply to both regular resources and non-resource URLs".to_owned());
        }
        let group = |r: &Value| {
            (r["group"].as_str().unwrap_or_default().to_owned(), words(r, "resources"), words(r, "resourceNames"))
        };
        Ok(Rule {
            level: Level::parse(rule["level"].as_str().unwrap_or_default())?,
            users: words(rule, "users"),
            groups: words(rule, "userGroups"),
            verbs: words(rule, "verbs"),
            resources: resources.iter().map(group).collect(),
            namespaces,
            urls,
            omit_stages: stages(rule)?,
            omit_managed_fields: rule["omitManagedFields"].as_bool(),
        })
    }

    fn matches(&self, user: &User, info: &RequestInfo) -> bool {
        let none_or = |list: &[String], found: &dyn Fn(&String) -> bool| list.is_empty() || list.iter().any(found);
        none_or(&self.users, &|name| *name == user.name)
            && none_or(&self.groups, &|group| user.is_in(group))
            && none_or(&self.verbs, &|verb| verb == info.verb.as_str())
            && (self.resources.is_empty() && self.namespaces.is_empty() && self.urls.is_empty()
                || if info.is_resource { self.matches_resource(info) } else { self.matches_path(info) })
    }

    fn matches_resource(&self, info: &RequestInfo) -> bool {
        if !self.urls.is_empty() || !(self.namespaces.is_empty() || self.namespaces.contains(&info.namespace)) {
            return false;
        }
        let combined = if info.subresource.is_empty() {
            info.resource.clone()
        } else {
            format!("{}/{}", info.resource, info.subresource)
        };
        let resource = |rule: &String| {
            rule == "*"
                || *rule == combined
                || rule.strip_suffix("/*").is_some_and(|of| of == info.resource)
                || rule.strip_prefix("*/").is_some_and(|sub| sub == info.subresource)
        };
        self.resources.is_empty()
            || self.resources.iter().any(|(group, resources, names)| {
                *group == info.group
                    && (resources.is_empty() || resources.iter().any(resource))
                    && (names.is_empty() || names.contains(&info.name))
            })
    }

    fn matches_path(&self, info: &RequestInfo) -> bool {
        self.urls.iter().any(|url| match url.strip_suffix('*') {
            Some(prefix) => info.path.starts_with(prefix),
            None => *url == info.path,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [\"system:kube-proxy\"]
  verbs: [watch]
- level: None
  nonResourceURLs: [\"/healthz*\", /version]
- level: Metadata
  resources:
  - group: \"\"
    resources: [secrets, configmaps, \"pods/*\"]
- level: RequestResponse
  namespaces: [prod]
  omitManagedFields: true
  omitStages: [ResponseStarted]
- level: Request
  userGroups: [dev]
";

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = Policy::parse(POLICY).unwrap();
        let level = |user: &User, path: &str, query: &str| {
            policy.level(user, &RequestInfo::parse(&http::Method::GET, path, query)).level
        };
        let proxy = User::new("system:kube-proxy", &[]);
        let jane = User::new("jane", &["dev"]);
        for (user, path, query, expected) in [
            (&proxy, "/api/v1/services", "watch=1", Level::None),
            (&jane, "/healthz/ping", "", Level::None),
            (&jane, "/version", "", Level::None),
            (&jane, "/versions", "", Level::Request),
            (&jane, "/api/v1/namespaces/prod/secrets/x", "", Level::Metadata),
            (&jane, "/api/v1/namespaces/prod/pods/x/log", "", Level::Metadata),
            (&jane, "/api/v1/namespaces/prod/services/x", "", Level::RequestResponse),
            (&jane, "/api/v1/services", "", Level::Request),
            (&proxy, "/api/v1/services", "", Level::None),
        ] {
            assert_eq!(level(user, path, query), expected, "{} {path}", user.name);
        }
        let info = RequestInfo::parse(&http::Method::GET, "/api/v1/namespaces/prod/services", "");
        let wanted = policy.level(&jane, &info);
        assert_eq!(wanted.omit_stages, ["ResponseStarted", "RequestReceived"]);
        assert!(wanted.omit_managed_fields);
    }

    #[test]
    fn an_invalid_policy_is_refused() {
        for (policy, expected) in [
            ("kind: Policy", "it is no Policy of audit.k8s.io/v1"),
            ("apiVersion: audit.k8s.io/v1\nkind: Policy", "it has no rules"),
            (
                "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: All}]",
                "rules[0]: \"All\" is no level (None, Metadata, Request, RequestResponse)",
            ),
            (
                "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None, namespaces: [a], nonResourceURLs: [/x]}]",
                "rules[0]: rules cannot apply to both regular resources and non-resource URLs",
            ),
        ] {
            assert_eq!(Policy::parse(policy).err().as_deref(), Some(expected));
        }
    }
}
