//! The Node authorizer: a kubelet may access the objects of its own node.
//!
//! These are its own Node, Lease and pods; and those Secrets, ConfigMaps, claims, volumes and ServiceAccounts that a
//! pod of the node uses. For the rest, the rules are those of the `system:node` role. Reasons are in upstream's words.

use corten_access::{Attributes, Rule, refers_to};
use corten_meta::quote::quote;
use corten_meta::{FieldSelector, Selector, Value};

use super::{Decision, Verdict};
use crate::cache::Filter;
use crate::registry::Registry;

/// Returns the rules of kubelets, from the bootstrap policy's `system:node` role.
pub fn rules() -> &'static [Rule] {
    static RULES: std::sync::OnceLock<Vec<Rule>> = std::sync::OnceLock::new();
    RULES.get_or_init(|| super::bootstrap_policy::rules_of("system:node"))
}

/// Allows the request, or has no opinion: another authorizer may allow it.
pub fn authorize(registry: &Registry, a: &Attributes<'_>) -> Verdict {
    let Some(node) = a.user.node_name() else { return Verdict::new(Decision::NoOpinion, "") };
    if node.is_empty() {
        // An empty node name would match pods that are not bound.
        return Verdict::new(Decision::NoOpinion, format!("unknown node for user {}", quote(&a.user.name)));
    }
    let own = NodeObjects { registry, node };
    let allowed = match (a.group, a.resource) {
        ("", "secrets" | "configmaps") => own.read_related(a),
        ("", "persistentvolumeclaims") if a.subresource == "status" => own.update_status(a),
        ("", "persistentvolumeclaims" | "persistentvolumes")
        | ("resource.k8s.io", "resourceclaims")
        | ("storage.k8s.io", "volumeattachments") => own.get(a),
        ("", "serviceaccounts") => own.service_account(a),
        ("", "nodes") => own.node(a),
        ("", "pods") => own.pod(a),
        ("coordination.k8s.io", "leases") => own.lease(a),
        ("storage.k8s.io", "csinodes") => own.csi_node(a),
        ("resource.k8s.io", "resourceslices") => own.resource_slice(a),
        // The other permissions are the same for all nodes.
        _ => rules().iter().any(|rule| rule.allows(a)).then_some(()).ok_or_else(String::new),
    };
    match allowed {
        Ok(()) => Verdict::new(Decision::Allow, ""),
        Err(why) => Verdict::new(Decision::NoOpinion, why),
    }
}

/// The objects of one node. Each decision is `Ok`, or the reason of the refusal.
struct NodeObjects<'a> {
    registry: &'a Registry,
    node: &'a str,
}

type Checked = Result<(), String>;

fn only(holds: bool, why: &str) -> Checked {
    if holds { Ok(()) } else { Err(why.to_owned()) }
}

