//! The driver behind all services: the storage, this node's name, and the thread that a call runs on.

use std::collections::HashMap;
use std::sync::Arc;

use corten_plugins::csi;
use tonic::{Response, Status};

use crate::error::Result;
use crate::storage::Storage;

/// The key of the driver's topology: a volume is on one node.
pub const TOPOLOGY_KEY: &str = "topology.storage.corten.dev/node";

pub type Answer<T> = std::result::Result<Response<T>, Status>;

#[derive(Clone)]
pub struct Driver {
    pub storage: Arc<Storage>,
    pub node_name: Arc<str>,
}

impl Driver {
    /// Runs a call on a thread that may block. The call goes on if its caller gives up: locks and freezes end with it.
    pub async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Storage) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, Status> {
        let storage = Arc::clone(&self.storage);
        let done = tokio::task::spawn_blocking(move || work(&storage)).await;
        let done = done.map_err(|error| Status::internal(format!("the call failed: {error}")))?;
        done.map_err(Status::from)
    }

    /// Returns the topology of this node's volumes.
    pub fn topology(&self) -> csi::Topology {
        csi::Topology { segments: HashMap::from([(TOPOLOGY_KEY.to_owned(), self.node_name.to_string())]) }
    }

    /// Reports whether a topology includes this node.
    pub fn is_here(&self, topology: &csi::Topology) -> bool {
        topology.segments.get(TOPOLOGY_KEY).is_none_or(|node| **node == *self.node_name)
    }
}
