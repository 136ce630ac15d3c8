//! For tests alone: tools, container images, machines made of namespaces, a cluster on such a machine, and a control
//! plane in process.
//!
//! Nothing here sleeps and hopes: every wait names its condition and its bound. Everything that is made is removed
//! when its owner is dropped, also when the test fails.

pub mod cluster;
pub mod control_plane;
pub mod image;
pub mod world;

pub use testkit_machine::{machine, tools, wait};
