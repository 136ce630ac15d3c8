//! NodeRestriction: a kubelet writes its own Node, its own Lease and the pods that run on it, and nothing else.
//!
//! The Node authorizer derives a node's read permissions from its pods and its Node. So a node must not be able to
//! create pods that refer to other objects, nor to set labels by which it would get other pods. Reasons are in
//! upstream's words.

use corten_meta::quote::quote;
use corten_meta::{Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::node_checks::{Checked, only, same};
use super::operation::Operation;
use super::plugin::Plugin;
use super::{certificate_subject_restriction, node_object};

pub struct NodeRestriction;

const MIRROR: &str = "kubernetes.io/config.mirror";

impl Plugin for NodeRestriction {
    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let user = a.target.context.user();
            let Some(node) = user.node_name() else { return Ok(()) };
            if node.is_empty() {
                return Err(a.forbidden(format!("could not determine node from user {}", quote(&user.name))));
            }
            let kind = a.target.resource.kind();
            let checked = match (kind.group.as_str(), kind.plural.as_str(), a.subresource()) {
                ("", "nodes", _) => check_node(a, node),
                ("", "pods", "") => check_pod(a, node),
                ("", "pods", "status") => check_pod_status(a, node),
                ("", "pods", "eviction") => return check_eviction(a, node).await,
                ("", "pods", other) => Err(format!(
                    "unexpected pod subresource {}, only 'status' and 'eviction' are allowed",
                    quote(other)
                )),
                ("", "persistentvolumeclaims", "status") => check_claim_status(a, node),
                ("", "persistentvolumeclaims", _) => Err("may only update PVC status".to_owned()),
                ("", "serviceaccounts", "token") => return check_token(a, node).await,
                ("certificates.k8s.io", "certificatesigningrequests", "") => check_request(a, node),
                ("coordination.k8s.io", "leases", _) => check_lease(a, node),
                ("storage.k8s.io", "csinodes", _) => check_named(a, node, "CSINode"),
                ("resource.k8s.io", "resourceslices", _) => check_slice(a, node),
                _ => Ok(()),
            };
            checked.map_err(|why| a.forbidden(why))
        })
    }
}

fn name_of<'a>(a: &'a Attributes<'_>) -> &'a str {
    match corten_meta::name(&a.object) {
        "" => a.target.name,
        name => name,
    }
}

fn string<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn check_node(a: &Attributes<'_>, node: &str) -> Checked {
    let name = name_of(a);
    only(name == node, || format!("node {} is not allowed to modify node {}", quote(node), quote(name)))?;
    if a.operation == Operation::Delete {
        return Ok(());
    }
    node_object::check(a, node)
}

fn check_pod(a: &Attributes<'_>, node: &str) -> Checked {
    match a.operation {
        Operation::Create => check_mirror(a, node),
        Operation::Delete => {
            let pod = a.old.as_deref().unwrap_or(&a.object);
            let why = || format!("node {} can only delete pods with spec.nodeName set to itself", quote(node));
            only(string(pod, "/spec/nodeName") == node, why)
        }
        other => Err(format!(
            "unexpected operation {}, node {node} can only create and delete mirror pods",
            quote(other.word()),
            node = quote(node)
        )),
    }
}

/// Checks a mirror pod of a static pod: its owner is the node, and it refers to no other object.
fn check_mirror(a: &Attributes<'_>, node: &str) -> Checked {
    let pod = &a.object;
    only(corten_meta::annotations(pod).contains_key(MIRROR), || {
        format!("pod does not have {} annotation, node {} can only create mirror pods", quote(MIRROR), quote(node))
    })?;
    let create = |what: &str| format!("node {} can only create pods with {what} set to itself", quote(node));
    only(string(pod, "/spec/nodeName") == node, || create("spec.nodeName"))?;
    let owners = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array).cloned().unwrap_or_default();
    only(owners.len() <= 1, || create("a single owner reference"))?;
    let Some(owner) = owners.first() else { return Err(create("an owner reference")) };
    let is_node = owner["apiVersion"] == "v1" && owner["kind"] == "Node" && owner["name"] == node;
    only(is_node, || create("an owner reference"))?;
    only(owner["controller"] == true, || create("a controller owner reference"))?;
    let blocks = owner["blockOwnerDeletion"] == true;
    only(!blocks, || format!("node {} must not set blockOwnerDeletion on an owner reference", quote(node)))?;
    let known = a.target.core.objects.cached("", "nodes", "", node);
    let uid = known.as_ref().map(|known| known.header.uid.as_str()).unwrap_or_default();
    let owner_uid = owner["uid"].as_str().unwrap_or_default();
    only(uid == owner_uid, || format!("node {node} UID mismatch: expected {owner_uid} got {uid}"))?;
    match reference(&pod["spec"]) {
        Some(resource) => Err(format!("node {} can not create pods that reference {resource}", quote(node))),
        None => Ok(()),
    }
}

