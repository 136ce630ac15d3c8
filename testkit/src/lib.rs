//! Support for tests: tools, container images, machines made of namespaces, a cluster on such a machine, and a control
//! plane in process.
//!
//! Nothing here sleeps for a fixed time: every wait has a condition and a time limit. Everything that is made is
//! removed when its owner is dropped, also when the test fails.

pub mod cluster;
pub mod control_plane;
pub mod image;
pub mod world;

pub use testkit_machine::{machine, tools, wait};
