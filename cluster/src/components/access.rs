//! The roles and bindings of a node's components, beyond upstream's bootstrap roles: the administrator of another
//! cluster would apply them together with its DNS and network add-ons.
//!
//! The group `system:nodes` must never get access here to objects of other nodes: only the Node authorizer decides what
//! a kubelet may read.

use anyhow::Result;
use corten_api::k8s_openapi::api::flowcontrol::v1::FlowSchema;
use corten_api::k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use corten_api::{ADDRESS_POOLS, BGP_PEERS, NETWORK_GROUP, POD_ADDRESSES};
use corten_client::{Client, DeleteOptions, Error};
use corten_controllers::NodeComponent;
use corten_gateway::{crds, issuer};
use corten_meta::Value;
use corten_snapshots::BACKUP_GROUP;
use futures::future::try_join_all;
use serde_json::json;

use super::apply::apply;
use super::cloud;
use super::ebs;
use super::groups::{JOINING_GROUP, NODES_GROUP};
use super::snapshots;

/// The role of the controller that writes the status of AddressPools.
const ADDRESS_POOLS_ROLE: &str = "corten:address-pools";
const LOCAL_VOLUMES_ROLE: &str = "corten:local-path-provisioner";

/// The role of the cloud controller manager, named as upstream's manifests name it.
const CLOUD_ROLE: &str = cloud::USER;
/// The role of the controller of Gateways and Ingresses.
const GATEWAY_ROLE: &str = "corten:gateway";
/// The role of the controller that approves the serving certificates of kubelets.
const APPROVER_ROLE: &str = "corten:serving-approver";
/// The role that may read its own Node before it has joined, as kubeadm allows.
const GET_NODES_ROLE: &str = "kubeadm:get-nodes";
/// The role that may request the client certificates of its own components, and have them approved.
const COMPONENT_CLIENT_ROLE: &str = "corten:node-component-client";
const COMPONENT_APPROVER_ROLE: &str = "corten:node-component-approver";

/// The bindings of earlier versions, by which every node could read the pods of all nodes.
const RETIRED_BINDINGS: [&str; 3] = ["corten:node-dns", "corten:node-network", "corten:node-proxier"];

/// A ClusterRoleBinding.
struct Binding {
    name: String,
    role: String,
    subjects: Value,
}

/// Applies the roles and bindings; all at once, so that a first start waits for one write to the disk and not twenty.
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
    let aggregated = snapshots::aggregated_roles().into_iter().map(|role| async move {
        let name = corten_meta::name(&role).to_owned();
        apply::<ClusterRole>(client, "", &name, role).await
    });
    let bindings = bindings().into_iter().map(|binding| async move {
        let object = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": binding.name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": binding.role},
            "subjects": binding.subjects,
        });
        apply::<ClusterRoleBinding>(client, "", &binding.name, object).await
    });
    let retired = RETIRED_BINDINGS.into_iter().map(|name| revoke(client, name));
    let priority = apply::<FlowSchema>(client, "", FLOW_SCHEMA, flow_schema());
    let roles = futures::future::try_join(try_join_all(roles), try_join_all(aggregated));
    futures::try_join!(roles, try_join_all(bindings), try_join_all(retired), priority).map(drop)
}

async fn revoke(client: &Client, name: &str) -> Result<(), Error> {
    match client.delete::<ClusterRoleBinding>("", name, &DeleteOptions::default()).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

const FLOW_SCHEMA: &str = "corten-node-components";

/// Returns the FlowSchema that gives the components of nodes the priority of kubelets: policies are enforced also while
/// other clients flood the API server.
fn flow_schema() -> Value {
    let groups = NodeComponent::ALL.map(|one| json!({"kind": "Group", "group": {"name": one.group()}}));
    let everything = json!({
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true,
    });
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": FLOW_SCHEMA},
        "spec": {
            "priorityLevelConfiguration": {"name": "system"},
            "matchingPrecedence": 500,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [{"subjects": groups, "resourceRules": [everything]}],
        },
    })
}