impl NodeObjects<'_> {
    fn read_related(&self, a: &Attributes<'_>) -> Checked {
        only(matches!(a.verb, "get" | "list" | "watch"), "can only read resources of this type")?;
        only(a.subresource.is_empty(), "cannot read subresource")?;
        only(!a.namespace.is_empty(), "can only read namespaced object of this type")?;
        self.related(a)
    }

    fn get(&self, a: &Attributes<'_>) -> Checked {
        only(a.verb == "get", "can only get individual resources of this type")?;
        only(a.subresource.is_empty(), "cannot get subresource")?;
        self.related(a)
    }

    fn update_status(&self, a: &Attributes<'_>) -> Checked {
        only(matches!(a.verb, "update" | "patch"), "can only get/update/patch this type")?;
        self.related(a)
    }

    fn service_account(&self, a: &Attributes<'_>) -> Checked {
        if a.verb == "get" && a.subresource.is_empty() {
            return self.read_related(a);
        }
        let individual = a.verb == "create" && !a.name.is_empty();
        only(individual, "can only create tokens for individual service accounts")?;
        only(a.subresource == "token", "can only create token subresource of serviceaccount")?;
        self.related(a)
    }

    /// Decides about a Node; admission checks which Node is written.
    fn node(&self, a: &Attributes<'_>) -> Checked {
        match (a.subresource, a.verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
            ("", "get" | "list" | "watch") if a.name == self.node => Ok(()),
            ("", "get" | "list" | "watch") if a.name.is_empty() => {
                Err(format!("node '{}' cannot read all nodes, only its own Node object", self.node))
            }
            ("", "get" | "list" | "watch") => {
                Err(format!("node '{}' cannot read '{}', only its own Node object", self.node, a.name))
            }
            _ => Err(String::new()),
        }
    }

    /// Decides about a pod; admission checks which pod is written.
    fn pod(&self, a: &Attributes<'_>) -> Checked {
        match (a.subresource, a.verb) {
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
            ("", "get") => self.get(a),
            ("", "list" | "watch") if self.selects_own(a, "spec.nodeName") => Ok(()),
            ("", "list" | "watch") if !a.name.is_empty() => self.related(a),
            ("", "list" | "watch") => Err("can only list/watch pods with spec.nodeName field selector".to_owned()),
            _ => Err(String::new()),
        }
    }

    fn lease(&self, a: &Attributes<'_>) -> Checked {
        let verbs = matches!(a.verb, "get" | "create" | "update" | "patch" | "delete");
        only(verbs, "can only get, create, update, patch, or delete a node lease")?;
        let why = "can only access leases in the \"kube-node-lease\" system namespace";
        only(a.namespace == "kube-node-lease", why)?;
        let why = "can only access node lease with the same name as the requesting node";
        only(a.verb == "create" || a.name == self.node, why)
    }

    fn csi_node(&self, a: &Attributes<'_>) -> Checked {
        let verbs = matches!(a.verb, "get" | "create" | "update" | "patch" | "delete");
        only(verbs, "can only get, create, update, patch, or delete a CSINode")?;
        only(a.subresource.is_empty(), "cannot authorize CSINode subresources")?;
        let why = "can only access CSINode with the same name as the requesting node";
        only(a.verb == "create" || a.name == self.node, why)
    }

    fn resource_slice(&self, a: &Attributes<'_>) -> Checked {
        only(a.subresource.is_empty(), "cannot authorize ResourceSlice subresources")?;
        match a.verb {
            "create" => Ok(()),
            "get" | "update" | "patch" | "delete" => self.related(a),
            "watch" | "list" | "deletecollection" => only(
                self.selects_own(a, "spec.nodeName"),
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => Err("only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection".to_owned()),
        }
    }

    /// Reports whether the request's field selector selects only this node's objects.
    fn selects_own(&self, a: &Attributes<'_>, field: &str) -> bool {
        let selector = FieldSelector::parse(a.field_selector).unwrap_or_default();
        selector.requires_exact_match(field) == Some(self.node)
    }

    /// Checks that the named object is related to this node.
    fn related(&self, a: &Attributes<'_>) -> Checked {
        only(!a.name.is_empty(), "No Object name found")?;
        let of = |group: &str, plural: &str, pointer: &str, wanted: &str| {
            let object = self.registry.cached(group, "v1", plural, a.namespace, a.name).map(|object| object.value());
            object.is_some_and(|o| o.pointer(pointer).and_then(Value::as_str) == Some(wanted))
        };
        let pods = |namespace: &str| pods_of(self.registry, self.node, namespace);
        let related = match a.resource {
            "pods" => of("", "pods", "/spec/nodeName", self.node),
            "persistentvolumes" => {
                let volume = self.registry.cached("", "v1", "persistentvolumes", "", a.name).map(|o| o.value());
                let claim = |key: &str| {
                    let found = volume.as_ref().and_then(|v| v.pointer(&format!("/spec/claimRef/{key}")));
                    found.and_then(Value::as_str).unwrap_or_default().to_owned()
                };
                let namespace = claim("namespace");
                let name = claim("name");
                !name.is_empty() && pods(&namespace).iter().any(|pod| uses(pod, "persistentvolumeclaims", &name))
            }
            "volumeattachments" => of("storage.k8s.io", "volumeattachments", "/spec/nodeName", self.node),
            "resourceslices" => of("resource.k8s.io", "resourceslices", "/spec/nodeName", self.node),
            resource => {
                pods(a.namespace).iter().any(|pod| uses(pod, resource, a.name))
                    || (resource == "secrets" && is_of_volume(self.registry, self.node, a))
            }
        };
        let why = format!("no relationship found between node '{}' and this object", self.node);
        if related { Ok(()) } else { Err(why) }
    }
}

