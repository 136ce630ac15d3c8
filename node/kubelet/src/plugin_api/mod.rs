//! The sockets by which plugins of the node are found and served.

mod authority;
pub mod serve;
pub mod versions;
