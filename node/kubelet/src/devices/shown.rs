//! The devices of containers: for the pod resources API, and their health for the statuses of pods.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::{ResourceHealth, ResourceStatus};
use corten_plugins::pod_resources as api;

use super::Device;

/// Reports whether a device is healthy, as upstream does: one that no plugin has named yet is.
pub fn is_healthy(devices: &BTreeMap<String, Device>, id: &str) -> bool {
    devices.get(id).is_none_or(|device| device.healthy)
}

impl super::Devices {
    /// Returns the health of the container's devices, as its status shows it.
    pub fn health(&self, pod_uid: &str, container: &str) -> Vec<ResourceStatus> {
        let state = self.lock();
        let own = state.allocations.of_container(pod_uid, container).into_iter();
        own.map(|(resource, allotment)| state.health(resource, allotment.devices.into_iter())).collect()
    }

    pub fn shown(&self, pod_uid: &str, container: &str) -> Vec<api::ContainerDevices> {
        let state = self.lock();
        let own = state.allocations.of_container(pod_uid, container).into_iter();
        own.map(|(resource, allotment)| state.show(&resource, allotment.devices.into_iter().collect())).collect()
    }

    /// Returns all devices of the node.
    pub fn all_shown(&self) -> Vec<api::ContainerDevices> {
        let state = self.lock();
        let each = state.resources.iter().map(|(name, resource)| (name, resource.devices.keys().cloned().collect()));
        each.map(|(name, ids)| state.show(name, ids)).collect()
    }
}

impl super::State {
    fn health(&self, resource: String, ids: impl Iterator<Item = String>) -> ResourceStatus {
        let none = BTreeMap::new();
        let devices = self.resources.get(&resource).map_or(&none, |known| &known.devices);
        let shown = ids.map(|id| {
            let health = if is_healthy(devices, &id) { "Healthy" } else { "Unhealthy" };
            ResourceHealth { health: Some(health.to_owned()), message: None, resource_id: id }
        });
        let resources = Some(shown.collect());
        ResourceStatus { name: resource, resources }
    }

    fn show(&self, resource: &str, device_ids: Vec<String>) -> api::ContainerDevices {
        let known = self.resources.get(resource);
        let nodes: std::collections::BTreeSet<i64> = device_ids
            .iter()
            .filter_map(|id| known?.devices.get(id))
            .flat_map(|device| device.numa_nodes.iter().copied())
            .collect();
        let topology = (!nodes.is_empty())
            .then(|| api::TopologyInfo { nodes: nodes.into_iter().map(|id| api::NumaNode { id }).collect() });
        api::ContainerDevices { resource_name: resource.to_owned(), device_ids, topology }
    }
}
