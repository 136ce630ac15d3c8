//! The objects for machines that join: `cluster-info` for every client, the cluster's settings for nodes. The objects
//! and names are kubeadm's, whose tokens and tools therefore work.

use std::sync::Arc;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{ConfigMap, Node};
use corten_api::k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use corten_client::{Client, Error, ListOptions};
use corten_meta::Value;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::apply::apply;
use super::groups::{JOINING_GROUP, NODES_GROUP};
use crate::config::Cluster;
use crate::join::discovery;
use crate::kubeconfig;
use crate::node_object::CONTROL_PLANE;
use crate::pki::{Authorities, Pki};
use crate::settings;

const PUBLIC: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";
const CLUSTER_INFO_ROLE: &str = "kubeadm:bootstrap-signer-clusterinfo";
const SETTINGS_ROLE: &str = "corten:settings";

/// The time between two looks at the servers that `cluster-info` may name.
const INTERVAL: Duration = Duration::from_secs(30);

/// Publishes both, with the roles of their readers.
pub async fn publish(client: &Client, cluster: &Cluster, pki: &Pki) -> Result<(), Error> {
    publish_info(client, cluster, pki).await?;
    // Machines that join, and nodes that follow a rotation of the authority.
    let everyone = [("User", "system:anonymous"), ("Group", NODES_GROUP)];
    readers(client, PUBLIC, CLUSTER_INFO_ROLE, CLUSTER_INFO, &everyone).await?;
    config_map(client, settings::NAMESPACE, settings::NAME, cluster.settings().data()).await?;
    let nodes = [("Group", JOINING_GROUP), ("Group", NODES_GROUP)];
    readers(client, settings::NAMESPACE, SETTINGS_ROLE, settings::NAME, &nodes).await
}

/// Keeps `cluster-info` naming a server that exists, until the shutdown: a server that it names may leave the cluster.
pub async fn keep(
    client: Client,
    cluster: Cluster,
    authorities: Authorities,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        let pki = Arc::clone(&authorities.borrow());
        if let Err(error) = publish_info(&client, &cluster, &pki).await {
            tracing::warn!("cluster-info cannot be published: {error}");
        }
    }
}

async fn publish_info(client: &Client, cluster: &Cluster, pki: &Pki) -> Result<(), Error> {
    let present = client.find::<ConfigMap>(PUBLIC, CLUSTER_INFO).await?;
    let present = present.and_then(|info| info.data?.remove("kubeconfig"));
    let named = present.as_deref().and_then(|content| Some(discovery::parse(content).ok()?.server));
    let nodes = client.list::<Node>("", &ListOptions::labels(CONTROL_PLANE)).await?;
    let nodes: Vec<Value> = nodes.items.iter().map(corten_api::Typed::to_value).collect();
    let server = server(cluster, named, &nodes);
    let info = corten_meta::codec::encode_yaml(&kubeconfig::cluster_only(&server, &pki.cluster.certificate));
    if present.as_ref() == Some(&info) {
        return Ok(());
    }
    config_map(client, PUBLIC, CLUSTER_INFO, json!({"kubeconfig": info})).await
}

/// Returns the URL for machines that join: the stable one, else that of the server which is named already while it is a
/// server of the cluster, else this server's own.
fn server(cluster: &Cluster, named: Option<String>, servers: &[Value]) -> String {
    if let Some(endpoint) = &cluster.control_plane_endpoint {
        return endpoint.url();
    }
    let is_other = |url: &String| {
        let uri: Option<http::Uri> = url.parse().ok();
        let host = uri.as_ref().and_then(http::Uri::host).unwrap_or_default().trim_matches(['[', ']']);
        let others = servers.iter().filter(|node| corten_meta::name(node) != cluster.node.name);
        others.flat_map(addresses).any(|address| address == host)
    };
    named.filter(is_other).unwrap_or_else(|| cluster.advertised_url())
}

fn addresses(node: &Value) -> impl Iterator<Item = &str> {
    let all = node.pointer("/status/addresses").and_then(Value::as_array).into_iter().flatten();
    all.filter(|address| address["type"] == "InternalIP").filter_map(|address| address["address"].as_str())
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli;

    #[test]
    fn the_published_server_stays_while_it_is_one_of_the_cluster() {
        let cluster = |words: &[&str]| {
            let words = [&["corten", "server", "--node-name", "two", "--node-ip", "10.0.0.2"], words].concat();
            match cli::Cli::parse_from(words).command {
                cli::Command::Server(flags) => Cluster::from_flags(&flags).unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let node = |name: &str, ip: &str| {
            let addresses = json!([{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": ip}]);
            json!({"metadata": {"name": name}, "status": {"addresses": addresses}})
        };
        let nodes = [node("one", "10.0.0.1"), node("two", "10.0.0.9"), node("three", "fd00::3")];
        let own = "https://10.0.0.2:6443";
        let two = cluster(&[]);
        for (named, expected) in [
            (None, own),
            (Some("https://10.0.0.1:7443"), "https://10.0.0.1:7443"),
            (Some("https://[fd00::3]:6443"), "https://[fd00::3]:6443"),
            (Some("https://10.0.0.4:6443"), own),
            // Its own address was another one.
            (Some("https://10.0.0.9:6443"), own),
            (Some("nonsense"), own),
        ] {
            assert_eq!(server(&two, named.map(str::to_owned), &nodes), expected, "{named:?}");
        }
        let behind = cluster(&["--control-plane-endpoint", "api.example:443"]);
        assert_eq!(server(&behind, Some("https://10.0.0.1:6443".to_owned()), &nodes), "https://api.example:443");
        assert!(behind.extra_names.contains(&"api.example".to_owned()));
    }
}
