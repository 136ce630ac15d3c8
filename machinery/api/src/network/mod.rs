//! The group `network.corten.dev`, one file a kind: what the network of a node reads of the whole cluster. No part of
//! the default API: other networks bring their own group, by CustomResourceDefinitions.

use crate::kind::Kind;

pub mod podaddress;

/// The name of the group.
pub const NETWORK_GROUP: &str = "network.corten.dev";

/// Its kinds, in the order of discovery.
pub fn network_kinds() -> Vec<Kind> {
    vec![podaddress::kind()]
}
