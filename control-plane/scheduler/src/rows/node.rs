//! A node as scheduling sees it, with the pods on it.
//!
//! Invariant: what a row says is requested is the sum over the pods it holds, assumed ones included.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_api::k8s_openapi::api::core::v1::{Node, NodeStatus, Taint};

use super::pod::PodRow;
use crate::resources::Resources;

#[derive(Clone, Debug, Default)]
pub struct NodeRow {
    /// Where the row is in the snapshot; never changes while the node exists.
    pub slot: usize,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub allocatable: Resources,
    pub requested: Resources,
    pub scoring: Resources,
    pub pods: Vec<Arc<PodRow>>,
    /// How many of the pods take ports of the host, or use volumes that two pods cannot share.
    pub with_ports: usize,
    pub with_disks: usize,
    /// Which images it has, by number.
    pub images: Vec<u32>,
    /// What its kubelet says it can do beyond what every kubelet of a supported version can.
    pub declared_features: Vec<String>,
    /// Grows with every change of the row, and of what is nominated to it.
    pub generation: u64,
    /// False while only pods of the node are known, not the node itself.
    pub known: bool,
}

/// What of a node changed that scheduling depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeChange {
    pub added: bool,
    pub labels: bool,
    pub taints: bool,
    pub unschedulable: bool,
    pub allocatable: bool,
    pub declared_features: bool,
}

impl NodeChange {
    pub fn any(self) -> bool {
        self != NodeChange::default()
    }
}

/// What nearly every decision asks of a node first, apart from its row so that many fit into the processor's caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub generation: u64,
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    pub pods: i64,
}

impl NodeRow {
    /// What is left on the node.
    pub fn room(&self) -> Room {
        let (total, used) = (&self.allocatable, &self.requested);
        Room {
            generation: self.generation,
            milli_cpu: total.milli_cpu - used.milli_cpu,
            memory: total.memory - used.memory,
            ephemeral_storage: total.ephemeral_storage - used.ephemeral_storage,
            pods: total.pods - self.pods.len() as i64,
        }
    }

    /// What would change if the node were described so.
    pub fn compare(&self, node: &Node, allocatable: &Resources) -> NodeChange {
        let spec = node.spec.as_ref();
        let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let features = node.status.as_ref().and_then(|status| status.declared_features.as_deref()).unwrap_or_default();
        NodeChange {
            added: !self.known,
            labels: self.labels.iter().ne(node.metadata.labels.iter().flatten()),
            taints: self.taints != taints,
            unschedulable: self.unschedulable != spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
            allocatable: self.allocatable != *allocatable,
            declared_features: self.declared_features != features,
        }
    }

    /// Takes over what the node says about itself, its images apart.
    pub fn describe(&mut self, node: Node, allocatable: Resources) -> NodeStatus {
        let spec = node.spec.unwrap_or_default();
        self.labels = node.metadata.labels.unwrap_or_default();
        self.taints = spec.taints.unwrap_or_default();
        self.unschedulable = spec.unschedulable.unwrap_or(false);
        self.allocatable = allocatable;
        self.known = true;
        self.generation += 1;
        let mut status = node.status.unwrap_or_default();
        self.declared_features = status.declared_features.take().unwrap_or_default();
        status
    }

    pub fn add(&mut self, pod: Arc<PodRow>) {
        self.requested.add(&pod.demand.requests);
        self.scoring.add(&pod.demand.placed_scoring);
        self.with_ports += usize::from(!pod.demand.host_ports.is_empty());
        self.with_disks += usize::from(!pod.demand.volumes.is_empty());
        self.pods.push(pod);
        self.generation += 1;
    }

    pub fn remove(&mut self, uid: &str) -> Option<Arc<PodRow>> {
        let at = self.pods.iter().position(|pod| *pod.uid == *uid)?;
        let pod = self.pods.swap_remove(at);
        self.generation += 1;
        self.requested.subtract(&pod.demand.requests);
        self.scoring.subtract(&pod.demand.placed_scoring);
        self.with_ports -= usize::from(!pod.demand.host_ports.is_empty());
        self.with_disks -= usize::from(!pod.demand.volumes.is_empty());
        Some(pod)
    }
}
