//! EndpointSlices: the endpoints of a Service in slices of at most a hundred, so that the change of one pod is a small
//! write.
//!
//! An endpoint stays in its slice; only changed slices are written. Slices of other managers are never written.

use std::collections::BTreeMap;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, Pod, Service};
use corten_api::k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use super::topology::{self, CpuByZone};
use super::{
    HEADLESS_LABEL, Port, hostname, is_headless, last_change, may_serve, pod_ips, ports, publishes_not_ready,
    selected_pods, selector, services_of_pod, target_ref, tell_last_change,
};
use crate::metrics;
use crate::runtime::{Action, Controller, Plan, RESULT, ResourceType, View, Watch};
use crate::workload::{owner, pods};

pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
const MAX_ENDPOINTS: usize = 100;

pub struct EndpointSliceController;

pub struct Observed {
    service: Service,
    pods: Vec<Pod>,
    slices: Vec<EndpointSlice>,
    /// The zones of the pods' nodes, by node.
    zones: BTreeMap<String, String>,
    /// For a Service that asks for topology aware routing, if enough is known of the nodes.
    cpus: Option<CpuByZone>,
}

/// The address type and the ports that all endpoints of a slice share.
pub(super) type Group = (String, Vec<Port>);

impl Controller for EndpointSliceController {
    type Observed = Observed;

    const NAME: &'static str = "endpointslice-controller";
    const COMPONENT: &'static str = "endpoint-slice-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<Service>(),
            Watch::mapped::<Pod>(services_of_pod),
            Watch::mapped::<EndpointSlice>(of_slice),
            Watch::mapped::<Node>(topology::services_of_node),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let service: Service = view.typed(key).filter(|s: &Service| s.metadata.deletion_timestamp.is_none())?;
        let pods = selected_pods(view, &key.namespace, selector(service.spec.as_ref()?)?);
        let ours = |labels: &BTreeMap<String, String>| {
            labels.get(SERVICE_NAME) == Some(&key.name) && labels.get(MANAGED_BY).map(String::as_str) == Some(MANAGER)
        };
        let slices = view.labelled(ResourceType::of::<EndpointSlice>(), &key.namespace, (SERVICE_NAME, &key.name));
        let mut slices: Vec<EndpointSlice> = slices
            .iter()
            .filter(|slice| ours(&slice.header.labels) && slice.header.deletion_timestamp.is_none())
            .filter_map(crate::runtime::decode)
            .collect();
        slices.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        let zone = |pod: &Pod| {
            let name = pods::node_name(pod).to_owned();
            let node = view.get(ResourceType::of::<Node>(), &Key { namespace: String::new(), name: name.clone() })?;
            Some((name, node.header.labels.get(ZONE)?.clone()))
        };
        let zones = pods.iter().filter_map(zone).collect();
        let cpus = if topology::is_wanted(&service) { topology::cpu_by_zone(view) } else { None };
        Some(Observed { service, pods, slices, zones, cpus })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let mut wanted = desired(observed);
        let sizes: Vec<usize> = wanted.values().map(BTreeMap::len).collect();
        let mut plan = Plan::nothing();
        let mut kept = 0;
        for slice in &observed.slices {
            let group = (slice.address_type.clone(), slice_ports(slice));
            match wanted.get_mut(&group) {
                Some(endpoints) => kept += usize::from(keep(&mut plan, observed, slice, endpoints)),
                None => plan.push(Action::delete(slice)),
            }
        }
        for (group, endpoints) in wanted {
            let endpoints: Vec<Endpoint> = endpoints.into_values().collect();
            for piece in endpoints.chunks(MAX_ENDPOINTS) {
                kept += 1;
                let mut slice = new_slice(&observed.service, &group, piece.to_vec());
                let born = Some(&observed.service).filter(|_| observed.slices.is_empty());
                tell_last_change(&mut slice.metadata.annotations, last_change(pods_of(observed, piece), born));
                plan.push(Action::create(&slice));
            }
        }
        if kept == 0 {
            leave_placeholder(&mut plan, observed);
        }
        count_sync(&mut plan, observed, &sizes);
        plan
    }
}

