//! The parts that a container has for itself (processors, memory, devices), taken near each other: each manager says
//! from which NUMA nodes it could give, `merge` finds what suits all, and the policy says whether a pod that would get
//! its parts from far apart is refused.
//!
//! Invariant: a pod that is refused holds nothing; between the question and the giving, no other pod is given anything.

mod merge;

pub use crate::config::topology_options::{Options, Policy};
use crate::numa::numbers;
pub use crate::numa::{Hint, Nodes};

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::Config;
use crate::cpus;
use crate::error::{Error, Result};

/// The NUMA nodes, and how far each is from each, where that matters.
#[derive(Clone, Debug, Default)]
struct Machine {
    nodes: Nodes,
    distances: BTreeMap<u32, Vec<u64>>,
}

impl Machine {
    fn read(options: &Options) -> Result<Machine> {
        let nodes = cpus::numa_nodes();
        let mut distances = BTreeMap::new();
        for node in numbers(nodes).filter(|_| options.closest) {
            let path = format!("/sys/devices/system/node/node{node}/distance");
            let text = std::fs::read_to_string(&path).map_err(Error::file("read", Path::new(&path)))?;
            distances.insert(node, text.split_whitespace().filter_map(|number| number.parse().ok()).collect());
        }
        Ok(Machine { nodes, distances })
    }

    /// How far the nodes are from each other, all in all; zero where that does not matter.
    fn spread(&self, nodes: Nodes) -> u64 {
        let distance = |from: u32, to: u32| self.distances.get(&from)?.get(to as usize).copied();
        numbers(nodes).flat_map(|from| numbers(nodes).filter_map(move |to| distance(from, to))).sum()
    }
}

pub struct Topology {
    policy: Policy,
    /// Whether a pod's containers get their parts from the same nodes, and not each from its own.
    pod_scope: bool,
    machine: Machine,
    /// One pod at a time is given parts.
    giving: tokio::sync::Mutex<()>,
}

impl Topology {
    pub fn new(config: &Config) -> Result<Topology> {
        let options = &config.topology_options;
        let machine = Machine::read(options)?;
        if config.topology_policy != Policy::None && machine.nodes.count_ones() > options.most_nodes {
            let most = options.most_nodes;
            return Err(Error::Configuration(format!("unsupported on machines with more than {most} NUMA Nodes")));
        }
        let pod_scope = config.topology_of_pods;
        Ok(Topology { policy: config.topology_policy, pod_scope, machine, giving: tokio::sync::Mutex::default() })
    }

    /// Waits until no other pod is being given resources.
    pub async fn one_at_a_time(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.giving.lock().await
    }

    /// Returns whether all containers of a pod get their resources from the same NUMA nodes.
    pub fn aligns_pods(&self) -> bool {
        self.pod_scope && self.policy != Policy::None
    }

    /// Returns the NUMA nodes that the hints of all managers allow; `None` if the policy admits none. `hints` takes the
    /// nodes of the machine.
    pub fn align(&self, hints: impl FnOnce(Nodes) -> Vec<Vec<Hint>>) -> Option<Hint> {
        if self.policy == Policy::None {
            return Some(Hint { nodes: None, preferred: false });
        }
        merge::merge(self.policy, &self.machine, &hints(self.machine.nodes))
    }
}
