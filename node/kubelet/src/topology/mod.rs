//! The parts that a container has for itself (processors, memory, devices), taken near each other: each manager says
//! from which NUMA nodes it could give, `merge` finds what suits all, and the policy says whether a pod that would get
//! its parts from far apart is refused.
//!
//! Invariant: a pod that is refused holds nothing; between the question and the giving, no other pod is given anything.

mod give;
mod merge;

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::Config;
use crate::cpus;
use crate::error::{Error, Result};

pub use merge::hints;

/// NUMA nodes, one bit each.
pub type Nodes = u64;

/// More nodes than this have too many combinations to be tried, unless somebody says otherwise.
pub const MOST_NODES: u32 = 8;

/// From which nodes a manager could give; `None` is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    pub nodes: Option<Nodes>,
    /// No fewer nodes would do on an empty machine.
    pub preferred: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

impl Policy {
    pub const ALL: [(&'static str, Policy); 4] = [
        ("none", Policy::None),
        ("best-effort", Policy::BestEffort),
        ("restricted", Policy::Restricted),
        ("single-numa-node", Policy::SingleNumaNode),
    ];
}

/// Upstream's options of the policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of places of the same size, the one whose nodes are nearest to each other.
    pub closest: bool,
    pub most_nodes: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { closest: false, most_nodes: MOST_NODES }
    }
}

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
    whole_pod: bool,
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
        let whole_pod = config.topology_of_pods;
        Ok(Topology { policy: config.topology_policy, whole_pod, machine, giving: tokio::sync::Mutex::default() })
    }
}

/// The numbers of the nodes, in order.
pub fn numbers(nodes: Nodes) -> impl Iterator<Item = u32> {
    (0..Nodes::BITS).filter(move |number| nodes & 1 << number != 0)
}

/// The nodes of these numbers.
pub fn nodes(numbers: impl IntoIterator<Item = u32>) -> Nodes {
    numbers.into_iter().filter(|number| *number < Nodes::BITS).fold(0, |nodes, number| nodes | 1 << number)
}
