//! Lean rows of pods and nodes: what scheduling needs to know and nothing more, kept up to date change by change.
//!
//! Invariant: what a node row says is requested is the sum over the pod rows it holds, assumed ones included.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{
    Affinity, Node, Pod, PodCondition, Taint, Toleration, TopologySpreadConstraint,
};
use corten_meta::Key;
use jiff::Timestamp;

use crate::resources::{self, Resources};

/// A port of the host: protocol, address, number.
pub type HostPort = (String, String, i32);

#[derive(Clone, Debug, Default)]
pub struct PodRow {
    pub key: Key,
    pub uid: String,
    pub resource_version: String,
    pub labels: BTreeMap<String, String>,
    pub node_name: String,
    pub scheduler_name: String,
    pub priority: i32,
    pub never_preempts: bool,
    pub terminating: bool,
    pub terminal: bool,
    pub started: Option<Timestamp>,
    pub requests: Resources,
    pub scoring: Resources,
    pub host_ports: Vec<HostPort>,
    pub tolerations: Vec<Toleration>,
    pub node_selector: BTreeMap<String, String>,
    pub affinity: Option<Box<Affinity>>,
    pub spread: Vec<TopologySpreadConstraint>,
    pub images: Vec<String>,
    pub gates: Vec<String>,
    pub nominated: String,
    pub scheduled_condition: Option<PodCondition>,
}

impl PodRow {
    pub fn from_pod(pod: Pod) -> PodRow {
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let (requests, scoring) = (resources::requests(&spec), resources::scoring_requests(&spec));
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let images =
            containers.clone().filter_map(|container| container.image.as_deref()).map(normalized_image).collect();
        let host_ports = containers
            .flat_map(|container| container.ports.iter().flatten())
            .filter_map(|port| {
                let number = port.host_port.filter(|number| *number > 0)?;
                let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
                Some((
                    protocol,
                    port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".to_owned()),
                    number,
                ))
            })
            .collect();
        PodRow {
            key: Key {
                namespace: pod.metadata.namespace.unwrap_or_default(),
                name: pod.metadata.name.unwrap_or_default(),
            },
            uid: pod.metadata.uid.unwrap_or_default(),
            resource_version: pod.metadata.resource_version.unwrap_or_default(),
            labels: pod.metadata.labels.unwrap_or_default(),
            node_name: spec.node_name.unwrap_or_default(),
            scheduler_name: spec.scheduler_name.unwrap_or_else(|| "default-scheduler".to_owned()),
            priority: spec.priority.unwrap_or(0),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            terminal: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            started: status.start_time.map(|time| time.0),
            requests,
            scoring,
            host_ports,
            tolerations: spec.tolerations.unwrap_or_default(),
            node_selector: spec.node_selector.unwrap_or_default(),
            affinity: spec.affinity.map(Box::new),
            spread: spec.topology_spread_constraints.unwrap_or_default(),
            images,
            gates: spec.scheduling_gates.into_iter().flatten().map(|gate| gate.name).collect(),
            nominated: status.nominated_node_name.unwrap_or_default(),
            scheduled_condition: status
                .conditions
                .into_iter()
                .flatten()
                .find(|condition| condition.type_ == "PodScheduled"),
        }
    }
}

/// A name without a tag means `latest`.
fn normalized_image(name: &str) -> String {
    let tag = name.rfind(':').map_or(0, |at| at + 1);
    let path = name.rfind('/').map_or(0, |at| at + 1);
    if tag <= path { format!("{name}:latest") } else { name.to_owned() }
}

#[derive(Clone, Debug, Default)]
pub struct NodeRow {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub allocatable: Resources,
    /// Images on the node and their sizes.
    pub images: HashMap<String, i64>,
    pub requested: Resources,
    pub scoring: Resources,
    pub pods: HashMap<String, Arc<PodRow>>,
    /// False while only pods of the node are known, not the node itself.
    pub known: bool,
}

impl NodeRow {
    /// Takes over what the node says about itself; says whether that changes anything for scheduling.
    fn describe(&mut self, node: Node) -> bool {
        let spec = node.spec.unwrap_or_default();
        let status = node.status.unwrap_or_default();
        let labels = node.metadata.labels.unwrap_or_default();
        let taints = spec.taints.unwrap_or_default();
        let unschedulable = spec.unschedulable.unwrap_or(false);
        let allocatable = Resources::from_list(status.allocatable.as_ref());
        let changed = !self.known
            || self.labels != labels
            || self.taints != taints
            || self.unschedulable != unschedulable
            || self.allocatable != allocatable;
        (self.labels, self.taints, self.unschedulable, self.allocatable) = (labels, taints, unschedulable, allocatable);
        let images = status.images.into_iter().flatten();
        self.images = images
            .flat_map(|image| {
                let size = image.size_bytes.unwrap_or(0);
                image.names.into_iter().flatten().map(move |name| (name, size))
            })
            .collect();
        self.known = true;
        changed
    }

    pub fn add(&mut self, pod: Arc<PodRow>) {
        self.remove(&pod.uid);
        self.requested.add(&pod.requests);
        self.scoring.add(&pod.scoring);
        self.pods.insert(pod.uid.clone(), pod);
    }

    pub fn remove(&mut self, uid: &str) -> Option<Arc<PodRow>> {
        let pod = self.pods.remove(uid)?;
        self.requested.subtract(&pod.requests);
        self.scoring.subtract(&pod.scoring);
        Some(pod)
    }
}

