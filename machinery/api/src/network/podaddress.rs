//! PodAddress: the part of a Pod that the network of every node needs. It is read-only and not stored: it is a
//! projection of the stored Pod, under the same namespace and name.
//!
//! A compromised node can read the PodAddresses of the entire cluster. So it must never show the content of a pod:
//! environments, commands, images, volumes and annotations. A field is shown only because the network needs it.

use std::borrow::Cow;
use std::sync::LazyLock;

use corten_meta::{Object, Value, time};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::NETWORK_GROUP;
use crate::cells::{age, join, list, name, or, text};
use crate::kind::{Behaviour, Column, Kind, Projection};

const VERSION: &str = "v1";
const KIND: &str = "PodAddress";
pub const PLURAL: &str = "podaddresses";

static SCHEMA: LazyLock<Value> = LazyLock::new(schema);

struct PodAddress;

pub fn kind() -> Kind {
    let mut kind = Kind::new(NETWORK_GROUP, VERSION, KIND, PLURAL)
        .verbs(&["get", "list", "watch"])
        .stored_as("/registry/pods", "", "v1")
        .behaviour(PodAddress);
    // The schema table has the default API only; this kind has its own schema.
    kind.schema = String::new();
    kind.columns = vec![
        Column::new("Name", "string").format("name"),
        Column::new("Phase", "string"),
        Column::new("Addresses", "string"),
        Column::new("Node", "string"),
        Column::new("Age", "string"),
    ];
    kind
}

impl Behaviour for PodAddress {
    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let addresses = join(list(object, "/podIPs").iter().map(|address| text(address, "/ip")));
        vec![
            name(object),
            text(object, "/phase").into(),
            or(&addresses, "<none>").into(),
            or(text(object, "/nodeName"), "<none>").into(),
            age(object, now),
        ]
    }

    fn structural_schema(&self) -> Option<&Value> {
        Some(&SCHEMA)
    }

    fn projection(&self) -> Option<Projection> {
        Some(project)
    }
}

fn schema() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let address = json!({"type": "object", "properties": {"ip": text("An IP address of the pod.")}});
    let port = json!({
        "type": "object",
        "required": ["name", "port", "protocol"],
        "properties": {
            "name": text("The name that NetworkPolicies and Services know the port by."),
            "port": {"type": "integer", "format": "int32", "description": "The number of the port."},
            "protocol": text("TCP, UDP or SCTP."),
        },
    });
    json!({
        "type": "object",
        "description": "PodAddress is the part of a Pod that the network of every node reads.",
        "properties": {
            "staticPodUID": text("The uid of the static pod that a mirror pod stands for."),
            "nodeName": text("The node that the pod is bound to."),
            "hostNetwork": {"type": "boolean", "description": "Whether the pod uses the network of its node."},
            "phase": text("The phase of the pod."),
            "podIPs": {"type": "array", "items": address, "description": "The addresses of the pod."},
            "ports": {"type": "array", "items": port, "description": "The named ports of the pod's containers."},
        },
    })
}

/// The fields of a Pod that are shown. All others are skipped, not decoded.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Pod<'a> {
    #[serde(borrow)]
    metadata: Option<Metadata<'a>>,
    #[serde(borrow)]
    spec: Option<Spec<'a>>,
    #[serde(borrow)]
    status: Option<Status<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata<'a> {
    #[serde(borrow)]
    annotations: Option<Annotations<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Annotations<'a> {
    #[serde(borrow, rename = "kubernetes.io/config.hash")]
    static_pod_uid: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow)]
    node_name: Option<Cow<'a, str>>,
    host_network: Option<bool>,
    #[serde(borrow)]
    containers: Option<Vec<Container<'a>>>,
    #[serde(borrow)]
    init_containers: Option<Vec<Container<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Container<'a> {
    #[serde(borrow)]
    restart_policy: Option<Cow<'a, str>>,
    #[serde(borrow)]
    ports: Option<Vec<Port<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Port<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    container_port: u16,
    #[serde(borrow)]
    protocol: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Status<'a> {
    #[serde(borrow)]
    phase: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "podIPs")]
    pod_ips: Option<Vec<Address<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Address<'a> {
    #[serde(borrow)]
    ip: Cow<'a, str>,
}

/// Returns the projection of a stored Pod. An unreadable one has no address, and so no policy admits it.
fn project(stored: &Object) -> Value {
    let pod: Pod<'_> = serde_json::from_slice(&stored.bytes).unwrap_or_default();
    let spec = pod.spec.unwrap_or_default();
    let status = pod.status.unwrap_or_default();
    let static_pod_uid = pod.metadata.and_then(|metadata| metadata.annotations?.static_pod_uid);
    let mut shown = json!({
        "apiVersion": format!("{NETWORK_GROUP}/{VERSION}"),
        "kind": KIND,
        "metadata": metadata(stored),
    });
    put(&mut shown, "staticPodUID", static_pod_uid.map(Value::from));
    put(&mut shown, "phase", status.phase.map(Value::from));
    put(&mut shown, "podIPs", status.pod_ips.map(|addresses| addresses.iter().map(address).collect()));
    put(&mut shown, "hostNetwork", spec.host_network.filter(|used| *used).map(Value::from));
    put(&mut shown, "ports", named_ports(&spec));
    put(&mut shown, "nodeName", spec.node_name.map(Value::from));
    shown
}

