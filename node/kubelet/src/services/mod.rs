//! The parts of the kubelet that its workers share, grouped by subject.

mod allocate;
mod health;

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use corten_client::{Cache, Client};
use corten_spans::Tracer;
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
use crate::pod::wakers::Wakers;
use crate::thresholds::Pressure;
use crate::topology::Topology;
use crate::users::Users;
use crate::volumes::Tokens;
use crate::volumes::csi::Csi;

/// The parts that pod workers and the tasks beside them share.
pub struct Services {
    pub config: Config,
    /// The metrics of the kubelet itself.
    pub metrics: Arc<Metrics>,
    /// The tracer of the kubelet's work, if it has a collector.
    pub tracer: Option<Tracer>,
    pub api: Api,
    pub runtime: ContainerRuntime,
    pub resources: NodeResources,
    pub volumes: VolumeSources,
    pub signals: Signals,
}

/// The kubelet's view of the API server.
pub struct Api {
    pub client: Client,
    pub events: Events,
    /// The Secrets and ConfigMaps of pods.
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
    /// Whether the kernel supports AppArmor profiles.
    pub apparmor: bool,
    /// The number of image pulls at the same time.
    pub pulls: Arc<Semaphore>,
}

/// The resources of the node that are allocated to pods.
pub struct NodeResources {
    /// The CPU manager.
    pub cpus: Cpus,
    /// The memory manager.
    pub memory: Memory,
    /// The topology manager.
    pub topology: Topology,
    /// The device manager.
    pub devices: Arc<Devices>,
    /// The manager of dynamic resources.
    pub claims: Arc<Claims>,
    pub cgroups: Cgroups,
    /// The node's allocatable resources.
    pub allocatable: RwLock<ResourceList>,
    pub memory_capacity: i64,
    /// The largest number of processes of one pod.
    pub pod_pids_limit: i64,
    /// The resources that are allocated to the node's pods.
    pub allocations: Allocations,
}

/// The sources of volumes that pods share.
pub struct VolumeSources {
    pub tokens: Tokens,
    /// The ids of pods in user namespaces.
    pub users: Users,
    /// CSI drivers and their volumes.
    pub csi: Arc<Csi>,
}

/// Signals between the tasks of the kubelet.
pub struct Signals {
    /// Wakes the workers of pods.
    pub wakers: Wakers,
    /// The pods that eviction, a shutdown or a preemption terminates.
    pub terminations: Terminations,
    /// The resources that the node is short of.
    pub pressure: watch::Sender<BTreeSet<Pressure>>,
    /// Whether the machine is about to shut down.
    pub shutting_down: watch::Sender<bool>,
}

impl NodeResources {
    /// Sets the CPU shares of the QoS classes' cgroups: the requests of their pods. Pods without requests get the rest.
    /// `root` is the cgroup of the kubelet.
    pub fn share_cpu(&self, root: &str) {
        let root = root.trim_end_matches('/');
        let burstable = self.allocations.burstable_cpu();
        for (class, milli) in [("burstable", burstable), ("besteffort", 0)] {
            self.cgroups.share(&format!("{root}/kubepods/{class}"), resources::shares(milli));
        }
    }

    /// Releases the CPUs, memory and devices of a pod.
    pub fn release(&self, uid: &str) {
        self.devices.release(uid);
        self.cpus.release(uid);
        self.memory.release(uid);
    }

    /// Returns the node's current allocatable resources, including the devices of plugins.
    pub fn allocatable(&self) -> ResourceList {
        let mut list = self.allocatable.read().unwrap_or_else(PoisonError::into_inner).clone();
        let devices = self.devices.counts().borrow().allocatable.clone();
        list.extend(devices.into_iter().map(|(name, count)| (name, Quantity(count.to_string()))));
        list
    }
}
