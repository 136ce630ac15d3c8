//! The devices of containers for the pod resources API.

use corten_plugins::pod_resources as api;

impl super::Devices {
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