/// Returns the kind of API object that a pod refers to, if any.
fn reference(spec: &Value) -> Option<&'static str> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    if !string(spec, "/serviceAccountName").is_empty() {
        return Some("serviceaccounts");
    }
    if !list(&spec["imagePullSecrets"]).is_empty() {
        return Some("secrets");
    }
    if !list(&spec["resourceClaims"]).is_empty() {
        return Some("resourceclaims");
    }
    let containers = ["containers", "initContainers", "ephemeralContainers"];
    for container in containers.iter().flat_map(|field| list(&spec[*field])) {
        let sources = list(&container["env"]).into_iter().map(|env| env["valueFrom"].clone());
        for source in sources.chain(list(&container["envFrom"])) {
            let has = |keys: [&str; 2]| keys.iter().any(|key| source.get(*key).is_some_and(|v| !v.is_null()));
            if has(["secretKeyRef", "secretRef"]) {
                return Some("secrets");
            }
            if has(["configMapKeyRef", "configMapRef"]) {
                return Some("configmaps");
            }
        }
    }
    let has = |value: &Value, key: &str| value.get(key).is_some_and(|v| !v.is_null());
    list(&spec["volumes"]).iter().find_map(|volume| {
        const SOURCES: [(&str, &str); 7] = [
            ("configMap", "configmaps (via configmap volumes)"),
            ("secret", "secrets (via secret volumes)"),
            ("csi", "csidrivers (via CSI volumes)"),
            ("glusterfs", "endpoints (via glusterFS volumes)"),
            ("persistentVolumeClaim", "persistentvolumeclaims"),
            ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
            ("azureFile", "secrets (via azureFile volumes)"),
        ];
        const PROJECTED: [(&str, &str); 5] = [
            ("configMap", "configmaps (via projected volumes)"),
            ("secret", "secrets (via projected volumes)"),
            ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
            ("clusterTrustBundle", "clustertrustbundles"),
            ("podCertificate", "podcertificates"),
        ];
        let projected = volume.pointer("/projected/sources").map(list).unwrap_or_default();
        let source = SOURCES.iter().find(|(key, _)| has(volume, key));
        let inner = || PROJECTED.iter().find(|(key, _)| projected.iter().any(|source| has(source, key)));
        source.or_else(inner).map(|(_, what)| *what)
    })
}

fn check_pod_status(a: &Attributes<'_>, node: &str) -> Checked {
    let Some(old) = a.old.as_deref() else { return Err(format!("unexpected operation {}", quote(a.operation.word()))) };
    only(string(old, "/spec/nodeName") == node, || {
        format!("node {} can only update pod status for pods with spec.nodeName set to itself", quote(node))
    })?;
    let labels = corten_meta::labels(old) == corten_meta::labels(&a.object);
    only(labels, || format!("node {} cannot update labels through pod status", quote(node)))?;
    let claims = same(old, &a.object, "/status/resourceClaimStatuses");
    only(claims, || format!("node {} cannot update resource claim statues", quote(node)))?;
    let extended = same(old, &a.object, "/status/extendedResourceClaimStatus");
    only(extended, || format!("node {} cannot update extended resource claim statues", quote(node)))
}

/// Checks an eviction by the stored pod: the body of an eviction does not contain the pod's node.
async fn check_eviction(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let pod = a.target.core.objects.get("", "pods", a.target.namespace, a.name()).await?.value();
    if string(&pod, "/spec/nodeName") == node {
        return Ok(());
    }
    Err(a.forbidden(format!("node {node} can only evict pods with spec.nodeName set to itself")))
}

/// Checks that a node changes only capacity, conditions and allocated resources in a claim's status.
fn check_claim_status(a: &Attributes<'_>, node: &str) -> Checked {
    let stripped = |claim: &Value| {
        let mut claim = claim.clone();
        for (parent, fields) in [
            ("/metadata", &["resourceVersion", "managedFields"][..]),
            ("/status", &["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"]),
        ] {
            let Some(map) = claim.pointer_mut(parent).and_then(Value::as_object_mut) else { continue };
            fields.iter().for_each(|field| _ = map.remove(*field));
        }
        claim
    };
    let unchanged = a.old.as_deref().is_some_and(|old| stripped(old) == stripped(&a.object));
    only(unchanged, || {
        format!("node {} is not allowed to update fields other than status.quantity and status.conditions", quote(node))
    })
}

