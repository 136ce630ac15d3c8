//! Warnings for the author of a Service: deprecated fields, and fields without effect in its type.

use corten_meta::Value;

use crate::address_warnings::{cidr, ip};
use crate::cells::{list, text};
use crate::check::At;

const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";

pub(super) fn warnings(service: &Value) -> Vec<String> {
    let is = |pointer: &str, value: &str| text(service, pointer) == value;
    let external_ips = !list(service, "/spec/externalIPs").is_empty();
    let external_name = is("/spec/type", "ExternalName");
    let headless = is("/spec/type", "ClusterIP") && is("/spec/clusterIP", "None");
    let hints = service.pointer("/metadata/annotations").is_some_and(|a| a.get(TOPOLOGY_HINTS).is_some());
    let spec = At::object(service).get("spec");
    let mut out = Vec::new();
    let say = |applies: bool, warning: &str| applies.then(|| warning.to_owned());
    out.extend(say(
        hints,
        "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
    ));
    if !headless && !external_name {
        spec.get("clusterIPs").items().for_each(|address| ip(&address, &mut out));
    }
    out.extend(say(
        headless && !is("/spec/loadBalancerIP", ""),
        "spec.loadBalancerIP is ignored for headless services",
    ));
    out.extend(say(headless && external_ips, "spec.externalIPs is ignored for headless services"));
    let is_affine = headless && !is("/spec/sessionAffinity", "None");
    out.extend(say(is_affine, "spec.SessionAffinity is ignored for headless services"));
    spec.get("externalIPs").items().for_each(|address| ip(&address, &mut out));
    out.extend(say(
        external_ips && !headless && !external_name,
        "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
    ));
    ip(&spec.get("loadBalancerIP"), &mut out);
    spec.get("loadBalancerSourceRanges").items().for_each(|network| cidr(&network, &mut out));
    let is_ignored = external_ips && external_name;
    out.extend(say(is_ignored, "spec.externalIPs is ignored when spec.type is \"ExternalName\""));
    let is_ignored = !external_name && !is("/spec/externalName", "");
    out.extend(say(is_ignored, "spec.externalName is ignored when spec.type is not \"ExternalName\""));
    out.extend(say(
        is("/spec/trafficDistribution", "PreferClose"),
        "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
    ));
    out
}
