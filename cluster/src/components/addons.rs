//! The objects of every cluster beside the API: the Service `kube-dns`, whose endpoints are the nodes themselves, a
//! default StorageClass on the nodes' own disks, the nodes' own storage driver, the namespace of the Secrets of volume
//! backups, the kind MetricSource, and the control-plane label of the first node.
//!
//! Each node answers DNS on the gateway of its own pod CIDR; the EndpointSlice has one endpoint per node, and the
//! Service's internalTrafficPolicy makes every node use its own.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Result;
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Namespace, Node, Service, Taint};
use corten_api::k8s_openapi::api::discovery::v1::EndpointSlice;
use corten_api::k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use corten_api::k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use corten_client::{Caches, Client, Error, Patch};
use corten_meta::{Key, Value};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::access;
use super::apply::apply;
use super::node_dns::{DNS_METRICS, dns_of};
use super::snapshots;
use crate::cli::NetworkBackend;
use crate::config::Cluster;
use crate::node_object::{CONTROL_PLANE, SERVER};

const NAMESPACE: &str = "kube-system";

/// Keeps the Service and its endpoints up to date.
pub async fn run(client: Client, caches: Caches, cluster: Cluster, shutdown: CancellationToken) -> Result<()> {
    let nodes = caches.of::<Node>();
    nodes.synced().await;
    apply::<Service>(&client, NAMESPACE, "kube-dns", service(&cluster.node.cluster_dns)).await?;
    match client.create(&StorageClass::from_value(storage_class())?).await {
        // Another writer may have changed it since, so it is not overwritten.
        Err(error) if !error.is_already_exists() => return Err(error.into()),
        _ => {}
    }
    match client.create(&CSIDriver::from_value(storage_driver())?).await {
        Err(error) if !error.is_already_exists() => return Err(error.into()),
        _ => {}
    }
    // A user may be deleting a namespace; the cluster works without it.
    if let Err(error) = prepare(&client, snapshots::backup_secrets()).await {
        tracing::warn!(%error, "volume backups have no namespace for their Secrets");
    }
    if !cluster.node.edge.disable_edge
        && let Err(error) = prepare(&client, access::gateway_namespace()).await
    {
        tracing::warn!(%error, "the front door has no namespace");
    }
    corten_crds::install(&client, &[corten_metric_sources::definition()], corten_crds::provides).await?;
    let mut changes = nodes.subscribe();
    let mut applied: BTreeMap<&str, Value> = BTreeMap::new();
    let mut is_marked = false;
    loop {
        let first = Key { namespace: String::new(), name: cluster.node.name.clone() };
        if let Some(node) = nodes.typed::<Node>(&first).filter(|_| !is_marked) {
            match mark_control_plane(&client, &node, cluster.nodes > 1).await {
                Ok(()) => is_marked = true,
                // The cache will get a newer version.
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let listed: Vec<Value> = nodes.all().iter().map(|node| node.value()).collect();
        for (name, ipv4) in slices(&cluster.node.cluster_dns) {
            let wanted = slice(&listed, name, ipv4, cluster.node.network_backend);
            if applied.get(name) != Some(&wanted) {
                apply::<EndpointSlice>(&client, NAMESPACE, name, wanted.clone()).await?;
                applied.insert(name, wanted);
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            change = changes.next() => if change.is_none() { return Ok(()) },
        }
    }
}

/// Makes a namespace with a Role and its binding.
async fn prepare(client: &Client, objects: [Value; 3]) -> Result<(), Error> {
    let [namespace, role, binding] = objects;
    let name = corten_meta::name(&namespace).to_owned();
    let role_name = corten_meta::name(&role).to_owned();
    apply::<Namespace>(client, "", &name, namespace).await?;
    apply::<Role>(client, &name, &role_name, role).await?;
    apply::<RoleBinding>(client, &name, &role_name, binding).await
}

/// Labels the first node as the control plane, and taints it if there are other nodes for user pods. The kubelet may
/// not do so itself, so the administrator does, once, as kubeadm would. A user who removes the label or the taint, or
/// adds it to a node, intends it: the label of servers, which stays, tells that this was done.
async fn mark_control_plane(client: &Client, node: &Node, dedicated: bool) -> Result<(), Error> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let has_label = |key: &str| node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(key));
    if has_label(SERVER) {
        return Ok(());
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let is_missing = dedicated && !has_label(CONTROL_PLANE) && !taints.iter().any(|t| t.key == CONTROL_PLANE);
    let taint = Taint { key: CONTROL_PLANE.into(), effect: "NoSchedule".into(), ..Taint::default() };
    let wanted = taints.into_iter().chain(is_missing.then_some(taint)).collect::<Vec<_>>();
    let wanted: Vec<Value> = wanted.iter().map(taint_value).collect();
    let patch = json!({
        "metadata": {"labels": {CONTROL_PLANE: "", SERVER: ""}, "resourceVersion": node.metadata.resource_version},
        "spec": {"taints": wanted},
    });
    client.patch::<Node>("", name, &Patch::Merge(patch), None).await.map(|_| ())
}

fn taint_value(taint: &Taint) -> Value {
    let mut value = json!({"key": taint.key, "effect": taint.effect});
    if let Some(text) = &taint.value {
        value["value"] = json!(text);
    }
    if let Some(time) = &taint.time_added {
        value["timeAdded"] = json!(corten_meta::time::rfc3339(time.0));
    }
    value
}

/// Returns the StorageClass for claims without a class: a volume on the node of their first pod.
fn storage_class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": corten_storage_driver::NAME,
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": true,
        "volumeBindingMode": "WaitForFirstConsumer",
    })
}

