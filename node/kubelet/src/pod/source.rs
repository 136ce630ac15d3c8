//! The source of a pod: the API, or a manifest of the node.

use corten_api::k8s_openapi::api::core::v1::Pod;

/// Annotations of pods that come from a manifest, and of their mirrors.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// Returns whether the pod comes from a file of this node.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|source| source != "api")
}

/// Returns whether the pod is the mirror of a static pod.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

pub fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}
