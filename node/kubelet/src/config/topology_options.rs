//! The policies of the topology manager and their options.

/// More nodes than this have too many combinations to be tried, unless somebody says otherwise.
pub const MOST_NODES: u32 = 8;

/// How a pod's processors, memory and devices are taken near each other.
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