/// Every node with its pods. Node order is that of arrival, which the search for feasible nodes rotates over.
#[derive(Default)]
pub struct Snapshot {
    nodes: Vec<NodeRow>,
    index: HashMap<String, usize>,
    /// Where each placed pod is.
    placed: HashMap<String, String>,
    /// On how many nodes an image is.
    image_nodes: HashMap<String, usize>,
    pub namespaces: HashMap<String, BTreeMap<String, String>>,
}

impl Snapshot {
    /// The nodes that exist.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeRow> + Clone {
        self.nodes.iter().filter(|node| node.known)
    }

    pub fn node(&self, name: &str) -> Option<&NodeRow> {
        self.index.get(name).map(|at| &self.nodes[*at]).filter(|node| node.known)
    }

    fn row(&mut self, name: &str) -> &mut NodeRow {
        let at = *self.index.entry(name.to_owned()).or_insert_with(|| {
            self.nodes.push(NodeRow { name: name.to_owned(), ..NodeRow::default() });
            self.nodes.len() - 1
        });
        &mut self.nodes[at]
    }

    /// A new node, or a newer version of one; says whether that changes anything for scheduling.
    pub fn set_node(&mut self, node: Node) -> bool {
        let name = node.name().to_owned();
        self.forget_images(&name);
        let changed = self.row(&name).describe(node);
        let images: Vec<String> = self.row(&name).images.keys().cloned().collect();
        for image in images {
            *self.image_nodes.entry(image).or_default() += 1;
        }
        changed
    }

    fn forget_images(&mut self, name: &str) {
        let images: Vec<String> = std::mem::take(&mut self.row(name).images).into_keys().collect();
        for image in images {
            if let Some(count) = self.image_nodes.get_mut(&image) {
                *count -= 1;
                if *count == 0 {
                    self.image_nodes.remove(&image);
                }
            }
        }
    }

    /// The node is gone; its row stays as long as pods are still said to be on it.
    pub fn remove_node(&mut self, name: &str) {
        self.forget_images(name);
        self.row(name).known = false;
        self.drop_row_if_void(name);
    }

    fn drop_row_if_void(&mut self, name: &str) {
        let Some(at) = self.index.get(name).copied() else { return };
        if self.nodes[at].known || !self.nodes[at].pods.is_empty() {
            return;
        }
        self.index.remove(name);
        self.nodes.swap_remove(at);
        if let Some(moved) = self.nodes.get(at) {
            self.index.insert(moved.name.clone(), at);
        }
    }

    pub fn add_pod(&mut self, pod: Arc<PodRow>) {
        if self.placed.get(&pod.uid).is_some_and(|node| *node != pod.node_name) {
            self.remove_pod(&pod.uid);
        }
        self.placed.insert(pod.uid.clone(), pod.node_name.clone());
        self.row(&pod.node_name.clone()).add(pod);
    }

    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodRow>> {
        let node = self.placed.remove(uid)?;
        let pod = self.row(&node).remove(uid);
        self.drop_row_if_void(&node);
        pod
    }

    /// The share of nodes that have an image.
    pub fn image_spread(&self, image: &str) -> f64 {
        let total = self.nodes().count().max(1);
        self.image_nodes.get(image).copied().unwrap_or(0) as f64 / total as f64
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use corten_api::k8s_openapi::api::core::v1::PodSpec;
    use serde_json::{Value, json};

    pub fn pod_spec(spec: Value) -> PodSpec {
        Pod::from_value(json!({"apiVersion": "v1", "kind": "Pod", "spec": spec})).unwrap().spec.unwrap()
    }

    pub fn pod(name: &str, spec: Value) -> PodRow {
        let metadata = json!({"namespace": "default", "name": name, "uid": name, "labels": {"app": name}});
        PodRow::from_pod(
            Pod::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})).unwrap(),
        )
    }

    pub fn node(name: &str, cpu: &str, extra: Value) -> Node {
        let mut node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": cpu, "memory": "4Gi", "pods": "110"}},
        });
        corten_meta::patch::merge_patch(&mut node, &extra);
        Node::from_value(node).unwrap()
    }

    fn asking(name: &str, node: &str, cpu: &str) -> Arc<PodRow> {
        Arc::new(pod(
            name,
            json!({"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}),
        ))
    }

    #[test]
    fn requested_is_the_sum_of_the_pods_in_any_order_of_events() {
        let mut snapshot = Snapshot::default();
        snapshot.add_pod(asking("early", "n", "100m"));
        assert!(snapshot.node("n").is_none(), "only a pod is known");
        snapshot.set_node(node("n", "2", json!({})));
        snapshot.add_pod(asking("late", "n", "200m"));
        snapshot.add_pod(asking("late", "n", "300m"));
        assert_eq!(snapshot.node("n").unwrap().requested.milli_cpu, 400);
        snapshot.remove_node("n");
        assert_eq!(snapshot.nodes().count(), 0);
        snapshot.remove_pod("early");
        snapshot.remove_pod("late");
        assert!(snapshot.nodes.is_empty() && snapshot.index.is_empty());
    }

    #[test]
    fn removing_a_node_keeps_the_others_findable() {
        let mut snapshot = Snapshot::default();
        for name in ["a", "b", "c"] {
            snapshot.set_node(node(name, "1", json!({})));
        }
        snapshot.remove_node("a");
        assert_eq!(snapshot.node("b").unwrap().name, "b");
        assert_eq!(snapshot.node("c").unwrap().name, "c");
    }

    #[test]
    fn an_image_without_a_tag_is_latest() {
        assert_eq!(normalized_image("nginx"), "nginx:latest");
        assert_eq!(normalized_image("host:5000/nginx"), "host:5000/nginx:latest");
        assert_eq!(normalized_image("host:5000/nginx:1"), "host:5000/nginx:1");
    }
}
