//! Corten's own CSI driver, `storage.corten.dev`: volumes are files on a pool of the node that can reflink.
//!
//! The driver is a plugin like any other: it serves Identity, Controller, GroupController and Node on a unix socket and
//! registers that with the kubelet, which does not know that it is ours. It knows nothing of Kubernetes' API.
//!
//! *Invariant: all state is on disk before it is answered, and a driver that is killed at any moment leaves nothing
//! that the next start does not finish or remove.*

mod catalog;
mod controller;
mod data;
mod error;
mod file_system;
mod freezing;
mod identity;
mod ioctls;
mod limiting;
mod limits;
mod locks;
mod loop_device;
mod mounts;
mod node;
mod pool;
mod publishing;
mod record;
mod requests;
mod serve;
mod service;
mod snapshots;
mod storage;
mod tools;
mod volumes;

pub use data::{Filling, Image, ImageGuard, Volumes};
pub use error::{Error, Result};
pub use identity::NAME;
pub use pool::{detach, takes_snapshots};
pub use serve::{Config, run};
pub use service::TOPOLOGY_KEY;
