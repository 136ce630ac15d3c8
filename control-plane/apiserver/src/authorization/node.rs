//! The Node authorizer: a kubelet may do what kubelets do, for the objects of its own node.
//!
//! The rules are those of the `system:node` role. Secrets and ConfigMaps are narrowed to what a pod of the
//! node refers to, ServiceAccount tokens to the accounts of its pods, Leases to its own.

use corten_meta::{FieldSelector, Selector, Value};

use super::Attributes;
use super::rbac::{Policy, Rule};
use crate::cache::Filter;
use crate::server::Server;

/// What the Node authorizer says.
pub enum Decision {
    Allow,
    /// No, unless RBAC allows it otherwise.
    Deny(String),
    NoOpinion,
}

/// The rules of kubelets, from the bootstrap policy's `system:node` role.
pub fn rules() -> &'static [Rule] {
    static RULES: std::sync::OnceLock<Vec<Rule>> = std::sync::OnceLock::new();
    RULES.get_or_init(|| crate::bootstrap::rbac::rules_of("system:node"))
}

pub fn authorize(server: &Server, _policy: &Policy, a: &Attributes<'_>) -> Decision {
    let Some(node) = a.user.node_name() else { return Decision::NoOpinion };
    if !rules().iter().any(|rule| rule.allows(a)) {
        return Decision::Deny(String::new());
    }
    let narrowed = match (a.group, a.resource, a.subresource) {
        ("", "secrets" | "configmaps" | "persistentvolumeclaims", _) if matches!(a.verb, "get" | "list" | "watch") => {
            is_referenced(server, node, a)
        }
        ("", "serviceaccounts", "token") => is_account_of_pod(server, node, a),
        ("coordination.k8s.io", "leases", "") if a.verb != "create" => {
            a.namespace == "kube-node-lease" && a.name == node
        }
        _ => true,
    };
    if narrowed {
        Decision::Allow
    } else {
        Decision::Deny(format!("no relationship found between node '{node}' and this object"))
    }
}

/// The pods of a namespace that run on the node.
fn pods_of(server: &Server, node: &str, namespace: &str) -> Vec<Value> {
    let Some(resource) = server.registry.resource("", "v1", "pods") else { return Vec::new() };
    let Some(stored) = &resource.stored else { return Vec::new() };
    let filter = Filter {
        namespace: namespace.to_owned(),
        labels: Selector::everything(),
        fields: FieldSelector::equals("spec.nodeName", node),
    };
    stored.cache.select(&filter).iter().map(|pod| pod.value()).collect()
}

fn is_referenced(server: &Server, node: &str, a: &Attributes<'_>) -> bool {
    !a.name.is_empty()
        && pods_of(server, node, a.namespace).iter().any(|pod| {
            refers_to(&pod["spec"], a.resource, a.name)
                || (a.resource == "persistentvolumeclaims" && has_ephemeral_claim(pod, a.name))
        })
}

/// Whether the claim is made for one of the pod's ephemeral volumes: it bears the names of both.
fn has_ephemeral_claim(pod: &Value, claim: &str) -> bool {
    let volume = claim.strip_prefix(corten_meta::name(pod)).and_then(|rest| rest.strip_prefix('-'));
    let mut volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    volume.is_some_and(|name| volumes.any(|volume| volume["name"] == name && volume.get("ephemeral").is_some()))
}

fn is_account_of_pod(server: &Server, node: &str, a: &Attributes<'_>) -> bool {
    pods_of(server, node, a.namespace)
        .iter()
        .any(|pod| pod.pointer("/spec/serviceAccountName").and_then(Value::as_str) == Some(a.name))
}

/// Whether a pod spec names the object anywhere that the API lets it.
fn refers_to(spec: &Value, resource: &str, name: &str) -> bool {
    let keys: &[(&str, &str)] = match resource {
        "secrets" => &[
            ("secretKeyRef", "name"),
            ("secretRef", "name"),
            ("secret", "secretName"),
            ("secret", "name"),
            ("imagePullSecrets", "name"),
            ("nodePublishSecretRef", "name"),
        ],
        "configmaps" => &[("configMapKeyRef", "name"), ("configMapRef", "name"), ("configMap", "name")],
        _ => &[("persistentVolumeClaim", "claimName")],
    };
    walk(spec, &mut |parent, value| keys.iter().any(|(key, field)| parent == *key && value[*field] == name))
}

/// Whether any object below `value` satisfies `found`, which is given the key the object stands under.
fn walk(value: &Value, found: &mut dyn FnMut(&str, &Value) -> bool) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(key, child)| match child {
            Value::Array(items) => items.iter().any(|item| found(key, item) || walk(item, found)),
            _ => found(key, child) || walk(child, found),
        }),
        Value::Array(items) => items.iter().any(|item| walk(item, found)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_ephemeral_volumes_claim_belongs_to_its_pod() {
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {"volumes": [{"name": "scratch", "ephemeral": {}}, {"name": "tmp", "emptyDir": {}}]},
        });
        for (claim, expected) in [("p-scratch", true), ("p-tmp", false), ("q-scratch", false), ("p", false)] {
            assert_eq!(has_ephemeral_claim(&pod, claim), expected, "{claim}");
        }
    }
}
