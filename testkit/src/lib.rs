//! Support for tests: an API server in process, expected answers, waiting, container images, machines made of
//! namespaces, and a cluster on such a machine.
//!
//! Nothing here sleeps for a fixed time: every wait has a condition and a time limit. Everything that is made is
//! removed when its owner is dropped, also when the test fails.

pub mod agent;
pub mod client;
pub mod cluster;
pub mod eventually;
pub mod expected;
pub mod image;
pub mod interruption;
pub mod prometheus;
pub mod server;
pub mod world;

pub use testkit_machine::{machine, power, random, requests, tools, wait};
