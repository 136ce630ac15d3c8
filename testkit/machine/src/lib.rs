//! Machines made of namespaces, the tools that they need and how to wait for them: a package of its own, so that `xtask`
//! boots one without building the API server that `testkit` runs in process.

pub mod machine;
pub mod tools;
pub mod wait;
