//! Lean rows of claims, volumes and their topology, and the assumed bindings that are not written yet.
//!
//! Invariant: a volume that is assumed for a claim is offered to no other, until the binding is written or released.

use std::collections::{BTreeMap, HashMap, HashSet};

use corten_api::k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim};
use corten_api::k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use corten_meta::{Key, Selector};

use super::demand::selector;

pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
/// The provisioner of classes without dynamic provisioning.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimRow {
    pub key: Key,
    pub uid: String,
    pub owner: Option<String>,
    pub class: String,
    pub volume: String,
    pub bind_completed: bool,
    pub lost: bool,
    pub deleting: bool,
    pub request: i128,
    pub access_modes: Vec<String>,
    pub selector: Option<Selector>,
    pub mode: String,
    pub attributes_class: String,
    pub selected_node: Option<String>,
    pub revision: u64,
}

impl ClaimRow {
    pub fn of(claim: PersistentVolumeClaim) -> ClaimRow {
        let (meta, spec) = (claim.metadata, claim.spec.unwrap_or_default());
        let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        ClaimRow {
            owner: meta.owner_references.iter().flatten().find(|o| o.controller == Some(true)).map(|o| o.uid.clone()),
            class: class(&meta, spec.storage_class_name),
            volume: spec.volume_name.unwrap_or_default(),
            bind_completed: annotation(&meta, BIND_COMPLETED).is_some(),
            lost: claim.status.and_then(|status| status.phase).as_deref() == Some("Lost"),
            deleting: meta.deletion_timestamp.is_some(),
            request: bytes(requests.and_then(|requests| requests.get("storage"))),
            access_modes: spec.access_modes.unwrap_or_default(),
            selector: spec.selector.as_ref().map(selector),
            mode: spec.volume_mode.unwrap_or_else(|| "Filesystem".to_owned()),
            attributes_class: spec.volume_attributes_class_name.unwrap_or_default(),
            selected_node: annotation(&meta, SELECTED_NODE).cloned(),
            revision: revision(&meta),
            uid: meta.uid.unwrap_or_default(),
            key: Key { namespace: meta.namespace.unwrap_or_default(), name: meta.name.unwrap_or_default() },
        }
    }

    /// Reports whether claim and volume are bound to each other.
    pub fn is_bound(&self) -> bool {
        !self.volume.is_empty() && self.bind_completed
    }

