//! The parts that every CSI driver of ours is made of: its sockets and its registration with the kubelet, the reading of
//! requests, errors with their gRPC codes, locks by name, mounts, file systems and the programs that make them.
//!
//! Must never: know where the volumes of a driver are, or Kubernetes' API.

pub mod access;
pub mod error;
pub mod file_system;
pub mod ioctls;
pub mod locks;
pub mod mounts;
pub mod requests;
pub mod sockets;
pub mod targets;
pub mod tools;
pub mod usage;
