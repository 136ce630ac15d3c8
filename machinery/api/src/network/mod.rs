//! The group `network.corten.dev`, one file per kind: the parts of the cluster's state that the network of a node
//! reads. It is not part of the default API: other networks bring their own group, by CustomResourceDefinitions.
//!
//! PodAddress is a projection that the API server computes. AddressPool and BGPPeer are custom resources, whose
//! CustomResourceDefinitions are here and are created by the binary, so that they work on every API server.

use corten_meta::Value;

use crate::kind::Kind;

mod address_pool;
mod address_range;
mod bgp_peer;
pub mod podaddress;

pub use address_pool::{ADDRESS_POOLS, AddressPool, Advertisement};
pub use address_range::AddressRange;
pub use bgp_peer::{BGP_NAMESPACE, BGP_PEERS, BgpPeer};

/// The name of the group.
pub const NETWORK_GROUP: &str = "network.corten.dev";
/// The class of Services whose addresses come from AddressPools, beside those without a class.
pub const LOAD_BALANCER_CLASS: &str = "network.corten.dev/load-balancer";
/// The version of its custom resources.
pub const NETWORK_VERSION: &str = "v1beta1";

/// Returns its kinds, in the order of discovery.
pub fn network_kinds() -> Vec<Kind> {
    vec![podaddress::kind()]
}

/// Returns the CustomResourceDefinitions of the group.
pub fn network_crds() -> Vec<Value> {
    let documents = [include_str!("address_pools.yaml"), include_str!("bgp_peers.yaml")];
    let read = |text: &&str| corten_meta::decode_yaml(text.as_bytes()).expect("the documents are part of the program");
    documents.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_of_this_group_and_version() {
        let plurals = [ADDRESS_POOLS, BGP_PEERS];
        for (crd, plural) in network_crds().iter().zip(plurals) {
            assert_eq!(corten_meta::name(crd), format!("{plural}.{NETWORK_GROUP}"));
            assert_eq!(crd["spec"]["versions"][0]["name"], NETWORK_VERSION);
        }
    }
}