/// Returns the role of a component on every node.
fn role_of(component: NodeComponent) -> &'static str {
    match component {
        NodeComponent::Network => "corten:network",
        NodeComponent::Proxy => "system:node-proxier",
        NodeComponent::Dns => "corten:dns",
        NodeComponent::Edge => "corten:edge",
        NodeComponent::Storage => "corten:storage",
    }
}

fn roles() -> Vec<(&'static str, Value)> {
    let read = json!(["get", "list", "watch"]);
    let dns = json!([
        {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]);
    let network = json!([
        {"apiGroups": [NETWORK_GROUP], "resources": [POD_ADDRESSES, ADDRESS_POOLS, BGP_PEERS], "verbs": read},
        {"apiGroups": [NETWORK_GROUP], "resources": [format!("{BGP_PEERS}/status")], "verbs": ["patch"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        {"apiGroups": [""], "resources": ["nodes", "namespaces", "services"], "verbs": read},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": read},
    ]);
    // Secrets and ConfigMaps by name: the controller of Gateways makes a Role for those that are named.
    let edge = json!([
        {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses", "ingressclasses"], "verbs": ["list", "watch"]},
        {"apiGroups": [crds::GROUP], "resources": crds::resources(), "verbs": ["list", "watch"]},
        {"apiGroups": [crds::POLICY_GROUP], "resources": ["routepolicies"], "verbs": ["list", "watch"]},
    ]);
    let approver = json!([
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]},
        {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/approval"], "verbs": ["patch"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
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
    let address_pools = json!([
        {"apiGroups": [NETWORK_GROUP], "resources": [format!("{ADDRESS_POOLS}/status")], "verbs": ["patch"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
    ]);
    let get_nodes = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]);
    let component_client = json!([
        {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/nodecomponentclient"],
         "verbs": ["create"]},
    ]);
    let component_approver = json!([
        {"apiGroups": ["certificates.k8s.io"], "resources": ["signers"],
         "resourceNames": ["kubernetes.io/kube-apiserver-client"], "verbs": ["approve"]},
    ]);
    vec![
        (role_of(NodeComponent::Dns), dns),
        (role_of(NodeComponent::Network), network),
        (role_of(NodeComponent::Edge), edge),
        (role_of(NodeComponent::Storage), storage_rules()),
        (GATEWAY_ROLE, gateway_rules()),
        (snapshots::ROLE, snapshots::rules()),
        (snapshots::BACKUP_ROLE, snapshots::backup_rules()),
        (snapshots::REPLICA_ROLE, snapshots::replica_rules()),
        (CLOUD_ROLE, cloud_rules()),
        (COMPONENT_CLIENT_ROLE, component_client),
        (COMPONENT_APPROVER_ROLE, component_approver),
        (LOCAL_VOLUMES_ROLE, local_volumes),
        (ADDRESS_POOLS_ROLE, address_pools),
        (APPROVER_ROLE, approver),
        (GET_NODES_ROLE, get_nodes),
    ]
}

/// Returns the rules of the controller loops of a node's own storage driver. They read no Secrets but those of repositories
/// of volume backups (`snapshots::backup_secrets`): the driver needs none.
fn storage_rules() -> Value {
    let read = json!(["get", "list", "watch"]);
    let write = json!(["get", "list", "watch", "create", "patch", "delete"]);
    let snapshots = "snapshot.storage.k8s.io";
    let groups = "groupsnapshot.storage.k8s.io";
    json!([
        {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": write},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": read},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        {"apiGroups": ["storage.k8s.io"], "verbs": read,
         "resources": ["storageclasses", "csinodes", "csidrivers", "volumeattachments", "volumeattributesclasses"]},
        {"apiGroups": ["storage.k8s.io"], "resources": ["volumeattachments", "volumeattachments/status"],
         "verbs": ["patch"]},
        {"apiGroups": ["storage.k8s.io"], "resources": ["csistoragecapacities"], "verbs": write},
        {"apiGroups": [snapshots], "verbs": read,
         "resources": ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"]},
        {"apiGroups": [snapshots], "resources": ["volumesnapshotclasses"], "verbs": ["create"]},
        {"apiGroups": [snapshots], "resources": ["volumesnapshotcontents", "volumesnapshotcontents/status"],
         "verbs": ["patch"]},
        {"apiGroups": [groups], "verbs": read,
         "resources": ["volumegroupsnapshots", "volumegroupsnapshotcontents", "volumegroupsnapshotclasses"]},
        {"apiGroups": [groups], "resources": ["volumegroupsnapshotcontents", "volumegroupsnapshotcontents/status"],
         "verbs": ["patch"]},
        {"apiGroups": ["gateway.networking.k8s.io"], "resources": ["referencegrants"], "verbs": read},
        {"apiGroups": [BACKUP_GROUP], "verbs": read,
         "resources": ["volumebackups", "volumebackuprepositories", "volumereplicas"]},
        {"apiGroups": [BACKUP_GROUP], "verbs": ["patch"], "resources": [
            "volumebackups", "volumebackups/status", "volumebackuprepositories/status", "volumereplicas/status"]},
    ])
}

/// Returns the rules of the controller of Gateways and Ingresses. It makes Roles by which data nodes read the
/// Secrets that Gateways name, so it reads Secrets itself; it writes those with certificates that it ordered.
fn gateway_rules() -> Value {
    let read = json!(["get", "list", "watch"]);
    let own = json!(["get", "list", "watch", "create", "patch", "update", "delete"]);
    let gateway_api = crds::GROUP;
    let status = [
        "gatewayclasses",
        "gateways",
        "listenersets",
        "httproutes",
        "grpcroutes",
        "tlsroutes",
        "tcproutes",
        "udproutes",
        "backendtlspolicies",
    ]
    .map(|plural| format!("{plural}/status"));
    json!([
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
         "verbs": ["get", "create", "patch"]},
        {"apiGroups": [gateway_api], "resources": ["*"], "verbs": read},
        {"apiGroups": [gateway_api], "resources": ["gatewayclasses"], "verbs": ["create"]},
        {"apiGroups": [gateway_api], "resources": status, "verbs": ["patch", "update"]},
        {"apiGroups": [crds::POLICY_GROUP], "resources": ["routepolicies"], "verbs": read},
        {"apiGroups": [crds::POLICY_GROUP], "resources": ["routepolicies/status"], "verbs": ["patch", "update"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses", "ingressclasses"], "verbs": read},
        {"apiGroups": ["networking.k8s.io"], "resources": ["ingressclasses"], "verbs": ["create"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses/status"], "verbs": ["patch", "update"]},
        {"apiGroups": [""], "resources": ["services"], "verbs": own},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch", "create"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": read},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": read},
        {"apiGroups": [""], "resources": ["secrets"],
         "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": [issuer::GROUP], "resources": [issuer::PLURAL], "verbs": read},
        {"apiGroups": [issuer::GROUP], "resources": [format!("{}/status", issuer::PLURAL)], "verbs": ["patch"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": own},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": own},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": own},
    ])
}

/// Returns the namespace of the front door, and the Role by which its controller writes the fetched keys of tokens there.
pub fn gateway_namespace() -> [Value; 3] {
    let namespace = corten_gateway::resolve::NAMESPACE;
    let metadata = json!({"name": GATEWAY_ROLE, "namespace": namespace});
    let account = super::edge::CONTROLLER_ACCOUNT;
    [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "patch", "delete"]}],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": GATEWAY_ROLE},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}],
        }),
    ]
}

/// Returns the rules of the cloud controller manager. It reads the published CA and reviews requests for its metrics, and
/// runs the loops of the cloud's volumes.
fn cloud_rules() -> Value {
    let own = json!([
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch", "update", "delete"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["services/status"], "verbs": ["patch", "update"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["extension-apiserver-authentication"],
         "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [cloud::NAME, ebs::LEASE],
         "verbs": ["get", "patch", "update"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        {"apiGroups": ["storage.k8s.io"], "resources": ["csidrivers"], "verbs": ["create"]},
        {"apiGroups": ["storage.k8s.io"], "resources": ["csidrivers"], "resourceNames": [corten_ebs::NAME],
         "verbs": ["delete"]},
    ]);
    let both = [own, storage_rules()].into_iter().filter_map(|rules| rules.as_array().cloned());
    both.flatten().collect()
}

fn bindings() -> Vec<Binding> {
    let account = |name: &str| json!([{"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}]);
    let user = |name: &str| json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]);
    let group = |name: &str| json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}]);
    let binding =
        |name: &str, role: &str, subjects: Value| Binding { name: name.to_owned(), role: role.to_owned(), subjects };
    let requests = |kind: &str| format!("system:certificates.k8s.io:certificatesigningrequests:{kind}");
    let components =
        NodeComponent::ALL.map(|one| binding(&format!("corten:{}", one.name()), role_of(one), group(&one.group())));
    let others = [
        binding(LOCAL_VOLUMES_ROLE, LOCAL_VOLUMES_ROLE, account("local-path-provisioner")),
        binding(ADDRESS_POOLS_ROLE, ADDRESS_POOLS_ROLE, account("address-pool-controller")),
        binding(GATEWAY_ROLE, GATEWAY_ROLE, account(super::edge::CONTROLLER_ACCOUNT)),
        binding(snapshots::ROLE, snapshots::ROLE, account(corten_controllers::SNAPSHOT_ACCOUNT)),
        binding(snapshots::BACKUP_ROLE, snapshots::BACKUP_ROLE, account(corten_controllers::VOLUME_BACKUP_ACCOUNT)),
        binding(snapshots::REPLICA_ROLE, snapshots::REPLICA_ROLE, account(corten_controllers::VOLUME_REPLICA_ACCOUNT)),
        binding(CLOUD_ROLE, CLOUD_ROLE, user(cloud::USER)),
        binding(APPROVER_ROLE, APPROVER_ROLE, account("corten-serving-approver")),
        binding(COMPONENT_CLIENT_ROLE, COMPONENT_CLIENT_ROLE, group(NODES_GROUP)),
        binding(COMPONENT_APPROVER_ROLE, COMPONENT_APPROVER_ROLE, account("certificate-controller")),
        binding(GET_NODES_ROLE, GET_NODES_ROLE, group(JOINING_GROUP)),
        binding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", group(JOINING_GROUP)),
        binding("kubeadm:node-autoapprove-bootstrap", &requests("nodeclient"), group(JOINING_GROUP)),
        binding("kubeadm:node-autoapprove-certificate-rotation", &requests("selfnodeclient"), group(NODES_GROUP)),
    ];
    components.into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_get_certificates_by_these_roles_and_no_right_to_read() {
        let of_nodes = |binding: &Binding| binding.subjects[0]["name"] == NODES_GROUP;
        let roles: Vec<String> = bindings().into_iter().filter(of_nodes).map(|binding| binding.role).collect();
        let rotation = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient";
        assert_eq!(roles, [COMPONENT_CLIENT_ROLE, rotation]);
    }

    #[test]
    fn components_of_nodes_read_no_pods() {
        let components = NodeComponent::ALL.map(role_of);
        for (name, rules) in roles().into_iter().filter(|(name, _)| components.contains(name)) {
            let resources = rules.as_array().unwrap().iter().flat_map(|rule| rule["resources"].as_array().unwrap());
            assert!(resources.into_iter().all(|resource| *resource != "pods" && *resource != "*"), "{name}");
        }
    }
}
