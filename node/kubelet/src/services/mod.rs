//! The parts of the kubelet that its workers share, grouped by what they are about.

mod give;

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use corten_client::{Cache, Client};
use tokio::sync::{Semaphore, watch};

use crate::admission::allocation::Allocations;
use crate::claims::Claims;
use crate::config::Config;
use crate::container::cgroups::Cgroups;
use crate::cpus::Cpus;
use crate::cri::Runtime;
use crate::devices::Devices;
use crate::events::Events;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::objects::Objects;
use crate::pod::resources::{self, ResourceList};
use crate::pod::terminations::Terminations;
use crate::thresholds::Pressure;
use crate::topology::Topology;
use crate::users::Users;
use crate::volumes::Tokens;
use crate::volumes::csi::Csi;

/// Everything that pod workers and the tasks beside them share.
pub struct Services {
    pub config: Config,
    /// The metrics of the kubelet itself.
    pub metrics: Arc<Metrics>,
    pub api: Api,
    pub runtime: ContainerRuntime,
    pub resources: NodeResources,
    pub volumes: VolumeSources,
    pub signals: Signals,
}

/// The API server, as the kubelet sees it.
pub struct Api {
    pub client: Client,
    pub events: Events,
    /// Secrets and ConfigMaps of pods.
    pub objects: Objects,
    /// All Services of the cluster, for the environment of containers.
    pub services: Arc<Cache>,
    /// This node's own object.
    pub own_node: Arc<Cache>,
}

/// The container runtime.
pub struct ContainerRuntime {
    pub client: Runtime,
    /// The scheme of container ids.
    pub name: String,
    /// Whether the kernel confines programs by AppArmor profiles.
    pub apparmor: bool,
    /// The pulls that may go on at the same time.
    pub pulls: Arc<Semaphore>,
}

/// The resources of the node that pods are given.
pub struct NodeResources {
    /// The processors of containers.
    pub cpus: Cpus,
    /// The memory of NUMA nodes of containers.
    pub memory: Memory,
    /// The NUMA nodes that a pod's processors, memory and devices are taken from, near each other.
    pub topology: Topology,
    /// Devices that plugins manage.
    pub devices: Arc<Devices>,
    /// Dynamic resources.
    pub claims: Arc<Claims>,
    pub cgroups: Cgroups,
    /// The resources that the node has for pods.
    pub allocatable: RwLock<ResourceList>,
    pub memory_capacity: i64,
    /// The most processes that one pod may have.
    pub pod_pids_limit: i64,
    /// The resources that the node's pods have been promised.
    pub allocations: Allocations,
}

/// Sources of volumes that pods share.
pub struct VolumeSources {
    pub tokens: Tokens,
    /// The ids of pods that have users of their own.
    pub users: Users,
    /// CSI drivers and their volumes.
    pub csi: Arc<Csi>,
}

/// Signals between the tasks of the kubelet.
pub struct Signals {
    /// The pods that eviction, a shutdown or a critical pod wants ended.
    pub terminations: Terminations,
    /// The resources that the node is short of.
    pub pressure: watch::Sender<BTreeSet<Pressure>>,
    /// Whether the machine is about to stop.
    pub shutting_down: watch::Sender<bool>,
}

impl NodeResources {
    /// Gives the QoS classes their shares of the processors: the requests of their pods. Pods without requests get the
    /// rest. `root` is the control group of the kubelet.
    pub fn share_cpu(&self, root: &str) {
        let root = root.trim_end_matches('/');
        let burstable = self.allocations.burstable_cpu();
        for (class, milli) in [("burstable", burstable), ("besteffort", 0)] {
            self.cgroups.share(&format!("{root}/kubepods/{class}"), resources::shares(milli));
        }
    }

    /// Takes back the devices, processors and memory of a pod.
    pub fn release(&self, uid: &str) {
        self.devices.release(uid);
        self.cpus.release(uid);
        self.memory.release(uid);
    }

    /// Returns the resources that the node has for pods now, the devices of plugins included.
    pub fn allocatable(&self) -> ResourceList {
        let mut list = self.allocatable.read().unwrap_or_else(PoisonError::into_inner).clone();
        let devices = self.devices.counts().borrow().allocatable.clone();
        list.extend(devices.into_iter().map(|(name, count)| (name, Quantity(count.to_string()))));
        list
    }
}
