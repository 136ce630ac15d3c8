//! Section 3: the authentication of users, and the audit log of their requests.

use corten_meta::Value;

use super::facts::Facts;
use super::{Item, Outcome, item};

pub const ITEMS: &[Item] = &[
    item(
        "3.1.1",
        "People are not authenticated by client certificates, which cannot be revoked",
        "add an issuer of tokens by --authentication-config, and give people no certificates",
        |_| Outcome::NotApplicable("certificates that were given to people cannot be listed"),
    ),
    item(
        "3.1.2",
        "People are not authenticated by ServiceAccount tokens",
        "delete Secrets of type kubernetes.io/service-account-token; programs get tokens that expire",
        lasting_tokens,
    ),
    item(
        "3.1.3",
        "Bootstrap tokens expire",
        "delete the tokens by `corten token delete`; make new ones with a lifetime",
        bootstrap_tokens,
    ),
    item("3.2.1", "An audit policy is in force", "remove --audit-policy-file, or name a policy with rules", |facts| {
        let rules = rules(facts).len();
        Outcome::when(rules > 0, format!("the policy has {rules} rules"), "there is no policy")
    }),
    item(
        "3.2.2",
        "The audit policy covers Secrets, workloads, access rights and commands in containers",
        "add rules of level Metadata for what is missing",
        concerns,
    ),
];

fn of_type<'a>(facts: &'a Facts, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    facts.objects.secrets.iter().filter(move |secret| secret["type"] == kind)
}

fn name_of(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"))
}

fn lasting_tokens(facts: &Facts) -> Outcome {
    let found = of_type(facts, "kubernetes.io/service-account-token");
    let found = found.map(|secret| format!("Secret {} holds a token that never expires", name_of(secret)));
    Outcome::of(found.collect(), "no ServiceAccount token is kept in a Secret")
}

fn bootstrap_tokens(facts: &Facts) -> Outcome {
    let found = of_type(facts, "bootstrap.kubernetes.io/token").filter(|secret| secret["data"]["expiration"].is_null());
    let found = found.map(|secret| format!("Secret {} holds a bootstrap token that never expires", name_of(secret)));
    Outcome::of(found.collect(), "every bootstrap token expires")
}

fn rules(facts: &Facts) -> Vec<Value> {
    let rules = facts.audit_policy.as_ref().and_then(|policy| policy["rules"].as_array());
    rules.cloned().unwrap_or_default()
}

/// A request that the audit log must have.
struct Concern {
    group: &'static str,
    resource: &'static str,
    verb: &'static str,
}

/// The requests that an attacker makes first.
const CONCERNS: [Concern; 9] = [
    Concern { group: "", resource: "secrets", verb: "get" },
    Concern { group: "", resource: "pods", verb: "create" },
    Concern { group: "", resource: "pods/exec", verb: "create" },
    Concern { group: "", resource: "pods/portforward", verb: "create" },
    Concern { group: "", resource: "nodes/proxy", verb: "get" },
    Concern { group: "apps", resource: "deployments", verb: "patch" },
    Concern { group: "rbac.authorization.k8s.io", resource: "clusterrolebindings", verb: "create" },
    Concern { group: "authentication.k8s.io", resource: "tokenreviews", verb: "create" },
    Concern { group: "admissionregistration.k8s.io", resource: "mutatingwebhookconfigurations", verb: "create" },
];

fn concerns(facts: &Facts) -> Outcome {
    let rules = rules(facts);
    let missing = CONCERNS.iter().filter(|concern| !is_written(&rules, concern));
    let missing = missing.map(|Concern { resource, verb, .. }| format!("{verb} of {resource} is not written"));
    Outcome::of(missing.collect(), "every one of them is written")
}

/// Reports whether the first matching rule for all users has a level.
fn is_written(rules: &[Value], concern: &Concern) -> bool {
    let first = rules.iter().find(|rule| is_for_all_users(rule) && matches(rule, concern));
    first.is_some_and(|rule| rule["level"] != "None")
}

fn is_for_all_users(rule: &Value) -> bool {
    let is_empty = |key: &str| rule[key].as_array().is_none_or(Vec::is_empty);
    is_empty("users") && is_empty("userGroups") && is_empty("namespaces") && is_empty("nonResourceURLs")
}

fn matches(rule: &Value, concern: &Concern) -> bool {
    let Concern { group, resource, verb } = concern;
    let has = |list: &Value, word: &str| {
        let words = list.as_array().filter(|words| !words.is_empty());
        words.is_none_or(|words| words.iter().any(|known| known == "*" || known == word))
    };
    let Some(resources) = rule["resources"].as_array().filter(|resources| !resources.is_empty()) else {
        return has(&rule["verbs"], verb);
    };
    let of_group = resources.iter().filter(|known| known["group"].as_str().unwrap_or_default() == *group);
    has(&rule["verbs"], verb) && of_group.into_iter().any(|known| has(&known["resources"], resource))
}
