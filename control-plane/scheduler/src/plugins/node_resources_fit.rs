//! NodeResourcesFit: the node has enough unrequested resources; the scoring strategy ranks the feasible nodes.

use std::sync::Arc;

use super::node_resources::{ResourceSpec, Strategy, cpu_and_memory, uses};
use crate::framework::{ClusterEvent, Plugin, PreFilter, PreScore, Reasons, State, Verdict, state};
use crate::resources::Resources;
use crate::rows::extended::is_extended;
use crate::rows::{NodeRow, PodRow, Snapshot};

/// The NodeResourcesFit plugin.
pub struct NodeResourcesFit {
    pub ignored_resources: Vec<String>,
    pub ignored_groups: Vec<String>,
    pub strategy: Strategy,
    pub resources: Vec<ResourceSpec>,
}

impl Default for NodeResourcesFit {
    fn default() -> NodeResourcesFit {
        NodeResourcesFit {
            ignored_resources: Vec::new(),
            ignored_groups: Vec::new(),
            strategy: Strategy::LeastAllocated,
            resources: cpu_and_memory(),
        }
    }
}

impl NodeResourcesFit {
    fn ignores(&self, name: &str) -> bool {
        self.ignored_resources.iter().any(|ignored| ignored == name)
            || self.ignored_groups.iter().any(|group| name.split('/').next() == Some(group))
    }

