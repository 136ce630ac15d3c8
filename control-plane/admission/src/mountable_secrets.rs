//! The references that pods may have: a ServiceAccount can restrict its pods to its own Secrets, and a mirror pod of a
//! kubelet may refer to no API object at all. Part of the plugin ServiceAccount. Pure.

use corten_meta::Value;

const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";

/// The lists of containers, and the name of an item in error messages.
const CONTAINERS: [(&str, &str); 2] = [("initContainers", "init container"), ("containers", "container")];

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

fn names<'a>(account: &'a Value, field: &str) -> Vec<&'a str> {
    list(account, field).filter_map(|reference| reference["name"].as_str()).collect()
}

/// Reports whether a ServiceAccount restricts its pods to its own Secrets.
fn enforces(account: &Value) -> bool {
    let annotation = account["metadata"]["annotations"].get(ENFORCE).and_then(Value::as_str);
    annotation.is_some_and(|annotation| ["1", "t", "T", "true", "TRUE", "True"].contains(&annotation))
}

/// Returns the reason why a pod may not run as a ServiceAccount, because of a Secret that it refers to.
pub(super) fn refused(account: &Value, spec: &Value) -> Option<String> {
    if !enforces(account) {
        return None;
    }
    let name = corten_meta::name(account);
    let why = format!("is not allowed because service account {name} does not reference that");
    let own = names(account, "secrets");
    let is_foreign = |secret: &Value| secret.as_str().is_none_or(|secret| !own.contains(&secret));
    for secret in list(spec, "volumes").filter(|v| v["secret"].is_object()).map(|v| &v["secret"]["secretName"]) {
        if is_foreign(secret) {
            let secret = secret.as_str().unwrap_or_default();
            return Some(format!("volume with secret.secretName=\"{secret}\" {why} secret"));
        }
    }
    for (field, what) in CONTAINERS {
        if let Some(used) = list(spec, field).find_map(|container| foreign_environment(container, &is_foreign)) {
            return Some(format!("{what} {used} {why} secret"));
        }
    }
    let own = names(account, "imagePullSecrets");
    list(spec, "imagePullSecrets").enumerate().find_map(|(at, secret)| {
        let secret = secret["name"].as_str().unwrap_or_default();
        let is_own = own.contains(&secret);
        (!is_own).then(|| format!("imagePullSecrets[{at}].name=\"{secret}\" {why} imagePullSecret"))
    })
}

/// Returns the same reason for ephemeral containers, which are added to a running pod.
pub(super) fn refused_later(account: &Value, spec: &Value) -> Option<String> {
    if !enforces(account) {
        return None;
    }
    let own = names(account, "secrets");
    let is_foreign = |secret: &Value| secret.as_str().is_none_or(|secret| !own.contains(&secret));
    let mut containers = list(spec, "ephemeralContainers");
    let used = containers.find_map(|container| foreign_environment(container, &is_foreign))?;
    let name = corten_meta::name(account);
    Some(format!(
        "ephemeral container {used} is not allowed because service account {name} does not reference that secret"
    ))
}

/// Returns the reference in a container's environment to a Secret that is not allowed.
fn foreign_environment(container: &Value, is_foreign: &dyn Fn(&Value) -> bool) -> Option<String> {
    let name = container["name"].as_str().unwrap_or_default();
    let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut keys = list(container, "env").filter_map(|env| Some((&env["name"], env["valueFrom"].get("secretKeyRef")?)));
    if let Some((variable, secret)) = keys.find(|(_, secret)| is_foreign(&secret["name"])) {
        let variable = string(variable);
        let secret = string(&secret["name"]);
        return Some(format!("{name} with envVar {variable} referencing secret.secretName=\"{secret}\""));
    }
    let sources = list(container, "envFrom").filter_map(|from| from.get("secretRef"));
    let secret = sources.map(|secret| &secret["name"]).find(|secret| is_foreign(secret))?;
    Some(format!("{name} with envFrom referencing secret.secretName=\"{}\"", string(secret)))
}

/// Returns the reason why a pod cannot be a mirror pod.
pub(super) fn refused_mirror(spec: &Value) -> Option<&'static str> {
    let is_set = |field: &str| spec[field].as_str().is_some_and(|string| !string.is_empty());
    let projects_token =
        |volume: &Value| list(&volume["projected"], "sources").any(|source| source["serviceAccountToken"].is_object());
    if is_set("serviceAccountName") {
        Some("a mirror pod may not reference service accounts")
    } else if corten_access::refers_to_any(spec, "secrets") {
        Some("a mirror pod may not reference secrets")
    } else if list(spec, "volumes").any(projects_token) {
        Some("a mirror pod may not use ServiceAccountToken volume projections")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_held_to_the_secrets_of_their_account() {
        let account = json!({ "metadata": { "name": "a", "annotations": { ENFORCE: "true" } },
                              "secrets": [{ "name": "own" }], "imagePullSecrets": [{ "name": "pull" }] });
        let from = |secret: &str| json!([{ "name": "c", "envFrom": [{ "secretRef": { "name": secret } }] }]);
        let key = |secret: &str| json!([{ "name": "c", "env": [{ "name": "E", "valueFrom": { "secretKeyRef": { "name": secret } } }] }]);
        for (spec, used) in [
            (json!({ "containers": from("own"), "imagePullSecrets": [{ "name": "pull" }] }), None),
            (json!({ "containers": from("x") }), Some("container c with envFrom referencing secret.secretName=\"x\"")),
            (
                json!({ "initContainers": key("x") }),
                Some("init container c with envVar E referencing secret.secretName=\"x\""),
            ),
            (
                json!({ "containers": from("x"), "volumes": [{ "secret": { "secretName": "y" } }] }),
                Some("volume with secret.secretName=\"y\""),
            ),
        ] {
            let why = "is not allowed because service account a does not reference that secret";
            assert_eq!(refused(&account, &spec), used.map(|used| format!("{used} {why}")), "{spec}");
            assert_eq!(refused(&json!({ "metadata": { "name": "a" } }), &spec), None);
        }
        let pulls = json!({ "imagePullSecrets": [{ "name": "pull" }, { "name": "own" }] });
        let why = "imagePullSecrets[1].name=\"own\" is not allowed because service account a does not reference that imagePullSecret";
        assert_eq!(refused(&account, &pulls).as_deref(), Some(why));
        let added = json!({ "ephemeralContainers": key("x"), "containers": from("x") });
        assert!(refused_later(&account, &added).unwrap().starts_with("ephemeral container c with envVar E"));
    }

    #[test]
    fn mirrors_refer_to_nothing_of_the_cluster() {
        for (spec, why) in [
            (json!({ "serviceAccountName": "", "volumes": [{ "emptyDir": {} }] }), None),
            (json!({ "serviceAccountName": "a" }), Some("a mirror pod may not reference service accounts")),
            (json!({ "imagePullSecrets": [{ "name": "a" }] }), Some("a mirror pod may not reference secrets")),
            (
                json!({ "volumes": [{ "projected": { "sources": [{ "serviceAccountToken": {} }] } }] }),
                Some("a mirror pod may not use ServiceAccountToken volume projections"),
            ),
        ] {
            assert_eq!(refused_mirror(&spec), why, "{spec}");
        }
    }
}
