//! The node controllers: allocate pod CIDRs, detect missing heartbeats, taint nodes, evict pods, and delete pods of
//! lost nodes.

mod heartbeats;
pub mod ipam;
pub mod lifecycle;
pub mod pod_gc;
pub mod taint_eviction;
pub mod ttl;
mod zones;

pub use heartbeats::Heartbeats;
