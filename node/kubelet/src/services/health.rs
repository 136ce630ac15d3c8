//! The health of the devices that containers have: those of device plugins, and those of claims.

use std::collections::HashMap;

use corten_api::k8s_openapi::api::core::v1::{Pod, ResourceStatus};

use super::NodeResources;
use crate::pod::spec;

impl NodeResources {
    /// Returns the health of the devices of the main containers, by container name.
    pub fn device_health(&self, pod: &Pod) -> HashMap<String, Vec<ResourceStatus>> {
        let mut found = HashMap::new();
        for container in &spec::spec(pod).containers {
            let mut statuses = self.devices.health(spec::uid(pod), &container.name);
            statuses.extend(self.claims.device_health(pod, container));
            if !statuses.is_empty() {
                found.insert(container.name.clone(), statuses);
            }
        }
        found
    }
}