/// Checks that a node requests tokens only for its own pods, by name and UID.
async fn check_token(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let bound = &a.object["spec"]["boundObjectRef"];
    let name = string(bound, "/name");
    let uid = string(bound, "/uid");
    let refuse = |why: &str| Err(a.forbidden(why));
    if bound["apiVersion"] != "v1" || bound["kind"] != "Pod" || name.is_empty() {
        return refuse("node requested token not bound to a pod");
    }
    if uid.is_empty() {
        return refuse("node requested token with a pod binding without a uid");
    }
    let pod = a.target.core.objects.get("", "pods", a.target.namespace, name).await?;
    if pod.header.uid != uid {
        return Err(a.forbidden(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        )));
    }
    let pod = pod.value();
    if string(&pod, "/spec/nodeName") != node {
        return refuse("node requested token bound to a pod scheduled on a different node");
    }
    check_audience(a, node, &pod).await
}

/// Checks that the audience is that of a projected token of the pod, or one that RBAC allows the node to request.
async fn check_audience(a: &Attributes<'_>, node: &str, pod: &Value) -> Result<(), Status> {
    let audiences = a.object["spec"]["audiences"].as_array().cloned().unwrap_or_default();
    let audience = match audiences.as_slice() {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return Err(a.forbidden("node may only request 0 or 1 audiences")),
    };
    if has_token(pod, audience, a.target.core.config.audiences) {
        return Ok(());
    }
    let attributes = corten_access::Attributes {
        resource: audience,
        version: "v1",
        namespace: a.target.namespace,
        name: a.name(),
        ..corten_access::Attributes::resource(a.target.context.user(), "request-serviceaccounts-token-audience")
    };
    if a.target.core.authorizer.authorize(&attributes).await.is_ok() {
        return Ok(());
    }
    Err(a.forbidden(format!(
        "audience {} not found in pod spec volume, system:node:{node} is not authorized to request tokens for this \
         audience",
        quote(audience)
    )))
}

/// Reports whether the pod has a projected token for an audience. The default audience is the API server's own.
fn has_token(pod: &Value, audience: &str, own: &[String]) -> bool {
    let canonical = |name: &str| if own.iter().any(|o| o == name) { String::new() } else { name.to_owned() };
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let sources = volumes.filter_map(|volume| volume.pointer("/projected/sources")).filter_map(Value::as_array);
    let mut tokens = sources.flatten().filter_map(|source| source.get("serviceAccountToken"));
    tokens.any(|token| canonical(string(token, "/audience")) == canonical(audience))
}

/// Checks that a node requests certificates of kubelets only under its own name.
fn check_request(a: &Attributes<'_>, node: &str) -> Checked {
    const SIGNERS: [&str; 2] = ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];
    if a.operation != Operation::Create || !SIGNERS.contains(&string(&a.object, "/spec/signerName")) {
        return Ok(());
    }
    let request =
        certificate_subject_restriction::requested(&a.object).map_err(|e| format!("unable to parse csr: {e}"))?;
    let user = format!("system:node:{node}");
    only(request.common_name == user, || format!("can only create a node CSR with CN={user}"))
}

fn check_lease(a: &Attributes<'_>, node: &str) -> Checked {
    only(a.target.namespace == "kube-node-lease", || {
        "can only access leases in the \"kube-node-lease\" system namespace".to_owned()
    })?;
    check_named(a, node, "lease")
}

fn check_named(a: &Attributes<'_>, node: &str, what: &str) -> Checked {
    only(name_of(a) == node, || format!("can only access {what} with the same name as the requesting node"))
}

fn check_slice(a: &Attributes<'_>, node: &str) -> Checked {
    let slice = if a.operation == Operation::Delete { a.old.as_deref().unwrap_or(&a.object) } else { &a.object };
    only(string(slice, "/spec/nodeName") == node, || {
        "can only create ResourceSlice with the same NodeName as the requesting node".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_reference_of_a_pod_is_found() {
        for (spec, expected) in [
            (
                json!({ "containers": [{ "env": [{ "name": "a", "value": "b" }] }], "volumes": [{ "emptyDir": {} }, { "hostPath": {} }] }),
                None,
            ),
            (json!({ "serviceAccountName": "x" }), Some("serviceaccounts")),
            (json!({ "imagePullSecrets": [{ "name": "x" }] }), Some("secrets")),
            (json!({ "initContainers": [{ "env": [{ "valueFrom": { "secretKeyRef": {} } }] }] }), Some("secrets")),
            (json!({ "containers": [{ "envFrom": [{ "configMapRef": {} }] }] }), Some("configmaps")),
            (json!({ "volumes": [{ "secret": {} }] }), Some("secrets (via secret volumes)")),
            (json!({ "volumes": [{ "projected": { "sources": [{ "downwardAPI": {} }] } }] }), None),
            (
                json!({ "volumes": [{ "projected": { "sources": [{ "serviceAccountToken": {} }] } }] }),
                Some("serviceaccounts (via projected volumes)"),
            ),
            (json!({ "volumes": [{ "ephemeral": {} }] }), Some("persistentvolumeclaims (via ephemeral volumes)")),
        ] {
            assert_eq!(reference(&spec), expected, "{spec}");
        }
    }
}
