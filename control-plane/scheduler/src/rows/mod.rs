//! Lean rows of pods, nodes and volumes: what scheduling needs to know and nothing more, kept up to date change by
//! change, with standing answers to the questions that every pod of a kind asks.

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
