//! What the components of a node may read, beyond what upstream's own bootstrap roles give them: roles and bindings
//! that the administrator of another cluster would apply together with its DNS and network add-ons.

use anyhow::Result;
use corten_api::k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use corten_client::{Client, Error};
use corten_meta::Value;
use futures::future::try_join_all;
use serde_json::json;

use super::addons::apply;

const DNS_ROLE: &str = "system:coredns";
const NETWORK_ROLE: &str = "corten:network";
const LOCAL_VOLUMES_ROLE: &str = "corten:local-path-provisioner";

/// Everybody with a token that `corten token create` or kubeadm made.
pub const JOINING_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
pub const NODES_GROUP: &str = "system:nodes";

/// Who approves the certificates that nodes serve with.
pub const APPROVER_USER: &str = "system:serviceaccount:kube-system:corten-serving-approver";
const APPROVER_ROLE: &str = "corten:serving-approver";
/// Reading one's own Node before one is it, as kubeadm allows.
const GET_NODES_ROLE: &str = "kubeadm:get-nodes";

/// Who the pod network is.
pub const NETWORK_USER: &str = "system:serviceaccount:kube-system:corten-network";

/// Makes the roles and bindings stand; all at once, so that a first start waits for one write to the disk and not twenty.
pub async fn grant(client: &Client) -> Result<(), Error> {
    let roles = roles().into_iter().map(|(name, rules)| async move {
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": rules,
        });
        apply::<ClusterRole>(client, "", name, role).await
    });
    let bindings = bindings().into_iter().map(|(name, role, subjects)| async move {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": subjects,
        });
        apply::<ClusterRoleBinding>(client, "", name, binding).await
    });
    futures::try_join!(try_join_all(roles), try_join_all(bindings)).map(drop)
}

fn roles() -> Vec<(&'static str, Value)> {
    let read = json!(["get", "list", "watch"]);
    let dns = json!([
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]);
    let network = json!([
        {"apiGroups": [""], "resources": ["nodes", "pods", "namespaces", "services"], "verbs": read},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": read},
    ]);
    let approver = json!([
        {"apiGroups": [""], "resources": ["nodes"], "verbs": read},
        {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": read},
        {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/approval"], "verbs": ["update"]},
        {"apiGroups": ["certificates.k8s.io"], "resources": ["signers"],
         "resourceNames": ["kubernetes.io/kubelet-serving"], "verbs": ["approve"]},
    ]);
    let local_volumes = json!([
        {"apiGroups": [""], "resources": ["persistentvolumes"],
         "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["delete"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
    ]);
    let get_nodes = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]);
    vec![
        (DNS_ROLE, dns),
        (NETWORK_ROLE, network),
        (LOCAL_VOLUMES_ROLE, local_volumes),
        (APPROVER_ROLE, approver),
        (GET_NODES_ROLE, get_nodes),
    ]
}

fn bindings() -> Vec<(&'static str, String, Value)> {
    let account = |name: &str| json!([{"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}]);
    let group = |name: &str| json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}]);
    let requests = "system:certificates.k8s.io:certificatesigningrequests";
    vec![
        (DNS_ROLE, DNS_ROLE.to_owned(), account("coredns")),
        (NETWORK_ROLE, NETWORK_ROLE.to_owned(), account("corten-network")),
        (LOCAL_VOLUMES_ROLE, LOCAL_VOLUMES_ROLE.to_owned(), account("local-path-provisioner")),
        (APPROVER_ROLE, APPROVER_ROLE.to_owned(), account("corten-serving-approver")),
        // The components of a machine that joined act as its node.
        ("corten:node-dns", DNS_ROLE.to_owned(), group(NODES_GROUP)),
        ("corten:node-network", NETWORK_ROLE.to_owned(), group(NODES_GROUP)),
        ("corten:node-proxier", "system:node-proxier".to_owned(), group(NODES_GROUP)),
        (GET_NODES_ROLE, GET_NODES_ROLE.to_owned(), group(JOINING_GROUP)),
        ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper".to_owned(), group(JOINING_GROUP)),
        ("kubeadm:node-autoapprove-bootstrap", format!("{requests}:nodeclient"), group(JOINING_GROUP)),
        ("kubeadm:node-autoapprove-certificate-rotation", format!("{requests}:selfnodeclient"), group(NODES_GROUP)),
    ]
}
