//! The policies of the topology manager and their options.

/// The largest number of NUMA nodes, unless an option raises it: more have too many combinations.
pub const MOST_NODES: u32 = 8;

/// The topology manager policy.
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
    /// Whether the NUMA nodes with the smallest distance are preferred among sets of the same size.
    pub closest: bool,
    pub most_nodes: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { closest: false, most_nodes: MOST_NODES }
    }
}
