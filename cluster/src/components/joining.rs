//! The objects for machines that join: `cluster-info` for every client, the cluster's settings for nodes. The objects
//! and names are kubeadm's, whose tokens and tools therefore work.

use corten_api::k8s_openapi::api::core::v1::ConfigMap;
use corten_api::k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use corten_client::{Client, Error};
use corten_meta::Value;
use serde_json::json;

use super::apply::apply;
use super::groups::{JOINING_GROUP, NODES_GROUP};
use crate::config::Cluster;
use crate::kubeconfig;
use crate::pki::Pki;
use crate::settings;

const PUBLIC: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";
const CLUSTER_INFO_ROLE: &str = "kubeadm:bootstrap-signer-clusterinfo";
const SETTINGS_ROLE: &str = "corten:settings";

/// Publishes both, with the roles of their readers.
pub async fn publish(client: &Client, cluster: &Cluster, pki: &Pki) -> Result<(), Error> {
    let info = kubeconfig::cluster_only(&cluster.advertised_url(), &pki.cluster.certificate);
    let info = corten_meta::codec::encode_yaml(&info);
    config_map(client, PUBLIC, CLUSTER_INFO, json!({"kubeconfig": info})).await?;
    // Machines that join, and nodes that follow a rotation of the authority.
    let everyone = [("User", "system:anonymous"), ("Group", NODES_GROUP)];
    readers(client, PUBLIC, CLUSTER_INFO_ROLE, CLUSTER_INFO, &everyone).await?;
    config_map(client, settings::NAMESPACE, settings::NAME, cluster.settings().data()).await?;
    let nodes = [("Group", JOINING_GROUP), ("Group", NODES_GROUP)];
    readers(client, settings::NAMESPACE, SETTINGS_ROLE, settings::NAME, &nodes).await
}

async fn config_map(client: &Client, namespace: &str, name: &str, data: Value) -> Result<(), Error> {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name}, "data": data,
    });
    apply::<ConfigMap>(client, namespace, name, object).await
}

/// Creates a role to read one ConfigMap, and its binding.
async fn readers(
    client: &Client,
    namespace: &str,
    role: &str,
    config_map: &str,
    holders: &[(&str, &str)],
) -> Result<(), Error> {
    let metadata = json!({"namespace": namespace, "name": role});
    let rules =
        json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [config_map], "verbs": ["get"]}]);
    let object =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules});
    apply::<Role>(client, namespace, role, object).await?;
    let group = "rbac.authorization.k8s.io";
    let subjects: Vec<Value> =
        holders.iter().map(|(kind, name)| json!({"apiGroup": group, "kind": kind, "name": name})).collect();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": role}, "subjects": subjects,
    });
    apply::<RoleBinding>(client, namespace, role, binding).await
}
