//! The driver behind all services: the storage, this node's name, and the thread that a call runs on.

use std::collections::HashMap;
use std::sync::Arc;

use corten_plugins::csi;
use corten_storage_plugin::error::{Error, Result};
use tonic::{Response, Status};

use crate::roles::{Fence, check_holder};
use crate::storage::Storage;

/// The key of the driver's topology: a volume is on one node.
pub const TOPOLOGY_KEY: &str = "topology.storage.corten.dev/node";

pub type Answer<T> = std::result::Result<Response<T>, Status>;

#[derive(Clone)]
pub struct Driver {
    pub storage: Arc<Storage>,
    pub node_name: Arc<str>,
    /// Knows which node holds a volume that has a copy; without it no such volume is used.
    pub fence: Option<Arc<dyn Fence>>,
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

    /// Returns the epoch of a volume with a copy, if this node holds it now; none of a volume without a copy.
    pub async fn held_epoch(&self, id: &str) -> Result<Option<u64>> {
        let volume = self.storage.node_volume(id)?;
        if volume.replica.is_none() {
            return Ok(None);
        }
        let unknown = |why: &str| Error::Precondition(format!("it is not known which node holds volume {id}: {why}"));
        let fence = self.fence.as_ref().ok_or_else(|| unknown("this driver runs without a cluster"))?;
        let holder = fence.holder(&volume.name).await.map_err(|why| unknown(&why))?;
        check_holder(&volume, &holder, &self.node_name).map(Some)
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
