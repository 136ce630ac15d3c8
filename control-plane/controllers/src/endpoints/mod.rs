//! The endpoints of a Service: EndpointSlices for the proxies, Endpoints for older clients.
//!
//! This module has the parts that both share: the pods of a Service and their ports. Neither controller writes
//! endpoints of a Service without a selector: they belong to the user.

mod legacy;
mod mirroring;
mod slices;
mod topology;

pub use legacy::EndpointsController;
pub use mirroring::EndpointSliceMirroringController;
pub use slices::EndpointSliceController;

use std::collections::BTreeMap;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{ContainerPort, ObjectReference, Pod, Service, ServicePort, ServiceSpec};
use corten_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use corten_client::Change;
use corten_meta::Key;

use crate::runtime::{ResourceType, View, decode, selector_of_service};
use crate::workload::pods;

/// The annotation with the time of the change that led to the current endpoints: programming latency is measured from
/// it.
const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// One port of an endpoint, resolved for a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    name: String,
    port: i32,
    protocol: String,
    app_protocol: Option<String>,
}

/// Returns the selector of a Service whose endpoints this controller manages.
fn selector(spec: &ServiceSpec) -> Option<&BTreeMap<String, String>> {
    let external = spec.type_.as_deref() == Some("ExternalName");
    spec.selector.as_ref().filter(|selector| !external && !selector.is_empty())
}

fn selects(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn is_headless(spec: &ServiceSpec) -> bool {
    spec.cluster_ip.as_deref() == Some("None")
}

/// Lists the pods a Service selects, by name, so that the order of a list never matters.
fn selected_pods(view: &dyn View, namespace: &str, selector: &BTreeMap<String, String>) -> Vec<Pod> {
    let Some((key, value)) = selector.iter().next() else { return Vec::new() };
    let objects = view.labelled(ResourceType::of::<Pod>(), namespace, (key, value));
    let mut pods: Vec<Pod> =
        objects.iter().filter(|pod| selects(selector, &pod.header.labels)).filter_map(decode).collect();
    pods.sort_unstable_by(|a, b| a.name().cmp(b.name()));
    pods
}

/// Returns the Services that select the pod, before or after the change.
fn services_of_pod(view: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys = Vec::new();
    for pod in [&change.old, &change.new].into_iter().flatten() {
        let labels = &pod.header.labels;
        let services = view.services_for(&change.key.namespace, labels);
        let selecting = services.iter().filter(|service| selects(&selector_of_service(service), labels));
        keys.extend(selecting.map(|service| service.key()));
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn pod_ips(pod: &Pod) -> Vec<String> {
    let Some(status) = &pod.status else { return Vec::new() };
    let all: Vec<String> = status.pod_ips.iter().flatten().map(|address| address.ip.clone()).collect();
    if all.is_empty() { status.pod_ip.iter().filter(|ip| !ip.is_empty()).cloned().collect() } else { all }
}

/// Returns the hostname of a pod whose subdomain is this Service.
fn hostname(pod: &Pod, service: &Service) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let subdomain = spec.subdomain.as_deref() == Some(service.name());
    spec.hostname.clone().filter(|name| subdomain && !name.is_empty())
}

fn target_ref(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// Returns the ports of a Service on this pod; a named port that the pod lacks is left out.
fn ports(service: &Service, pod: &Pod) -> Vec<Port> {
    let wanted = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let resolve = |port: &ServicePort| {
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        let number = match &port.target_port {
            None => port.port,
            Some(IntOrString::Int(0)) => port.port,
            Some(IntOrString::Int(number)) => *number,
            Some(IntOrString::String(name)) => named_port(pod, name, &protocol)?,
        };
        let name = port.name.clone().unwrap_or_default();
        Some(Port { name, port: number, protocol, app_protocol: port.app_protocol.clone() })
    };
    let mut ports: Vec<Port> = wanted.into_iter().flatten().filter_map(resolve).collect();
    ports.sort_unstable();
    ports
}

fn named_port(pod: &Pod, name: &str, protocol: &str) -> Option<i32> {
    let spec = pod.spec.as_ref()?;
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let matches = |port: &&ContainerPort| {
        port.name.as_deref() == Some(name) && port.protocol.as_deref().unwrap_or("TCP") == protocol
    };
    let mut all = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    all.find(matches).map(|port| port.container_port)
}

fn publishes_not_ready(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses).unwrap_or(false)
}

/// Returns the time of the last change: the earliest ready time of the pods that are new or changed, or the creation
/// time of the Service if it had no endpoints before. A deleted pod leaves no time.
fn last_change<'a>(changed: impl Iterator<Item = &'a Pod>, born: Option<&Service>) -> Option<String> {
    let ready = |pod: &'a Pod| pods::condition(pod, "Ready")?.last_transition_time.as_ref().map(|time| time.0);
    let born = born.and_then(|service| service.metadata.creation_timestamp.as_ref()).map(|time| time.0);
    changed.filter_map(ready).chain(born).min().map(corten_meta::time::rfc3339)
}

/// Sets or removes the annotation with the time of the last change.
fn tell_last_change(annotations: &mut Option<BTreeMap<String, String>>, time: Option<String>) {
    match time {
        Some(time) => {
            annotations.get_or_insert_default().insert(LAST_CHANGE.to_owned(), time);
        }
        None => {
            if let Some(all) = annotations {
                all.remove(LAST_CHANGE);
            }
        }
    }
    if annotations.as_ref().is_some_and(BTreeMap::is_empty) {
        *annotations = None;
    }
}

/// Reports whether a pod can be an endpoint: it has an IP and is not terminated.
fn may_serve(pod: &Pod) -> bool {
    !pods::is_terminal(pod) && !pod_ips(pod).is_empty()
}
