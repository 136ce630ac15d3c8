//! The parts that a container has for itself (processors, memory, devices), taken near each other: each manager says
//! from which NUMA nodes it could give, `merge` finds what suits all, and the policy says whether a pod that would get
//! its parts from far apart is refused.
//!
//! Invariant: a pod that is refused holds nothing; between the question and the giving, no other pod is given anything.

mod give;
mod merge;

use crate::config::Config;
use crate::cpus;
use crate::error::{Error, Result};

pub use merge::hints;

/// NUMA nodes, one bit each.
pub type Nodes = u64;

/// More nodes than this have too many combinations to be tried.
const MOST_NODES: u32 = 8;

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

pub struct Topology {
    policy: Policy,
    /// Whether a pod's containers get their parts from the same nodes, and not each from its own.
    whole_pod: bool,
    nodes: Nodes,
    /// One pod at a time is given parts.
    giving: tokio::sync::Mutex<()>,
}

impl Topology {
    pub fn new(config: &Config) -> Result<Topology> {
        let nodes = cpus::numa_nodes();
        if config.topology_policy != Policy::None && nodes.count_ones() > MOST_NODES {
            return Err(Error::Configuration(format!(
                "unsupported on machines with more than {MOST_NODES} NUMA Nodes"
            )));
        }
        let whole_pod = config.topology_of_pods;
        Ok(Topology { policy: config.topology_policy, whole_pod, nodes, giving: tokio::sync::Mutex::default() })
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
