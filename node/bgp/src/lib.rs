//! The BGP speaker of a node: announces the addresses of Services of type LoadBalancer to routers, which then share
//! their packets among the nodes.
//!
//! It only announces: no route of a peer is imported, and no route of the kernel is touched. It dials its peers and
//! listens nowhere. A restart loses no packet: the routers keep the routes while the process is away (RFC 4724), and
//! the kernel's rules serve them.

mod bfd;
mod error;
pub mod fuzz;
mod machine;
pub mod message;
mod plan;
mod prefix;
mod reader;
mod rib;
mod run;
mod session;
mod socket;

pub use error::Error;
pub use prefix::{Family, Prefix};
pub use run::{Config, run};
