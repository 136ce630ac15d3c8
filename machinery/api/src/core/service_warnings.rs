//! What the author of a Service is warned of: fields that are old, and fields that do nothing in its type.

use corten_meta::Value;

use crate::cells::{list, text};

const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";

pub(super) fn warnings(service: &Value) -> Vec<String> {
    let is = |pointer: &str, value: &str| text(service, pointer) == value;
    let external_ips = !list(service, "/spec/externalIPs").is_empty();
    let external_name = is("/spec/type", "ExternalName");
    let headless = is("/spec/type", "ClusterIP") && is("/spec/clusterIP", "None");
    let hints = service.pointer("/metadata/annotations").is_some_and(|a| a.get(TOPOLOGY_HINTS).is_some());
    let cases = [
        (
            hints,
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
        ),
        (headless && !is("/spec/loadBalancerIP", ""), "spec.loadBalancerIP is ignored for headless services"),
        (headless && external_ips, "spec.externalIPs is ignored for headless services"),
        (headless && !is("/spec/sessionAffinity", "None"), "spec.SessionAffinity is ignored for headless services"),
        (
            external_ips && !headless && !external_name,
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
        ),
        (external_ips && external_name, "spec.externalIPs is ignored when spec.type is \"ExternalName\""),
        (
            !external_name && !is("/spec/externalName", ""),
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        ),
        (
            is("/spec/trafficDistribution", "PreferClose"),
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
        ),
    ];
    cases.into_iter().filter(|(applies, _)| *applies).map(|(_, warning)| warning.to_string()).collect()
}
