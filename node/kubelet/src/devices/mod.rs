//! The device manager (device plugins v1beta1): the devices of plugins, their allocation to pods, and the container
//! parts that plugins return for them. `registration` talks to the plugins, `checkpoint` persists the allocations,
//! `choose` decides purely, `shown` shows them to monitoring agents and in the statuses of containers.
//!
//! Invariant: a device is allocated to one container at a time; only an init container's devices are reused, by a later
//! container of the same pod. An allocation is in the checkpoint before it is used.

pub(crate) mod checkpoint;
mod choose;
mod registration;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corten_api::k8s_openapi::api::core::v1::{Container, Pod};
use corten_plugins::device_plugin as plugin;
use corten_plugins::device_plugin::device_plugin_client::DevicePluginClient;
use prost::Message;
use tokio::sync::watch;
use tonic::transport::Channel;

pub use choose::Candidates;
pub use registration::{VERSION, follow, run};

use crate::container::plugin_parts::PluginParts;
use crate::error::{Error, Result};
use crate::metrics::{self, Metrics};
use crate::numa::{Hint, Nodes};
use crate::pod::resources;
use crate::pod::spec;
use crate::pod::wakers::Wakers;

/// The time limit of a plugin's answer about one container.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The number of devices of each resource, and of the healthy ones among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub capacity: BTreeMap<String, i64>,
    pub allocatable: BTreeMap<String, i64>,
}

pub struct Devices {
    directory: PathBuf,
    state: Mutex<State>,
    counts: watch::Sender<Counts>,
    metrics: Arc<Metrics>,
    wakers: Wakers,
}

#[derive(Default)]
struct State {
    resources: BTreeMap<String, Resource>,
    allocations: checkpoint::DeviceAllocations,
}

/// The devices of one resource.
#[derive(Default)]
struct Resource {
    devices: BTreeMap<String, Device>,
    endpoint: Option<Endpoint>,
    /// The number of the registration, so that the end of an earlier plugin does not affect a later one's devices.
    registration: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Device {
    healthy: bool,
    numa_nodes: BTreeSet<i64>,
}

/// A plugin that answers.
#[derive(Clone)]
struct Endpoint {
    client: DevicePluginClient<Channel>,
    options: plugin::DevicePluginOptions,
}

fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

impl Devices {
    /// Reads the checkpoint of an earlier kubelet. Its resources have no devices until their plugins register again.
    pub fn new(root_dir: &Path, metrics: Arc<Metrics>, wakers: Wakers) -> Devices {
        let directory = root_dir.join("device-plugins");
        let (allocations, names) = checkpoint::read(&directory);
        let resources = names.into_iter().map(|name| (name, Resource::default())).collect();
        let state = State { resources, allocations };
        Devices { directory, counts: watch::channel(state.counts()).0, state: Mutex::new(state), metrics, wakers }
    }

    pub fn counts(&self) -> watch::Receiver<Counts> {
        self.counts.subscribe()
    }

    /// Allocates the container's devices, from the NUMA nodes of the hint as far as they have them. A container that
    /// has its devices keeps them.
    pub async fn allocate(&self, pod: &Pod, container: &Container, nodes: Option<Nodes>) -> Result<()> {
        let wanted = self.wanted(pod, container);
        for (resource, wanted) in &wanted {
            self.allocate_resource(pod, &container.name, resource, *wanted, nodes).await?;
        }
        if wanted.is_empty() { Ok(()) } else { self.save() }
    }

