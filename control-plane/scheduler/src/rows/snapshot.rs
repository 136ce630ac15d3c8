//! All nodes with their pods, and the standing counts that go with them. One task owns it; nothing here waits.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{ContainerImage, Node, Pod};
use corten_meta::{Key, Selector};

use super::demand::VolumeUse;
use super::devices::Devices;
use super::node::{NodeChange, NodeRow, Room};
use super::node_sets::{NodeQuery, NodeSets};
use super::pod::{Interner, PodRow};
use super::selectors::Selectors;
use super::storage::Storage;
use super::topology::{Namespaces, Query, Topology};
use crate::resources::Resources;

/// A PodDisruptionBudget as preemption sees it.
#[derive(Clone, Debug)]
pub struct Budget {
    pub namespace: String,
    pub selector: Selector,
    pub allowed: i32,
    /// Pods whose eviction is already counted.
    pub disrupted: Vec<String>,
}

/// The most recorded changes; beyond that all nodes count as changed.
const MOST_TOUCHED: usize = 4096;

/// Nominated pods, by node, until they are scheduled.
#[derive(Default)]
pub struct Nominated {
    by_node: HashMap<String, Vec<Arc<PodRow>>>,
    by_pod: HashMap<Arc<str>, String>,
}

impl Nominated {
    fn add(&mut self, pod: Arc<PodRow>) {
        self.by_pod.insert(pod.uid.clone(), pod.nominated.clone());
        self.by_node.entry(pod.nominated.clone()).or_default().push(pod);
    }

    /// Removes a nomination; returns its node.
    fn remove(&mut self, uid: &str) -> Option<String> {
        let node = self.by_pod.remove(uid)?;
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.retain(|pod| *pod.uid != *uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
        Some(node)
    }

    pub fn on(&self, node: &str) -> &[Arc<PodRow>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }

    pub fn is_empty(&self) -> bool {
        self.by_pod.is_empty()
    }
}

/// The nodes that have an image, with its size.
type Image = HashMap<usize, i64>;

#[derive(Default)]
pub struct Snapshot {
    nodes: Vec<NodeRow>,
    /// The unrequested resources of each node; updated with its row.
    rooms: Vec<Room>,
    free: Vec<usize>,
    index: HashMap<String, usize>,
    known: usize,
    /// The nodes in search order, alternating between zones; rebuilt after nodes were added or removed.
    order: Vec<usize>,
    order_stale: bool,
    /// The slot of each scheduled pod.
    placed: HashMap<Arc<str>, usize>,
    /// The changed rows, while they are recorded.
    touched: Option<Vec<usize>>,
    noting: u64,
    interner: Interner,
    topology: Topology,
    sets: NodeSets,
    image_numbers: HashMap<String, u32>,
    images: Vec<Image>,
    cordoned: usize,
    softly_tainted: usize,
    pub namespaces: Namespaces,
    pub storage: Storage,
    pub selectors: Selectors,
    pub devices: Devices,
    pub budgets: HashMap<Key, Budget>,
    pub nominated: Nominated,
}

impl Snapshot {
    /// Returns the nodes that exist.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeRow> {
        self.nodes.iter().filter(|node| node.known)
    }

