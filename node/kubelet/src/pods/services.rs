//! What every pod worker shares: the node's configuration, its clients, and the owners of things that are
//! shared between pods.

use std::collections::BTreeSet;
use std::sync::{Arc, RwLock};

use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use corten_client::{Cache, Client};
use tokio::sync::{Semaphore, watch};

use super::Allocations;
use super::orders::Orders;
use crate::claims::Claims;
use crate::config::Config;
use crate::container::cgroups::Cgroups;
use crate::container::resources::{self, ResourceList};
use crate::cpus::Cpus;
use crate::cri::Runtime;
use crate::csi::Csi;
use crate::devices::Devices;
use crate::events::Events;
use crate::eviction::Pressure;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::objects::Objects;
use crate::topology::Topology;
use crate::users::Users;
use crate::volumes::Tokens;

pub struct Services {
    pub config: Config,
    pub client: Client,
    pub runtime: Runtime,
    /// The scheme of container ids.
    pub runtime_name: String,
    pub events: Events,
    /// Whether the kernel confines programs by AppArmor profiles.
    pub apparmor: bool,
    /// What the kubelet counts of itself.
    pub metrics: Arc<Metrics>,
    pub objects: Objects,
    pub tokens: Tokens,
    /// The ids of pods that have users of their own.
    pub users: Users,
    /// CSI drivers and their volumes.
    pub csi: Arc<Csi>,
    /// Which container runs on which processors.
    pub cpus: Cpus,
    /// Which container has memory of which NUMA nodes.
    pub memory: Memory,
    /// Where a pod's processors, memory and devices are taken from, near each other.
    pub topology: Topology,
    /// Devices that plugins manage.
    pub devices: Arc<Devices>,
    /// Dynamic resources.
    pub claims: Arc<Claims>,
    pub cgroups: Cgroups,
    /// All Services of the cluster, for the environment of containers.
    pub services: Arc<Cache>,
    /// What the node can give to pods.
    pub allocatable: RwLock<ResourceList>,
    pub memory_capacity: i64,
    /// The most processes that one pod may have.
    pub pod_pids_limit: i64,
    /// What its pods have been promised.
    pub allocations: Allocations,
    /// Which pods somebody other than the API wants ended.
    pub orders: Orders,
    /// What the node is short of.
    pub pressure: watch::Sender<BTreeSet<Pressure>>,
    /// Whether the machine is about to stop.
    pub shutting_down: watch::Sender<bool>,
    /// The pulls that may go on at the same time.
    pub pulls: Arc<Semaphore>,
    /// This node's own object.
    pub own_node: Arc<Cache>,
}

impl Services {
    /// Gives the QoS classes their parts of the processor: what their pods ask for. Pods that ask for nothing get what
    /// others leave.
    pub fn share_cpu(&self) {
        let root = self.config.cgroup_root.trim_end_matches('/');
        let burstable = self.allocations.burstable_cpu();
        for (class, milli) in [("burstable", burstable), ("besteffort", 0)] {
            self.cgroups.share(&format!("{root}/kubepods/{class}"), resources::shares(milli));
        }
    }

    /// The pod has nothing for itself any more.
    pub fn release_parts(&self, uid: &str) {
        self.devices.release(uid);
        self.cpus.release(uid);
        self.memory.release(uid);
    }

    /// What the node can give to pods now, the devices of plugins included.
    pub fn allocatable(&self) -> ResourceList {
        let mut list = self.allocatable.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let devices = self.devices.counts().borrow().allocatable.clone();
        list.extend(devices.into_iter().map(|(name, count)| (name, Quantity(count.to_string()))));
        list
    }
}
