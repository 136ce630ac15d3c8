//! The sockets by which plugins of the node are found and served.

pub mod serve;
pub mod versions;