    /// Reports whether the provisioner removed the node that was selected in revision `written`: it cannot provision
    /// there, and another node must be selected. An older row does not show the selection yet.
    pub fn has_lost_node(&self, node: &str, written: Option<u64>) -> bool {
        match &self.selected_node {
            Some(selected) => selected != node,
            None => written.is_some_and(|written| self.revision >= written),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeRow {
    pub name: String,
    pub class: String,
    pub labels: BTreeMap<String, String>,
    pub capacity: i128,
    pub access_modes: Vec<String>,
    pub mode: String,
    pub attributes_class: String,
    /// The claim it is bound or reserved to: key and uid, which is empty if only the name is set.
    pub claim: Option<(Key, String)>,
    pub available: bool,
    pub deleting: bool,
    pub node_terms: Option<Vec<NodeSelectorTerm>>,
    /// Driver and handle.
    pub csi: Option<(String, String)>,
    pub revision: u64,
}

impl VolumeRow {
    pub fn of(volume: PersistentVolume) -> VolumeRow {
        let (meta, spec) = (volume.metadata, volume.spec.unwrap_or_default());
        let affinity = spec.node_affinity.and_then(|affinity| affinity.required);
        let claim = spec.claim_ref.map(|claim| {
            let key = Key { namespace: claim.namespace.unwrap_or_default(), name: claim.name.unwrap_or_default() };
            (key, claim.uid.unwrap_or_default())
        });
        VolumeRow {
            class: class(&meta, spec.storage_class_name),
            capacity: bytes(spec.capacity.as_ref().and_then(|capacity| capacity.get("storage"))),
            access_modes: spec.access_modes.unwrap_or_default(),
            mode: spec.volume_mode.unwrap_or_else(|| "Filesystem".to_owned()),
            attributes_class: spec.volume_attributes_class_name.unwrap_or_default(),
            claim,
            available: volume.status.and_then(|status| status.phase).as_deref() == Some("Available"),
            deleting: meta.deletion_timestamp.is_some(),
            node_terms: affinity.map(|selector| selector.node_selector_terms),
            csi: spec.csi.map(|csi| (csi.driver, csi.volume_handle)),
            revision: revision(&meta),
            name: meta.name.unwrap_or_default(),
            labels: meta.labels.unwrap_or_default(),
        }
    }

    /// Reports whether pods on a node with these labels can use the volume.
    pub fn reachable(&self, labels: &BTreeMap<String, String>) -> bool {
        let matches = |term| corten_api::placement::node_term_matches(term, "", labels);
        self.node_terms.as_ref().is_none_or(|terms| terms.iter().any(matches))
    }

    pub fn is_for(&self, claim: &ClaimRow) -> bool {
        self.claim.as_ref().is_some_and(|(key, uid)| *key == claim.key && (uid.is_empty() || *uid == claim.uid))
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassRow {
    pub provisioner: String,
    pub waits_for_consumer: bool,
    pub binding_mode: Option<String>,
    /// Terms, each a list of labels with their allowed values.
    pub topologies: Vec<Vec<(String, Vec<String>)>>,
}

impl ClassRow {
    pub fn of(class: StorageClass) -> ClassRow {
        let term = |term: corten_api::k8s_openapi::api::core::v1::TopologySelectorTerm| {
            let labels = term.match_label_expressions.into_iter().flatten();
            labels.map(|label| (label.key, label.values)).collect()
        };
        ClassRow {
            provisioner: class.provisioner,
            waits_for_consumer: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            binding_mode: class.volume_binding_mode,
            topologies: class.allowed_topologies.into_iter().flatten().map(term).collect(),
        }
    }

    /// Reports whether volumes can be provisioned for a node with these labels.
    pub fn allows(&self, labels: &BTreeMap<String, String>) -> bool {
        let holds = |(key, values): &(String, Vec<String>)| labels.get(key).is_some_and(|value| values.contains(value));
        self.topologies.is_empty() || self.topologies.iter().any(|term| !term.is_empty() && term.iter().all(holds))
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct CapacityRow {
    pub class: String,
    pub largest: Option<i128>,
    pub nodes: Option<Selector>,
}

impl CapacityRow {
    pub fn of(capacity: CSIStorageCapacity) -> CapacityRow {
        let largest = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref());
        CapacityRow {
            class: capacity.storage_class_name,
            largest: largest.map(|quantity| bytes(Some(quantity))),
            nodes: capacity.node_topology.as_ref().map(selector),
        }
    }
}

/// The drivers of a node and how many volumes each can attach.
pub type Limits = BTreeMap<String, Option<i64>>;

pub fn limits(node: CSINode) -> Limits {
    let count = |driver: &corten_api::k8s_openapi::api::storage::v1::CSINodeDriver| {
        driver.allocatable.as_ref().and_then(|allocatable| allocatable.count).map(i64::from)
    };
    node.spec.drivers.iter().map(|driver| (driver.name.clone(), count(driver))).collect()
}

/// Returns the node, driver and volume of an attachment.
pub fn attachment(attachment: VolumeAttachment) -> Option<(String, String, String)> {
    let spec = attachment.spec;
    Some((spec.node_name, spec.attacher, spec.source.persistent_volume_name?))
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DriverRow {
    pub tracks_capacity: bool,
}

impl DriverRow {
    pub fn of(driver: &CSIDriver) -> DriverRow {
        DriverRow { tracks_capacity: driver.spec.storage_capacity.unwrap_or(false) }
    }
}

#[derive(Default)]
pub struct Storage {
    pub claims: HashMap<Key, ClaimRow>,
    pub volumes: HashMap<String, VolumeRow>,
    pub classes: HashMap<String, ClassRow>,
    pub drivers: HashMap<String, DriverRow>,
    pub capacities: HashMap<Key, CapacityRow>,
    pub limits: HashMap<String, Limits>,
    /// By name of the attachment.
    pub attachments: HashMap<String, (String, String, String)>,
    /// The number of scheduled pods that use a claim.
    pub users: HashMap<Key, usize>,
    promised: HashMap<String, Key>,
    selected: HashMap<Key, String>,
}

impl Storage {
    /// Returns the volumes of a class that are not assumed for a claim.
    pub fn offered(&self, class: &str) -> impl Iterator<Item = &VolumeRow> {
        self.volumes.values().filter(move |volume| volume.class == class && !self.promised.contains_key(&volume.name))
    }

    /// Returns the node that a claim is to be provisioned for.
    pub fn selected_node<'a>(&'a self, claim: &'a ClaimRow) -> Option<&'a str> {
        self.selected.get(&claim.key).or(claim.selected_node.as_ref()).map(String::as_str)
    }

    pub fn promise(&mut self, volume: &str, claim: &Key) {
        self.promised.insert(volume.to_owned(), claim.clone());
    }

    pub fn select(&mut self, claim: &Key, node: &str) {
        self.selected.insert(claim.clone(), node.to_owned());
    }

    /// Releases the assumed bindings of these claims: they are written, or never will be.
    pub fn release(&mut self, claims: &HashSet<Key>) {
        self.promised.retain(|_, claim| !claims.contains(claim));
        self.selected.retain(|claim, _| !claims.contains(claim));
    }
}

/// Returns whole bytes, rounded up; zero if absent.
fn bytes(quantity: Option<&Quantity>) -> i128 {
    let parsed = quantity.and_then(|quantity| corten_meta::Quantity::parse(&quantity.0).ok());
    parsed.map_or(0, |quantity| {
        let milli = quantity.as_milli();
        milli.div_euclid(1000) + i128::from(milli.rem_euclid(1000) > 0)
    })
}

/// Returns the class from the old annotation, else from the field.
fn class(meta: &ObjectMeta, field: Option<String>) -> String {
    annotation(meta, CLASS_ANNOTATION).cloned().or(field).unwrap_or_default()
}

fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a String> {
    meta.annotations.as_ref()?.get(name)
}

fn revision(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
