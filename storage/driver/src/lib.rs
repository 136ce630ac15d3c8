//! Corten's own CSI driver, `storage.corten.dev`: volumes are files on a pool of the node that can reflink.
//!
//! The driver is a plugin like any other: it serves Identity, Controller, GroupController, SnapshotMetadata and Node on a
//! unix socket and registers that with the kubelet, which does not know that it is ours. It knows nothing of Kubernetes' API.
//!
//! *Invariant: all state is on disk before it is answered, and a driver that is killed at any moment leaves nothing
//! that the next start does not finish or remove.*

mod catalog;
mod controller;
mod data;
mod extents;
mod freezing;
mod identity;
mod limiting;
mod limits;
mod loop_device;
mod node;
mod pool;
mod publishing;
mod record;
mod replicas;
mod requests;
mod roles;
mod serve;
mod service;
mod snapshot_metadata;
mod snapshots;
mod storage;
mod volumes;

pub use corten_storage_plugin::error::{Error, Result};
pub use data::{Filling, Image, ImageGuard, Volumes};
pub use extents::changed_chunks;
pub use identity::NAME;
pub use pool::{detach, takes_snapshots};
pub use record::{Replica, Role};
pub use replicas::{Increment, Received};
pub use roles::{Fence, Held, Holder};
pub use serve::{Config, run};
pub use service::TOPOLOGY_KEY;