    /// Returns the insufficient resources. DynamicResources handles those in `delegated` on nodes that do not advertise
    /// them.
    fn shortages(&self, pod: &PodRow, node: &NodeRow, delegated: &[String]) -> Verdict {
        let mut found: Vec<(Shortage<'_>, bool)> = Vec::new();
        if node.pods.len() as i64 + 1 > node.allocatable.pods {
            found.push((Shortage::Pods, false));
        }
        let requests = &pod.demand.requests;
        let mut check = |shortage, wanted: i64, total: i64, used: i64| {
            if wanted > 0 && wanted > total - used {
                found.push((shortage, wanted > total));
            }
        };
        let (total, used) = (&node.allocatable, &node.requested);
        check(Shortage::Cpu, requests.milli_cpu, total.milli_cpu, used.milli_cpu);
        check(Shortage::Memory, requests.memory, total.memory, used.memory);
        check(Shortage::Storage, requests.ephemeral_storage, total.ephemeral_storage, used.ephemeral_storage);
        let is_delegated = |name: &String| delegated.contains(name) && total.get(name) == 0;
        for (name, wanted) in requests.scalar.iter().filter(|(name, _)| !self.ignores(name) && !is_delegated(name)) {
            check(Shortage::Scalar(name), *wanted, total.get(name), used.get(name));
        }
        match found.as_slice() {
            [] => Verdict::Fits,
            [(one, false)] => Verdict::Unschedulable(one.reasons()),
            [(one, true)] => Verdict::Unresolvable(one.reasons()),
            many => {
                let texts: Vec<String> = many.iter().map(|(shortage, _)| shortage.reasons().text()).collect();
                let reasons = Reasons::Many(Arc::from(texts));
                match many.iter().any(|(_, unresolvable)| *unresolvable) {
                    true => Verdict::Unresolvable(reasons),
                    false => Verdict::Unschedulable(reasons),
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Shortage<'a> {
    Pods,
    Cpu,
    Memory,
    Storage,
    Scalar(&'a str),
}

impl Shortage<'_> {
    fn reasons(&self) -> Reasons {
        match self {
            Shortage::Pods => Reasons::One("Too many pods"),
            Shortage::Cpu => Reasons::One("Insufficient cpu"),
            Shortage::Memory => Reasons::One("Insufficient memory"),
            Shortage::Storage => Reasons::One("Insufficient ephemeral-storage"),
            Shortage::Scalar(name) => Reasons::Many([format!("Insufficient {name}")].into()),
        }
    }
}

impl Plugin for NodeResourcesFit {
    fn is_local(&self) -> bool {
        true
    }

    fn pre_filter(&self, pod: &PodRow, snapshot: &mut Snapshot) -> PreFilter {
        let names = pod.demand.extended.iter().flat_map(|used| &used.asks).map(|ask| &ask.resource);
        let delegated: Vec<String> = names.filter(|name| snapshot.devices.class_of(name).is_some()).cloned().collect();
        PreFilter::Continue(Box::new(delegated))
    }

    fn filter(&self, delegated: &State, pod: &PodRow, node: &NodeRow, _: &Snapshot) -> Verdict {
        let (wanted, total, used) = (&pod.demand.requests, &node.allocatable, &node.requested);
        // Nearly every node passes or fails by the common resources; only failures are examined closely.
        let pods = (node.pods.len() as i64) < total.pods;
        let cpu = wanted.milli_cpu == 0 || wanted.milli_cpu <= total.milli_cpu - used.milli_cpu;
        let memory = wanted.memory == 0 || wanted.memory <= total.memory - used.memory;
        let storage = wanted.ephemeral_storage == 0
            || wanted.ephemeral_storage <= total.ephemeral_storage - used.ephemeral_storage;
        match wanted.scalar.is_empty() && pods && memory && storage {
            true if cpu => Verdict::Fits,
            true if wanted.milli_cpu <= total.milli_cpu => Verdict::Unschedulable(Shortage::Cpu.reasons()),
            _ => self.shortages(pod, node, state::<Vec<String>>(delegated).map_or(&[], Vec::as_slice)),
        }
    }

    fn surely_fits(&self, _: &State, pod: &PodRow, slot: usize, snapshot: &Snapshot) -> bool {
        let (wanted, room) = (&pod.demand.requests, snapshot.room(slot));
        let fits = |wanted: i64, left: i64| wanted == 0 || wanted <= left;
        wanted.scalar.is_empty()
            && room.pods > 0
            && fits(wanted.milli_cpu, room.milli_cpu)
            && fits(wanted.memory, room.memory)
            && fits(wanted.ephemeral_storage, room.ephemeral_storage)
    }

    fn pre_score(&self, _: &PodRow, _: &mut Snapshot, _: &[usize]) -> PreScore {
        PreScore::Ready(Box::new(()))
    }

    fn scores_locally(&self) -> bool {
        true
    }

    fn score(&self, _: &State, pod: &PodRow, node: &NodeRow, _: &Snapshot) -> i64 {
        self.strategy.score(uses(&self.resources, &pod.demand.scoring, node, true))
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, snapshot: &Snapshot) -> bool {
        match event {
            ClusterEvent::NodeAdded(node) => large_enough(pod, node, snapshot),
            ClusterEvent::NodeUpdated(node, change) => change.allocatable && large_enough(pod, node, snapshot),
            ClusterEvent::DevicesChanged => {
                let mut asks = pod.demand.extended.iter().flat_map(|used| &used.asks);
                asks.any(|ask| snapshot.devices.class_of(&ask.resource).is_some())
            }
            ClusterEvent::PodRemoved(gone) => room_on(pod, &gone.node_name, snapshot),
            ClusterEvent::PodUpdated(old, new) => {
                shrunk(&pod.demand.requests, &old.demand.requests, &new.demand.requests)
                    && room_on(pod, &new.node_name, snapshot)
            }
            _ => false,
        }
    }
}

/// Reports whether DynamicResources handles a resource on the node.
fn is_delegated(name: &str, node: &NodeRow, snapshot: &Snapshot) -> bool {
    node.allocatable.get(name) == 0 && is_extended(name) && snapshot.devices.class_of(name).is_some()
}

fn large_enough(pod: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> bool {
    let total = &node.allocatable;
    let wanted = &pod.demand.requests;
    total.pods > 0
        && wanted.milli_cpu <= total.milli_cpu
        && wanted.memory <= total.memory
        && wanted.ephemeral_storage <= total.ephemeral_storage
        && wanted
            .scalar
            .iter()
            .all(|(name, requested)| *requested <= total.get(name) || is_delegated(name, node, snapshot))
}

/// Reports whether the node has less of a resource that the pod requests.
fn shrunk(wanted: &Resources, old: &Resources, new: &Resources) -> bool {
    (wanted.milli_cpu > 0 && new.milli_cpu < old.milli_cpu)
        || (wanted.memory > 0 && new.memory < old.memory)
        || (wanted.ephemeral_storage > 0 && new.ephemeral_storage < old.ephemeral_storage)
        || wanted.scalar.keys().any(|name| new.get(name) < old.get(name))
}

/// Reports whether the node has room now, with the nominated pods counted, or would have without lower-priority pods. A
/// pod that waits for its victims elsewhere does not preempt again.
fn room_on(pod: &PodRow, node: &str, snapshot: &Snapshot) -> bool {
    let Some(node) = snapshot.find(node) else { return false };
    let waits = !pod.nominated.is_empty()
        && snapshot.find(&pod.nominated).is_some_and(|other| other.pods.iter().any(|pod| pod.preempted));
    let stays = |other: &PodRow| waits || pod.demand.never_preempts || other.priority >= pod.priority;
    let mut used = Resources::default();
    let mut pods = 0;
    let coming = snapshot.nominated.on(&node.name).iter();
    let coming = coming.filter(|other| other.uid != pod.uid && other.priority >= pod.priority);
    for other in node.pods.iter().filter(|other| stays(other)).chain(coming) {
        used.add(&other.demand.requests);
        pods += 1;
    }
    used.add(&pod.demand.requests);
    let wanted = &pod.demand.requests;
    let total = &node.allocatable;
    pods < total.pods
        && (wanted.milli_cpu == 0 || used.milli_cpu <= total.milli_cpu)
        && (wanted.memory == 0 || used.memory <= total.memory)
        && (wanted.ephemeral_storage == 0 || used.ephemeral_storage <= total.ephemeral_storage)
        && wanted.scalar.keys().all(|name| used.get(name) <= total.get(name) || is_delegated(name, node, snapshot))
}
