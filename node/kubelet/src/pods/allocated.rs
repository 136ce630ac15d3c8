//! The resources that the node has allocated to a pod, which differ from its spec while a resize is pending.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::ResourceRequirements;

/// The resources that the node has allocated to a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocated {
    /// The pod as a whole, if it has resources of its own.
    pub pod_level: Option<ResourceRequirements>,
    /// Each container, by name.
    pub containers: BTreeMap<String, ResourceRequirements>,
}
