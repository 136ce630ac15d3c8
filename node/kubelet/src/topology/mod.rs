//! The topology manager: it aligns the exclusive CPUs, memory and devices of a container on NUMA nodes. Each manager
//! returns hints, `merge` merges them, and the policy decides whether a pod without alignment is rejected.
//!
//! Invariant: a rejected pod has no resources allocated; between hints and allocation no other pod gets resources.

mod merge;

pub use crate::config::topology_options::{Options, Policy};
use crate::numa::numbers;
pub use crate::numa::{Hint, Nodes};

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::Config;
use crate::cpus;
use crate::error::{Error, Result};

/// The NUMA nodes, and their distances where a policy option needs them.
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

    /// Returns the average distance of the NUMA nodes; zero where it does not matter.
    fn spread(&self, nodes: Nodes) -> u64 {
        let distance = |from: u32, to: u32| self.distances.get(&from)?.get(to as usize).copied();
        numbers(nodes).flat_map(|from| numbers(nodes).filter_map(move |to| distance(from, to))).sum()
    }
}

pub struct Topology {
    policy: Policy,
    /// Whether all containers of a pod get their resources from the same NUMA nodes (scope `pod`).
    pod_scope: bool,
    machine: Machine,
    /// Serializes the allocation of resources to pods.
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

    /// Waits until no other pod is being allocated resources.
    pub async fn one_at_a_time(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.giving.lock().await
    }

    /// Returns whether all containers of a pod get their resources from the same NUMA nodes.
    pub fn aligns_pods(&self) -> bool {
        self.pod_scope && self.policy != Policy::None
    }

    /// Returns the merged hint of all managers; `None` if the policy rejects it. `hints` takes the NUMA nodes of the
    /// machine.
    pub fn align(&self, hints: impl FnOnce(Nodes) -> Vec<Vec<Hint>>) -> Option<Hint> {
        if self.policy == Policy::None {
            return Some(Hint { nodes: None, preferred: false });
        }
        merge::merge(self.policy, &self.machine, &hints(self.machine.nodes))
    }
}
