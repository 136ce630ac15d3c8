//! Machines made of namespaces, the tools that they need, waiting for conditions, and requests as text: a separate
//! package, so that `xtask` uses them without building the API server that `testkit` runs in process.

pub mod machine;
pub mod requests;
pub mod tools;
pub mod wait;