/// Returns the metadata: the pod's identity, its labels, and its deletion timestamp.
fn metadata(stored: &Object) -> Value {
    let header = &stored.header;
    let mut metadata = json!({"namespace": header.namespace, "name": header.name, "uid": header.uid});
    let labels = Some(&*header.labels).filter(|labels| !labels.is_empty());
    put(&mut metadata, "labels", labels.map(|labels| json!(labels)));
    put(&mut metadata, "creationTimestamp", header.creation_timestamp.map(|at| time::rfc3339(at).into()));
    put(&mut metadata, "deletionTimestamp", header.deletion_timestamp.map(|at| time::rfc3339(at).into()));
    metadata
}

fn put(object: &mut Value, field: &str, value: Option<Value>) {
    if let Some(value) = value {
        object[field] = value;
    }
}

fn address(address: &Address<'_>) -> Value {
    json!({"ip": address.ip})
}

/// Returns the named ports of the containers that run as long as the pod, sidecars included.
fn named_ports(spec: &Spec<'_>) -> Option<Value> {
    let sidecars = spec.init_containers.iter().flatten().filter(|one| one.restart_policy.as_deref() == Some("Always"));
    let containers = spec.containers.iter().flatten().chain(sidecars);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let named: Vec<Value> = ports.filter_map(named_port).collect();
    (!named.is_empty()).then(|| named.into())
}

fn named_port(port: &Port<'_>) -> Option<Value> {
    let name = port.name.as_deref().filter(|name| !name.is_empty())?;
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    Some(json!({"name": name, "port": port.container_port, "protocol": protocol}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn projected(pod: &Value) -> Value {
        project(&Object::from_value(pod, 7).unwrap())
    }

    #[test]
    fn a_pod_is_shown_by_its_addresses_and_ports() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": "shop", "name": "web", "uid": "u", "labels": {"app": "web"}, "finalizers": ["hidden"],
                "annotations": {"hidden": "hidden", "kubernetes.io/config.hash": "hash"},
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "hidden", "uid": "hidden"}],
            },
            "spec": {
                "nodeName": "n1", "hostNetwork": true, "volumes": [{"name": "hidden"}], "serviceAccountName": "hidden",
                "initContainers": [
                    {"name": "hidden", "ports": [{"name": "hidden", "containerPort": 1}]},
                    {"name": "hidden", "restartPolicy": "Always", "ports": [{"name": "side", "containerPort": 81, "protocol": "UDP"}]},
                ],
                "containers": [{
                    "name": "hidden", "image": "hidden", "command": ["hidden"], "args": ["hidden"],
                    "env": [{"name": "PASSWORD", "value": "hidden"}],
                    "ports": [{"name": "http", "containerPort": 80}, {"containerPort": 8080}],
                }],
            },
            "status": {"phase": "Running", "message": "hidden", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
        });
        let expected = json!({
            "apiVersion": "network.corten.dev/v1", "kind": "PodAddress",
            "metadata": {
                "namespace": "shop", "name": "web", "uid": "u", "labels": {"app": "web"},
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
            },
            "staticPodUID": "hash", "nodeName": "n1", "hostNetwork": true, "phase": "Running",
            "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "ports": [
                {"name": "http", "port": 80, "protocol": "TCP"}, {"name": "side", "port": 81, "protocol": "UDP"},
            ],
        });
        assert_eq!(projected(&pod), expected);
    }

    #[test]
    fn a_pod_without_a_node_and_one_that_cannot_be_read_have_no_address() {
        let metadata = json!({"namespace": "shop", "name": "web", "uid": "u"});
        let bare = json!({"apiVersion": "network.corten.dev/v1", "kind": "PodAddress", "metadata": metadata});
        for rest in
            [json!({}), json!({"spec": null}), json!({"spec": "hidden"}), json!({"status": {"podIPs": "hidden"}})]
        {
            let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
            pod.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            assert_eq!(projected(&pod), bare, "{rest}");
        }
    }

    #[test]
    fn a_row_shows_where_a_pod_is() {
        let object = json!({"metadata": {"name": "web"}, "phase": "Running", "nodeName": "n1",
            "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]});
        let cells = PodAddress.cells(&object, Timestamp::UNIX_EPOCH);
        assert_eq!(cells, ["web", "Running", "10.0.0.1,fd00::1", "n1", "<unknown>"].map(Value::from));
        assert_eq!(cells.len(), kind().columns.len());
    }
}
