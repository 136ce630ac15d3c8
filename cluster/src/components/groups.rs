//! The groups of nodes.

/// The group of machines that join by a token.
pub const JOINING_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
/// The group of nodes that have joined.
pub const NODES_GROUP: &str = "system:nodes";