/// Counts the reconcile, and the Service's endpoints and slices; `sizes` are its endpoints by group.
fn count_sync(plan: &mut Plan, observed: &Observed, sizes: &[usize]) {
    let spec = observed.service.spec.as_ref();
    let distribution = spec.and_then(|spec| spec.traffic_distribution.as_deref()).unwrap_or_default();
    let (wanted, there): (usize, usize) =
        (sizes.iter().sum(), observed.slices.iter().filter_map(|slice| slice.endpoints.as_ref()).map(Vec::len).sum());
    plan.count(&metrics::SLICE_SYNCS, [RESULT], 1.0);
    plan.count(&metrics::SLICES, [], observed.slices.len() as f64);
    plan.count(&metrics::ENDPOINTS_DESIRED, [], wanted as f64);
    plan.count(
        &metrics::SLICES_DESIRED,
        [],
        sizes.iter().map(|size| size.div_ceil(MAX_ENDPOINTS)).sum::<usize>().max(1) as f64,
    );
    if !distribution.is_empty() {
        plan.count(&metrics::DISTRIBUTIONS, [distribution.into()], 1.0);
    }
    if !plan.is_empty() {
        plan.count(&metrics::ENDPOINTS_ADDED, [], wanted.saturating_sub(there) as f64);
        plan.count(&metrics::ENDPOINTS_REMOVED, [], there.saturating_sub(wanted) as f64);
        plan.count(&metrics::SLICES_PER_SYNC, ["Disabled".into(), distribution.into()], plan.actions.len() as f64);
        plan.count_changes(&metrics::SLICE_CHANGES, ResourceType::of::<EndpointSlice>());
    }
}

fn of_slice(_: &dyn View, change: &Change) -> Vec<Key> {
    of_managed_slice(change, MANAGER)
}

/// Returns the Service of a slice of this manager, before or after the change.
pub(super) fn of_managed_slice(change: &Change, manager: &str) -> Vec<Key> {
    let versions = [&change.old, &change.new].into_iter().flatten().map(|slice| &slice.header.labels);
    let managed = versions.filter(|labels| labels.get(MANAGED_BY).map(String::as_str) == Some(manager));
    let mut keys: Vec<Key> = managed
        .filter_map(|labels| labels.get(SERVICE_NAME))
        .map(|name| Key { namespace: change.key.namespace.clone(), name: name.clone() })
        .collect();
    keys.dedup();
    keys
}

/// Returns the desired endpoints, by group and by address.
fn desired(observed: &Observed) -> BTreeMap<Group, BTreeMap<String, Endpoint>> {
    let mut wanted: BTreeMap<Group, BTreeMap<String, Endpoint>> = BTreeMap::new();
    for pod in observed.pods.iter().filter(|pod| may_serve(pod)) {
        let ports = ports(&observed.service, pod);
        for family in families(&observed.service) {
            let is_v6 = family == "IPv6";
            let addresses: Vec<String> = pod_ips(pod).into_iter().filter(|ip| ip.contains(':') == is_v6).collect();
            if !addresses.is_empty() {
                let endpoint = endpoint(observed, pod, addresses);
                wanted.entry((family, ports.clone())).or_default().insert(identity(&endpoint), endpoint);
            }
        }
    }
    if topology::is_wanted(&observed.service) {
        for family in families(&observed.service) {
            let own = wanted.iter_mut().filter(|((known, _), _)| *known == family);
            let mut endpoints: Vec<&mut Endpoint> = own.flat_map(|(_, endpoints)| endpoints.values_mut()).collect();
            topology::give_hints(&mut endpoints, observed.cpus.as_ref());
        }
    }
    wanted
}

fn families(service: &Service) -> Vec<String> {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.clone()).unwrap_or_default();
    if families.is_empty() { vec!["IPv4".to_owned()] } else { families }
}

fn identity(endpoint: &Endpoint) -> String {
    let target = endpoint.target_ref.as_ref();
    let name = target.and_then(|target| target.name.as_deref()).unwrap_or_default();
    format!("{name}/{}", target.and_then(|target| target.uid.as_deref()).unwrap_or_default())
}

fn endpoint(observed: &Observed, pod: &Pod, addresses: Vec<String>) -> Endpoint {
    let (serving, terminating) = (pods::is_ready(pod), pods::is_terminating(pod));
    let ready = publishes_not_ready(&observed.service) || (serving && !terminating);
    let node_name = Some(pods::node_name(pod).to_owned()).filter(|name| !name.is_empty());
    let zone = node_name.as_ref().and_then(|node| observed.zones.get(node)).cloned();
    Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hints: hints(&observed.service, zone.as_deref(), node_name.as_deref()).filter(|_| ready),
        hostname: hostname(pod, &observed.service),
        node_name,
        target_ref: Some(target_ref(pod)),
        zone,
        ..Endpoint::default()
    }
}

