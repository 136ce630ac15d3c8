//! The group `network.corten.dev`, one file per kind: the parts of the cluster's state that the network of a node
//! reads. It is not part of the default API: other networks bring their own group, by CustomResourceDefinitions.

use crate::kind::Kind;

pub mod podaddress;

/// The name of the group.
pub const NETWORK_GROUP: &str = "network.corten.dev";

/// Returns its kinds, in the order of discovery.
pub fn network_kinds() -> Vec<Kind> {
    vec![podaddress::kind()]
}
