//! The sockets of the kubelet for plugins of the node.

mod authority;
pub mod serve;
pub mod versions;
