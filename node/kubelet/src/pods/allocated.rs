//! The resources that the node has allocated to a pod, which differ from its spec while a resize is pending.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::ResourceRequirements;

/// The resources that the node has allocated to a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocated {
    /// The pod-level resources, if there are any.
    pub pod_level: Option<ResourceRequirements>,
    /// The resources of each container, by name.
    pub containers: BTreeMap<String, ResourceRequirements>,
}
