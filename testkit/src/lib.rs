//! For tests alone: tools, container images, machines made of namespaces, and a cluster on such a machine.
//!
//! Nothing here sleeps and hopes: every wait names its condition and its bound. Everything that is made is removed
//! when its owner is dropped, also when the test fails.

pub mod cluster;
pub mod image;
pub mod machine;
pub mod tools;
pub mod wait;
