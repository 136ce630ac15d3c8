//! What every pod worker shares: the node's configuration, its clients, and the owners of things that are
//! shared between pods.

use std::sync::{Arc, RwLock};

use corten_client::{Cache, Client};

use super::Allocations;
use crate::config::Config;
use crate::container::cgroups::Cgroups;
use crate::container::resources::ResourceList;
use crate::cri::Runtime;
use crate::events::Events;
use crate::objects::Objects;
use crate::volumes::Tokens;

pub struct Services {
    pub config: Config,
    pub client: Client,
    pub runtime: Runtime,
    /// The scheme of container ids.
    pub runtime_name: String,
    pub events: Events,
    pub objects: Objects,
    pub tokens: Tokens,
    pub cgroups: Cgroups,
    /// All Services of the cluster, for the environment of containers.
    pub services: Arc<Cache>,
    /// What the node can give to pods.
    pub allocatable: RwLock<ResourceList>,
    pub memory_capacity: i64,
    /// What its pods have been promised.
    pub allocations: Allocations,
    /// This node's own object.
    pub own_node: Arc<Cache>,
}

impl Services {
    pub fn allocatable(&self) -> ResourceList {
        self.allocatable.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}
