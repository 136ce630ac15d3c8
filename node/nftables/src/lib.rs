//! nf_tables over netlink: tables, chains, sets, maps and rules, sent as one atomic batch.
//!
//! The pod network and the Service proxy program the kernel through this package, so that a node needs neither the
//! `nft` nor the `iptables` binary, and so that a change of ten thousand map elements is one system call that the
//! kernel applies completely or not at all.
//!
//! Reading order: [`Batch`] collects operations, [`Rule`] writes one rule in the order of the `nft` language, [`Set`]
//! declares sets and maps, [`Socket`] sends a batch and lists the kernel's objects.
//!
//! [`Conversation`] and [`GenericFamily`] send the requests of other packages to the kernel, as IPVS and WireGuard need
//! them.
//!
//! This package knows nothing of Kubernetes, and never changes a table that its caller did not name.

mod attributes;
mod batch;
mod conntrack;
mod conversation;
mod error;
mod expression;
mod field;
#[doc(hidden)]
pub mod fuzz;
mod ip_family;
mod listing;
mod rule;
mod set;
mod socket;
mod uapi;
mod value;

pub use batch::{Batch, Chain, ChainType, Hook, Policy, Table, priority};
pub use conntrack::{Conntrack, Flow};
pub use conversation::{Conversation, GenericFamily, NESTED, attributes, find, put, request_flags};
pub use error::Error;
pub use expression::{Expression, Reject, Verdict};
pub use field::{Field, flags};
pub use ip_family::IpFamily;
pub use listing::{ChainInfo, RuleInfo, SetInfo, TableInfo};
pub use rule::{Register, Rule};
pub use set::{Data, DataType, Element, Set};
pub use socket::Socket;
pub use uapi::Family;
pub use value::{Bytes4, Index, InterfaceName, Mac, Port, Protocol, Value};
