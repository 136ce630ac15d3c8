//! A node with its pods, as scheduling sees it.
//!
//! Invariant: the requested resources of a row are the sum over its pods, assumed ones included.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_api::k8s_openapi::api::core::v1::{Node, NodeStatus, Taint};

use super::pod::PodRow;
use crate::resources::Resources;

#[derive(Clone, Debug, Default)]
pub struct NodeRow {
    /// The index of the row in the snapshot; it never changes while the node exists.
    pub slot: usize,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub allocatable: Resources,
    pub requested: Resources,
    pub scoring: Resources,
    pub pods: Vec<Arc<PodRow>>,
    /// The number of pods with host ports, or with volumes that two pods cannot share.
    pub with_ports: usize,
    pub with_disks: usize,
    /// The node's images, by number.
    pub images: Vec<u32>,
    /// The features that its kubelet declares beyond those of every supported version.
    pub declared_features: Vec<String>,
    /// Incremented with every change of the row, and of the nominations to it.
    pub generation: u64,
    /// False while only pods of the node are known, not the node itself.
    pub known: bool,
}

/// The changes of a node that scheduling depends on.
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

/// The unrequested resources of a node, separate from its row so that many fit into the CPU's caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub generation: u64,
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    pub pods: i64,
}

impl NodeRow {
    /// Returns the unrequested resources of the node.
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

    /// Returns the changes that this version of the node would make.
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

    /// Updates the row from the node, except for its images.
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