/// Returns the hints for topology-aware traffic.
fn hints(service: &Service, zone: Option<&str>, node: Option<&str>) -> Option<EndpointHints> {
    let for_zones = || zone.map(|zone| vec![ForZone { name: zone.to_owned() }]);
    match service.spec.as_ref()?.traffic_distribution.as_deref()? {
        "PreferClose" | "PreferSameZone" => zone.map(|_| EndpointHints { for_zones: for_zones(), for_nodes: None }),
        "PreferSameNode" => {
            let for_nodes = node.map(|node| vec![ForNode { name: node.to_owned() }]);
            Some(EndpointHints { for_zones: for_zones(), for_nodes })
        }
        _ => None,
    }
}

/// Returns the pods behind endpoints.
fn pods_of<'a>(observed: &'a Observed, endpoints: &'a [Endpoint]) -> impl Iterator<Item = &'a Pod> {
    let uid = |endpoint: &'a Endpoint| endpoint.target_ref.as_ref()?.uid.as_ref();
    observed
        .pods
        .iter()
        .filter(move |pod| endpoints.iter().filter_map(uid).any(|one| Some(one) == pod.metadata.uid.as_ref()))
}

/// Updates one slice: keeps its endpoints and fills free space; deletes an empty one. Reports whether it stays.
fn keep(plan: &mut Plan, observed: &Observed, slice: &EndpointSlice, wanted: &mut BTreeMap<String, Endpoint>) -> bool {
    let present = slice.endpoints.iter().flatten();
    let mut endpoints: Vec<Endpoint> = present.filter_map(|endpoint| wanted.remove(&identity(endpoint))).collect();
    while endpoints.len() < MAX_ENDPOINTS {
        match wanted.pop_first() {
            Some((_, endpoint)) => endpoints.push(endpoint),
            None => break,
        }
    }
    if endpoints.is_empty() {
        plan.push(Action::delete(slice));
        return false;
    }
    let fresh = new_slice(&observed.service, &(slice.address_type.clone(), slice_ports(slice)), endpoints);
    if slice.endpoints != fresh.endpoints || slice.metadata.labels != fresh.metadata.labels {
        let mut updated = slice.clone();
        let before = slice.endpoints.as_deref().unwrap_or_default();
        let changed: Vec<Endpoint> =
            fresh.endpoints.iter().flatten().filter(|endpoint| !before.contains(endpoint)).cloned().collect();
        tell_last_change(&mut updated.metadata.annotations, last_change(pods_of(observed, &changed), None));
        updated.endpoints = fresh.endpoints;
        updated.metadata.labels = fresh.metadata.labels;
        plan.push(Action::update(&updated));
    }
    true
}

/// Keeps one empty slice per IP family for a Service without endpoints, so that a proxy can distinguish "none" from
/// "unknown".
fn leave_placeholder(plan: &mut Plan, observed: &Observed) {
    for family in families(&observed.service) {
        let mut fresh = new_slice(&observed.service, &(family.clone(), Vec::new()), Vec::new());
        let present = observed.slices.iter().find(|slice| slice.address_type == family);
        let Some(slice) = present else {
            let born = Some(&observed.service).filter(|_| observed.slices.is_empty());
            tell_last_change(&mut fresh.metadata.annotations, last_change(std::iter::empty(), born));
            plan.push(Action::create(&fresh));
            continue;
        };
        let deletion = Action::delete(slice);
        plan.actions.retain(|action| *action != deletion);
        let empty = slice.endpoints.iter().flatten().next().is_none() && slice.ports.iter().flatten().next().is_none();
        if !empty || slice.metadata.labels != fresh.metadata.labels {
            let mut updated = slice.clone();
            (updated.endpoints, updated.ports) = (fresh.endpoints, fresh.ports);
            updated.metadata.labels = fresh.metadata.labels;
            plan.push(Action::update(&updated));
        }
    }
}

pub(super) fn slice_ports(slice: &EndpointSlice) -> Vec<Port> {
    let port = |port: &EndpointPort| Port {
        name: port.name.clone().unwrap_or_default(),
        port: port.port.unwrap_or(0),
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        app_protocol: port.app_protocol.clone(),
    };
    let mut ports: Vec<Port> = slice.ports.iter().flatten().map(port).collect();
    ports.sort_unstable();
    ports
}

fn new_slice(service: &Service, (family, ports): &Group, endpoints: Vec<Endpoint>) -> EndpointSlice {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS_LABEL);
    labels.insert(SERVICE_NAME.to_owned(), service.name().to_owned());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if service.spec.as_ref().is_some_and(is_headless) {
        labels.insert(HEADLESS_LABEL.to_owned(), String::new());
    }
    let port = |port: &Port| EndpointPort {
        name: Some(port.name.clone()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone()),
        app_protocol: port.app_protocol.clone(),
    };
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", service.name())),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![owner::controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: family.clone(),
        endpoints: Some(endpoints),
        ports: Some(ports.iter().map(port).collect()),
    }
}