/// Reports whether a pod uses the named object.
fn uses(pod: &Value, resource: &str, name: &str) -> bool {
    let string = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    match resource {
        "serviceaccounts" => string("/spec/serviceAccountName") == name,
        "resourceclaims" => {
            let statuses = pod.pointer("/status/resourceClaimStatuses").and_then(Value::as_array);
            let mut claims = statuses.into_iter().flatten();
            refers_to(&pod["spec"], resource, name)
                || claims.any(|claim| claim["resourceClaimName"] == name)
                || string("/status/extendedResourceClaimStatus/resourceClaimName") == name
        }
        "persistentvolumeclaims" => refers_to(&pod["spec"], resource, name) || has_ephemeral_claim(pod, name),
        _ => refers_to(&pod["spec"], resource, name),
    }
}

/// Reports whether a PersistentVolume that a pod of the node claims refers to the Secret for its storage driver.
fn is_of_volume(registry: &Registry, node: &str, a: &Attributes<'_>) -> bool {
    let Some(resource) = registry.resource("", "v1", "persistentvolumes") else { return false };
    let Some(stored) = &resource.stored else { return false };
    let every =
        Filter { namespace: String::new(), labels: Selector::everything(), fields: FieldSelector::everything() };
    let volumes = stored.cache.select(&every);
    let named = volumes.iter().map(|volume| volume.value()).filter(|it| names_secret(it, a.namespace, a.name));
    let mut claims = named.filter_map(|volume| {
        let claim = &volume["spec"]["claimRef"];
        Some((claim["namespace"].as_str()?.to_owned(), claim["name"].as_str()?.to_owned()))
    });
    claims.any(|(namespace, name)| {
        pods_of(registry, node, &namespace).iter().any(|pod| uses(pod, "persistentvolumeclaims", &name))
    })
}

fn names_secret(volume: &Value, namespace: &str, name: &str) -> bool {
    let references = ["nodeStageSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"];
    references.iter().any(|reference| {
        let reference = &volume["spec"]["csi"][*reference];
        reference["namespace"] == namespace && reference["name"] == name
    })
}

/// Returns the pods of a namespace that run on the node.
fn pods_of(registry: &Registry, node: &str, namespace: &str) -> Vec<Value> {
    let Some(resource) = registry.resource("", "v1", "pods") else { return Vec::new() };
    let Some(stored) = &resource.stored else { return Vec::new() };
    let filter = Filter {
        namespace: namespace.to_owned(),
        labels: Selector::everything(),
        fields: FieldSelector::equals("spec.nodeName", node),
    };
    stored.cache.select(&filter).iter().map(|pod| pod.value()).collect()
}

/// Reports whether the claim belongs to one of the pod's ephemeral volumes: its name consists of the names of both.
fn has_ephemeral_claim(pod: &Value, claim: &str) -> bool {
    let volume = claim.strip_prefix(corten_meta::name(pod)).and_then(|rest| rest.strip_prefix('-'));
    let mut volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    volume.is_some_and(|name| volumes.any(|volume| volume["name"] == name && volume.get("ephemeral").is_some()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_names_the_secrets_of_its_driver() {
        let volume = json!({"spec": {"csi": {"nodeStageSecretRef": {"namespace": "ns", "name": "key"}}}});
        assert!(names_secret(&volume, "ns", "key"));
        assert!(!names_secret(&volume, "other", "key"));
        assert!(!names_secret(&json!({"spec": {"hostPath": {}}}), "ns", "key"));
    }

    #[test]
    fn a_pod_uses_the_claims_that_its_status_names() {
        let pod = json!({"spec": {}, "status": {
            "resourceClaimStatuses": [{"name": "c", "resourceClaimName": "made"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "extended"},
        }});
        for (claim, expected) in [("made", true), ("extended", true), ("other", false)] {
            assert_eq!(uses(&pod, "resourceclaims", claim), expected, "{claim}");
        }
    }

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