    pub fn len(&self) -> usize {
        self.known
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of pods on nodes.
    pub fn pods(&self) -> usize {
        self.placed.len()
    }

    pub fn node(&self, slot: usize) -> &NodeRow {
        &self.nodes[slot]
    }

    pub fn room(&self, slot: usize) -> &Room {
        &self.rooms[slot]
    }

    pub fn find(&self, name: &str) -> Option<&NodeRow> {
        self.index.get(name).map(|slot| &self.nodes[*slot]).filter(|node| node.known)
    }

    pub fn cordoned(&self) -> usize {
        self.cordoned
    }

    pub fn softly_tainted(&self) -> usize {
        self.softly_tainted
    }

    /// Starts to record changed nodes, under a new number; an earlier recording ends.
    pub fn begin_noting(&mut self) -> u64 {
        self.noting += 1;
        self.touched = Some(Vec::new());
        self.noting
    }

    /// Ends the recording; returns the nodes that changed, nominations to them included, unless they were too many.
    pub fn touched_since(&mut self, noting: u64) -> Option<Vec<usize>> {
        if noting != self.noting {
            return None;
        }
        let mut slots = self.touched.take()?;
        slots.sort_unstable();
        slots.dedup();
        Some(slots)
    }

    /// Marks a row as changed.
    pub fn touch(&mut self, slot: usize) {
        self.rooms[slot] = self.nodes[slot].room();
        self.touched.take_if(|touched| touched.len() >= MOST_TOUCHED);
        self.touched.iter_mut().for_each(|touched| touched.push(slot));
    }

    /// Marks all rows as changed.
    pub fn touch_all(&mut self) {
        self.touched = None;
    }

    /// Nominates a pod to its nominated node; a nomination to another node ends.
    pub fn nominate(&mut self, pod: Arc<PodRow>) {
        self.end_nomination(&pod.uid);
        if !pod.nominated.is_empty() {
            self.nominations_changed(&pod.nominated);
            self.nominated.add(pod);
        }
    }

    pub fn end_nomination(&mut self, uid: &str) {
        if let Some(node) = self.nominated.remove(uid) {
            self.nominations_changed(&node);
        }
    }

    /// Marks a node as changed: cached results depend on the nominated pods as well.
    fn nominations_changed(&mut self, node: &str) {
        if let Some(slot) = self.index.get(node).copied() {
            self.nodes[slot].generation += 1;
            self.touch(slot);
        }
    }

    pub fn pod(&self, uid: &str) -> Option<&Arc<PodRow>> {
        let slot = self.placed.get(uid)?;
        self.nodes[*slot].pods.iter().find(|pod| *pod.uid == *uid)
    }

    pub fn row(&mut self, pod: Pod) -> PodRow {
        let epoch = self.interner.epoch;
        let row = self.interner.row(pod);
        if self.interner.epoch != epoch {
            self.topology.forget_classes();
        }
        row
    }

    /// Starts a new scheduling cycle: earlier numbers are void.
    pub fn begin(&mut self) {
        self.topology.begin();
        self.sets.begin();
        if self.order_stale {
            self.order_stale = false;
            self.order = interleaved(self.nodes.iter().filter(|node| node.known));
        }
    }

    /// Returns the slots of the nodes that exist, as of the start of the cycle.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    pub fn tally(&mut self, query: Query) -> usize {
        self.topology.tally(query, &self.nodes, &self.namespaces)
    }

    pub fn node_set(&mut self, query: NodeQuery) -> usize {
        self.sets.set(query, &self.nodes)
    }