/// Returns the object of the driver that every node has: its volumes need no attachment, and may be inline in pods.
fn storage_driver() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": corten_storage_driver::NAME},
        "spec": {
            "attachRequired": false,
            "podInfoOnMount": true,
            "storageCapacity": true,
            "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        },
    })
}

/// Returns the slices of the Service, one per IP family.
fn slices(addresses: &[IpAddr]) -> Vec<(&'static str, bool)> {
    let has = |ipv4: bool| addresses.iter().any(|address| address.is_ipv4() == ipv4);
    [("kube-dns-nodes", true), ("kube-dns-nodes-ipv6", false)].into_iter().filter(|(_, ipv4)| has(*ipv4)).collect()
}

fn service(addresses: &[IpAddr]) -> Value {
    let family = |address: &IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let policy = if addresses.len() > 1 { "RequireDualStack" } else { "SingleStack" };
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "kube-dns",
            "namespace": NAMESPACE,
            "labels": {"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"},
        },
        "spec": {
            "clusterIP": addresses.first(),
            "clusterIPs": addresses,
            "ipFamilies": addresses.iter().map(family).collect::<Vec<_>>(),
            "ipFamilyPolicy": policy,
            "internalTrafficPolicy": "Local",
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
                {"name": "metrics", "port": DNS_METRICS, "protocol": "TCP", "targetPort": DNS_METRICS},
            ],
        },
    })
}

fn slice(nodes: &[Value], name: &str, ipv4: bool, backend: NetworkBackend) -> Value {
    let mut port = 53;
    let mut endpoints: Vec<Value> = nodes
        .iter()
        .filter_map(|node| {
            let endpoint = dns_of(node, backend).into_iter().find(|endpoint| endpoint.is_ipv4() == ipv4)?;
            port = endpoint.port();
            Some(json!({
                "addresses": [endpoint.ip().to_string()],
                "nodeName": corten_meta::name(node),
                "conditions": {"ready": true},
            }))
        })
        .collect();
    endpoints.sort_by_key(|endpoint| endpoint["nodeName"].to_string());
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {
                "kubernetes.io/service-name": "kube-dns",
                "endpointslice.kubernetes.io/managed-by": "corten",
            },
        },
        "addressType": if ipv4 { "IPv4" } else { "IPv6" },
        "endpoints": endpoints,
        "ports": [
            {"name": "dns", "port": port, "protocol": "UDP"},
            {"name": "dns-tcp", "port": port, "protocol": "TCP"},
            {"name": "metrics", "port": DNS_METRICS, "protocol": "TCP"},
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_with_a_range_is_an_endpoint() {
        let node = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
        let nodes = [
            node("b", json!({"podCIDR": "10.244.1.0/24"})),
            node("new", json!({})),
            node("a", json!({"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00::/64"]})),
        ];
        let endpoints = |ipv4: bool| -> Vec<String> {
            let slice = slice(&nodes, "x", ipv4, NetworkBackend::HostGw);
            let endpoint =
                |e: &Value| format!("{} {}", e["nodeName"].as_str().unwrap(), e["addresses"][0].as_str().unwrap());
            slice["endpoints"].as_array().unwrap().iter().map(endpoint).collect()
        };
        assert_eq!(endpoints(true), ["a 10.244.0.1", "b 10.244.1.1"]);
        assert_eq!(endpoints(false), ["a fd00::1"]);
    }
}
