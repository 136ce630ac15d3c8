//! Machines made of namespaces, the tools that they need, and waiting for conditions: a separate package, so that
//! `xtask` boots a machine without building the API server that `testkit` runs in process.

pub mod machine;
pub mod tools;
pub mod wait;
