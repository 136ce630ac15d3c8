//! Container logs: the runtime writes them, the kubelet reads, follows and rotates them.

pub mod follow;
pub mod line;
pub mod options;
pub mod reader;
pub mod regular;
pub mod rotate;