    /// Returns the number of devices of each plugin's resource that a container requests.
    fn wanted(&self, pod: &Pod, container: &Container) -> BTreeMap<String, usize> {
        let state = self.lock();
        let limits = resources::limits(container).into_iter().flatten();
        let known = limits.filter(|(name, _)| state.resources.contains_key(*name));
        let own = known.filter(|(name, _)| !resources::is_claimed(pod, &container.name, name));
        own.filter_map(|(name, quantity)| Some((name.clone(), usize::try_from(resources::value(quantity)).ok()?)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    /// Returns the NUMA nodes that could provide the devices of the container, or of all containers of the pod.
    pub fn hints(&self, pod: &Pod, container: Option<&Container>, all: Nodes) -> Vec<Vec<Hint>> {
        let wanted = match container {
            Some(container) => self.wanted(pod, container),
            None => self.wanted_by_pod(pod),
        };
        let state = self.lock();
        let cares = |resource: &Resource| resource.devices.values().any(|device| !device.numa_nodes.is_empty());
        let own = wanted.iter().filter_map(|(name, count)| Some((name, *count, state.resources.get(name)?)));
        own.filter(|(_, _, resource)| cares(resource))
            .map(|(name, count, resource)| {
                let again = state.allocations.reusable(pod, name);
                choose::hints(&resource.devices, &state.allocations.in_use(name), &again, count, all)
            })
            .collect()
    }

    /// Returns the largest number of devices of each resource that the pod needs at any one time.
    fn wanted_by_pod(&self, pod: &Pod) -> BTreeMap<String, usize> {
        let known: BTreeSet<String> = self.lock().resources.keys().cloned().collect();
        let requests = resources::pod_requests(&resources::without_claimed(pod))
            .into_iter()
            .filter(|(name, _)| known.contains(name));
        requests
            .filter_map(|(name, count)| Some((name, usize::try_from(count).ok().filter(|count| *count > 0)?)))
            .collect()
    }

    /// Reports whether the pod requests a resource of a plugin.
    pub fn concerns(&self, pod: &Pod) -> bool {
        let known: BTreeSet<String> = self.lock().resources.keys().cloned().collect();
        let mut containers = spec::containers(pod);
        containers.any(|declared| {
            resources::limits(&declared.container).is_some_and(|list| list.keys().any(|name| known.contains(name)))
        })
    }

    async fn allocate_resource(
        &self,
        pod: &Pod,
        container: &str,
        resource: &str,
        wanted: usize,
        nodes: Option<Nodes>,
    ) -> Result<()> {
        let (candidates, near, endpoint) = {
            let state = self.lock();
            if state.allocations.of(spec::uid(pod), container, resource).is_some() {
                return Ok(());
            }
            let reusable = state.allocations.reusable(pod, resource);
            let entry = state.resources.get(resource);
            let healthy = entry.into_iter().flat_map(|entry| &entry.devices).filter(|(_, device)| device.healthy);
            let healthy: BTreeSet<String> = healthy.map(|(id, _)| id.clone()).collect();
            let candidates =
                choose::candidates(resource, wanted, &healthy, &state.allocations.in_use(resource), &reusable)?;
            let near = choose::near(&candidates, entry.map(|entry| &entry.devices), nodes);
            (candidates, near, entry.and_then(|entry| entry.endpoint.clone()))
        };
        let endpoint = endpoint.ok_or_else(|| Error::pod(format!("unknown Device Plugin {resource}")))?;
        let devices = choose::choose(&candidates, &near, &endpoint.preferred(&candidates, &near).await?);
        let begun = Instant::now();
        let answer = endpoint.allocate(&devices).await?;
        self.metrics.observe(&metrics::DEVICE_SECONDS, &[resource], begun.elapsed());
        let device_allocation = checkpoint::DeviceAllocation { devices, answer: answer.encode_to_vec() };
        self.lock().allocations.insert(spec::uid(pod), container, resource, device_allocation);
        Ok(())
    }

    /// Returns the parts that plugins add to the container; calls `PreStartContainer` where a plugin needs it.
    pub async fn plugin_parts(&self, pod: &Pod, container: &str) -> Result<PluginParts> {
        let device_allocations = self.lock().allocations.of_container(spec::uid(pod), container);
        let mut parts = PluginParts::default();
        for (resource, device_allocation) in device_allocations {
            let endpoint = self.lock().resources.get(&resource).and_then(|known| known.endpoint.clone());
            if let Some(endpoint) = endpoint {
                endpoint.about_to_start(&device_allocation.devices).await?;
            }
            let answer = plugin::ContainerAllocateResponse::decode(device_allocation.answer.as_slice());
            parts.add(&answer.map_err(|error| Error::pod(format!("what plugin {resource} gave is lost: {error}")))?);
        }
        Ok(parts)
    }

    /// Releases the devices of a terminated pod.
    pub fn release(&self, pod_uid: &str) {
        let had = self.lock().allocations.remove(pod_uid);
        if had && let Err(error) = self.save() {
            tracing::warn!(%error, "released devices are still in the checkpoint");
        }
    }

    /// Releases the devices of pods that no longer exist.
    pub fn retain(&self, is_known: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.lock().allocations.pods().into_iter().filter(|uid| !is_known(uid)).collect();
        gone.iter().for_each(|uid| self.release(uid));
    }

    fn save(&self) -> Result<()> {
        let state = self.lock();
        checkpoint::write(&self.directory, &state.allocations, state.resources.keys())
    }

    fn publish(&self, state: &State) {
        let counts = state.counts();
        self.counts.send_if_modified(|known| {
            let changed = *known != counts;
            *known = counts;
            changed
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (name, resource) in &self.resources {
            let all = i64::try_from(resource.devices.len()).unwrap_or(i64::MAX);
            let healthy = resource.devices.values().filter(|device| device.healthy).count();
            counts.capacity.insert(name.clone(), all);
            counts.allocatable.insert(name.clone(), i64::try_from(healthy).unwrap_or(i64::MAX));
        }
        counts
    }
}

impl Endpoint {
    /// Returns the devices that the plugin prefers; none if it has no preference.
    async fn preferred(&self, candidates: &Candidates, near: &BTreeSet<String>) -> Result<BTreeSet<String>> {
        if !self.options.get_preferred_allocation_available {
            return Ok(BTreeSet::new());
        }
        // If the near devices suffice, the plugin chooses among them.
        let among =
            if candidates.reused.len() + near.len() >= candidates.wanted { near } else { &candidates.available };
        let request = plugin::ContainerPreferredAllocationRequest {
            available_device_i_ds: among.union(&candidates.reused).cloned().collect(),
            must_include_device_i_ds: candidates.reused.iter().cloned().collect(),
            allocation_size: i32::try_from(candidates.wanted).unwrap_or(i32::MAX),
        };
        let request = plugin::PreferredAllocationRequest { container_requests: vec![request] };
        let answer = self.client.clone().get_preferred_allocation(timed(request)).await.map_err(|status| {
            Error::pod(format!("device plugin GetPreferredAllocation rpc failed with err: {}", status.message()))
        })?;
        let mut containers = answer.into_inner().container_responses.into_iter();
        Ok(containers.next().into_iter().flat_map(|answer| answer.device_i_ds).collect())
    }

    async fn allocate(&self, devices: &BTreeSet<String>) -> Result<plugin::ContainerAllocateResponse> {
        let container = plugin::ContainerAllocateRequest { devices_ids: devices.iter().cloned().collect() };
        let request = plugin::AllocateRequest { container_requests: vec![container] };
        let answer = self.client.clone().allocate(timed(request)).await?.into_inner();
        let first = answer.container_responses.into_iter().next();
        first.ok_or_else(|| Error::pod("no containers return in allocation response"))
    }

    async fn about_to_start(&self, devices: &BTreeSet<String>) -> Result<()> {
        if !self.options.pre_start_required {
            return Ok(());
        }
        let request = plugin::PreStartContainerRequest { devices_ids: devices.iter().cloned().collect() };
        self.client.clone().pre_start_container(timed(request)).await.map(drop).map_err(|status| {
            Error::pod(format!("device plugin PreStartContainer rpc failed with err: {}", status.message()))
        })
    }
}
