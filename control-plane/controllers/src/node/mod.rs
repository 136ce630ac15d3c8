//! What the cluster does about its nodes: give each a pod range, notice silence, taint, and clear away what is lost.

mod heartbeats;
pub mod ipam;
pub mod lifecycle;
pub mod pod_gc;
pub mod taint_eviction;
pub mod ttl;
mod zones;

pub use heartbeats::Heartbeats;

#[cfg(test)]
mod tests;