    pub fn sets(&self) -> &NodeSets {
        &self.sets
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    pub fn division(&mut self, topology_key: &str) -> usize {
        self.topology.division(topology_key, &self.nodes)
    }

    /// Returns the numbers of the carriers whose terms match this pod.
    pub fn terms_meaning(&mut self, pod: &PodRow) -> Vec<usize> {
        self.topology.meaning(&pod.class, &self.namespaces)
    }

    fn slot(&mut self, name: &str) -> usize {
        if let Some(known) = self.index.get(name) {
            return *known;
        }
        let slot = self.free.pop().unwrap_or(self.nodes.len());
        // A reused row continues its generation: cached results of the former node must not apply to it.
        let generation = self.nodes.get(slot).map_or(0, |row| row.generation + 1);
        let row = NodeRow { slot, name: name.to_owned(), generation, ..NodeRow::default() };
        if slot == self.nodes.len() {
            self.nodes.push(row);
            self.rooms.push(Room::default());
        } else {
            self.nodes[slot] = row;
        }
        self.touch(slot);
        self.index.insert(name.to_owned(), slot);
        slot
    }

    /// Adds or updates a node; returns the changes that matter for scheduling.
    pub fn set_node(&mut self, node: Node) -> NodeChange {
        let slot = self.slot(node.name());
        let allocatable = Resources::from_list(node.status.as_ref().and_then(|status| status.allocatable.as_ref()));
        let change = self.nodes[slot].compare(&node, &allocatable);
        let rewired = change.added || change.labels || change.taints;
        if rewired {
            self.topology.detach(&self.nodes[slot], &self.namespaces);
        }
        self.count_node(slot, -1);
        let status = self.nodes[slot].describe(node, allocatable);
        self.touch(slot);
        self.count_node(slot, 1);
        self.set_images(slot, status.images.unwrap_or_default());
        if rewired {
            self.topology.attach(&self.nodes[slot], &self.namespaces);
            self.sets.node_changed(&self.nodes[slot]);
        }
        self.order_stale |= change.added || change.labels;
        change
    }

    /// Updates the totals over nodes.
    fn count_node(&mut self, slot: usize, by: isize) {
        let node = &self.nodes[slot];
        if !node.known {
            return;
        }
        let soft = node.taints.iter().any(|taint| taint.effect == "PreferNoSchedule");
        self.known = self.known.saturating_add_signed(by);
        self.cordoned = self.cordoned.saturating_add_signed(if node.unschedulable { by } else { 0 });
        self.softly_tainted = self.softly_tainted.saturating_add_signed(if soft { by } else { 0 });
    }

    fn set_images(&mut self, slot: usize, images: Vec<ContainerImage>) {
        for number in std::mem::take(&mut self.nodes[slot].images) {
            self.images[number as usize].remove(&slot);
        }
        let mut numbers = Vec::new();
        for image in images {
            let size = image.size_bytes.unwrap_or(0);
            for name in image.names.into_iter().flatten() {
                let number = self.image_number(name);
                self.images[number as usize].insert(slot, size);
                numbers.push(number);
            }
        }
        self.nodes[slot].images = numbers;
    }

    fn image_number(&mut self, name: String) -> u32 {
        if let Some(known) = self.image_numbers.get(&name) {
            return *known;
        }
        let number = self.images.len() as u32;
        self.images.push(Image::default());
        self.image_numbers.insert(name, number);
        number
    }

    /// Returns the nodes that have an image, with its size there.
    pub fn image(&self, name: &str) -> Option<&HashMap<usize, i64>> {
        let image = &self.images[*self.image_numbers.get(name)? as usize];
        (!image.is_empty()).then_some(image)
    }

    /// Removes a node; its row stays while it still has pods.
    pub fn remove_node(&mut self, name: &str) {
        let Some(slot) = self.index.get(name).copied() else { return };
        self.topology.detach(&self.nodes[slot], &self.namespaces);
        self.set_images(slot, Vec::new());
        self.count_node(slot, -1);
        self.nodes[slot].known = false;
        self.touch(slot);
        self.topology.attach(&self.nodes[slot], &self.namespaces);
        self.sets.node_changed(&self.nodes[slot]);
        self.order_stale = true;
        self.drop_row_if_void(slot);
    }

    fn drop_row_if_void(&mut self, slot: usize) {
        if self.nodes[slot].known || !self.nodes[slot].pods.is_empty() || self.nodes[slot].name.is_empty() {
            return;
        }
        let row = std::mem::take(&mut self.nodes[slot]);
        self.nodes[slot].slot = slot;
        self.nodes[slot].generation = row.generation;
        self.index.remove(&row.name);
        self.free.push(slot);
    }

    /// Adds a pod to its node, or updates it.
    pub fn add_pod(&mut self, pod: Arc<PodRow>) {
        self.remove_pod(&pod.uid);
        let slot = self.slot(&pod.node_name);
        self.placed.insert(pod.uid.clone(), slot);
        self.put(slot, pod);
    }

    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodRow>> {
        let slot = self.placed.remove(uid)?;
        let pod = self.lift(slot, uid);
        self.drop_row_if_void(slot);
        pod
    }

    /// Puts a pod on a node during a dry run, or back.
    pub fn put(&mut self, slot: usize, pod: Arc<PodRow>) {
        self.topology.pod_added(&pod, slot, &self.nodes, &self.namespaces);
        self.count_users(&pod, 1);
        self.nodes[slot].add(pod);
        self.touch(slot);
    }

    /// Removes a pod from a node during a dry run.
    pub fn lift(&mut self, slot: usize, uid: &str) -> Option<Arc<PodRow>> {
        let pod = self.nodes[slot].remove(uid)?;
        self.topology.pod_removed(&pod, slot, &self.nodes, &self.namespaces);
        self.count_users(&pod, -1);
        self.touch(slot);
        Some(pod)
    }

    fn count_users(&mut self, pod: &PodRow, by: isize) {
        for volume in &pod.demand.volumes {
            if let VolumeUse::Claim { name, .. } = volume {
                let key = Key { namespace: pod.namespace().to_owned(), name: name.clone() };
                let users = self.storage.users.entry(key.clone()).or_default();
                *users = users.saturating_add_signed(by);
                if *users == 0 {
                    self.storage.users.remove(&key);
                }
            }
        }
    }

    pub fn set_namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        match labels {
            Some(labels) => drop(self.namespaces.insert(name.to_owned(), labels)),
            None => drop(self.namespaces.remove(name)),
        }
        self.topology.namespace_changed();
    }
}

/// Alternates between zones, so that a search that ends early has visited all zones.
fn interleaved<'a>(nodes: impl Iterator<Item = &'a NodeRow>) -> Vec<usize> {
    let mut zones: Vec<Vec<usize>> = Vec::new();
    let mut numbers: HashMap<(Option<&String>, Option<&String>), usize> = HashMap::new();
    let mut total = 0;
    for node in nodes {
        let label = |new: &str, old: &str| node.labels.get(new).or_else(|| node.labels.get(old));
        let region = label("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region");
        let zone = label("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone");
        let number = *numbers.entry((region, zone)).or_insert_with(|| {
            zones.push(Vec::new());
            zones.len() - 1
        });
        zones[number].push(node.slot);
        total += 1;
    }
    let deepest = zones.iter().map(Vec::len).max().unwrap_or(0);
    let mut order = Vec::with_capacity(total);
    for depth in 0..deepest {
        order.extend(zones.iter().filter_map(|zone| zone.get(depth)));
    }
    order
}
