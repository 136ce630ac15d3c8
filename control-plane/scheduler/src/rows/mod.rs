//! Lean rows of pods, nodes and volumes: only the fields that scheduling needs, updated change by change, with standing
//! counts for the questions that all pods of a kind ask.

pub mod demand;
pub mod devices;
pub mod extended;
pub mod node;
pub mod node_sets;
pub mod pod;
pub mod selectors;
pub mod shortlist;
mod snapshot;
pub mod storage;
pub mod topology;

pub use demand::{HostPort, PodMatcher, Spread, VolumeUse};
pub use node::{NodeChange, NodeRow};
pub use pod::PodRow;
pub use snapshot::{Budget, Snapshot};

#[cfg(test)]
pub mod tests;
