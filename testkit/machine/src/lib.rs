//! Machines made of namespaces, disks whose power is cut, the tools that they need, waiting for conditions, and requests
//! as text: a separate package, so that `xtask` uses them without building the API server that `testkit` runs in process.

pub mod machine;
pub mod power;
pub mod random;
pub mod requests;
pub mod tools;
pub mod wait;
