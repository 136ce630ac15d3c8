//! The sets and maps that Services are elements of.
//!
//! Services lead to chains in two steps: a map holds the *shape* of the Service, three numbers, and a small verdict map
//! holds the chain of the shape. With verdicts in the map of Services the kernel would check every one of them again
//! for loops whenever one is added.
//!
//! Before the numbers is an unused one. `nft` crashes on a lookup whose key is the result of another lookup, so that
//! the rules of a node could not be listed; it takes a key that begins one register later for an earlier value.

use std::time::Duration;

use corten_nftables::{DataType, IpFamily, Set};

/// The dynamic map from clients to their endpoints; rules fill it, the proxy never does.
pub(crate) const AFFINITY: &str = "affinity";
/// The most clients in the affinity map; beyond it, new clients are spread at random.
const AFFINITY_SIZE: u32 = 65_535;
const AFFINITY_TIMEOUT: Duration = Duration::from_secs(10_800);

/// The verdict map from shapes to their chains.
pub(crate) const SHAPES: &str = "shapes";
/// The verdict map from refusals to their verdicts.
pub(crate) const REFUSALS: &str = "refusals";

/// A set or map that the proxy fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Name {
    /// `address . protocol . port → shape`
    Services,
    /// `protocol . node port → shape`
    NodePorts,
    /// `address . protocol . port → refusal`, before translation
    Unavailable,
    /// `protocol . node port → refusal`
    UnavailableNodePorts,
    /// `address . protocol . port . index → endpoint . port`; the address of node ports is the unspecified one
    Endpoints,
    /// `endpoint . port . address . protocol . port`: the endpoints a remembered client may still use
    AffinityEndpoints,
    /// `endpoint . endpoint`: a pod that reaches itself must be masqueraded
    Hairpin,
    /// `address . protocol . port` that is restricted to source ranges
    Restricted,
    /// `address . protocol . port . source range` that is allowed
    Sources,
    /// `address`: cluster addresses that the node holds itself, so that IPVS sees their packets
    Held,
}

impl Name {
    pub const ALL: [Name; 10] = [
        Name::Services,
        Name::NodePorts,
        Name::Unavailable,
        Name::UnavailableNodePorts,
        Name::Endpoints,
        Name::AffinityEndpoints,
        Name::Hairpin,
        Name::Restricted,
        Name::Sources,
        Name::Held,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Name::Services => "services",
            Name::NodePorts => "node-ports",
            Name::Unavailable => "unavailable",
            Name::UnavailableNodePorts => "unavailable-node-ports",
            Name::Endpoints => "endpoints",
            Name::AffinityEndpoints => "affinity-endpoints",
            Name::Hairpin => "hairpin",
            Name::Restricted => "restricted",
            Name::Sources => "sources",
            Name::Held => "held",
        }
    }

    pub fn declaration(self, ip: IpFamily) -> Set {
        let address = ip.address();
        let protocol = DataType::InetProto;
        let port = DataType::InetService;
        let name = self.as_str();
        match self {
            Name::Services => Set::map(name, &[address, protocol, port], &SHAPE),
            Name::NodePorts => Set::map(name, &[protocol, port], &SHAPE),
            Name::Unavailable => Set::map(name, &[address, protocol, port], &REFUSAL),
            Name::UnavailableNodePorts => Set::map(name, &[protocol, port], &REFUSAL),
            Name::Endpoints => Set::map(name, &[address, protocol, port, DataType::Mark], &[address, port]),
            Name::AffinityEndpoints => Set::new(name, &[address, port, address, protocol, port]),
            Name::Hairpin => Set::new(name, &[address, address]),
            Name::Restricted => Set::new(name, &[address, protocol, port]),
            Name::Sources => Set::new(name, &[address, protocol, port, address]).intervals(),
            Name::Held => Set::new(name, &[address]),
        }
    }
}

const SHAPE: [DataType; 4] = [DataType::Mark; 4];
const REFUSAL: [DataType; 2] = [DataType::Mark; 2];

pub(crate) fn shapes() -> Set {
    Set::vmap(SHAPES, &SHAPE[1..])
}

pub(crate) fn refusals() -> Set {
    Set::vmap(REFUSALS, &[DataType::Mark])
}

pub(crate) fn affinity(ip: IpFamily) -> Set {
    let address = ip.address();
    let protocol = DataType::InetProto;
    let port = DataType::InetService;
    let key = [address, protocol, port, address];
    let data = [DataType::Mark, address, port];
    Set::map(AFFINITY, &key, &data).dynamic(AFFINITY_TIMEOUT, AFFINITY_SIZE)
}
