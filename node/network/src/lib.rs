//! The pod network of one node, over netlink: no `ip`, `nft` or CNI binary is needed.
//!
//! Every pod has a veth into one bridge and holds a /32 address with a route to the bridge's address, so that *every*
//! packet, also to a pod of the same node, passes the node's IP stack. Services and policies therefore see all traffic
//! whether or not the kernel has `br_netfilter`.
//!
//! - [`PodNetwork`] attaches and detaches pods: addresses, links, outgoing traffic, host ports.
//! - [`policy`] enforces NetworkPolicies, and makes new pods wait until theirs are in the kernel.
//! - [`cni`] runs the plugins of others instead, and makes a plugin of ours.
//! - [`announce`] holds this node's addresses of load balancers.
//! - [`routes`] keeps the routes to the pods of the other nodes, by [`wireguard`] if configured.
//! - [`namespace_node`] makes network namespaces that act as further nodes of this machine.
//!
//! This package never changes a link, route or table that it did not make.

mod allocation;
pub mod announce;
mod bandwidth;
mod cidr;
pub mod cni;
mod error;
mod firewall;
#[doc(hidden)]
pub mod fuzz;
mod guard;
mod links;
mod namespace;
pub mod namespace_node;
mod pod_network;
pub mod policy;
pub mod routes;
mod sysctl;
pub mod wireguard;

pub use allocation::{PortMapping, Protocol};
pub use bandwidth::Limits;
pub use cidr::Cidr;
pub use error::Error;
pub use namespace::enter;
pub use pod_network::{Attachment, Config, PodNetwork, SetupRequest, cleanup};
