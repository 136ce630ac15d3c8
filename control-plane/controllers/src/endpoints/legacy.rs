//! Endpoints: the older, single-object form of a Service's endpoints, which many clients still read.
//!
//! It never contains terminating pods, and it is truncated at a thousand addresses.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use corten_meta::Key;
use jiff::Timestamp;

use super::{
    HEADLESS_LABEL, Port, hostname, is_headless, last_change, may_serve, pod_ips, ports, publishes_not_ready,
    selected_pods, selector, services_of_pod, target_ref, tell_last_change,
};
use crate::runtime::{Action, Controller, Plan, View, Watch};
use crate::workload::pods;

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const MAX_ADDRESSES: usize = 1000;

pub struct EndpointsController;

pub struct Observed {
    service: Option<Service>,
    pods: Vec<Pod>,
    current: Option<Endpoints>,
}

impl Controller for EndpointsController {
    type Observed = Observed;

    const NAME: &'static str = "endpoint-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Service>(), Watch::own::<Endpoints>(), Watch::mapped::<Pod>(services_of_pod)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let service: Option<Service> = view.typed(key);
        let current: Option<Endpoints> = view.typed(key);
        let Some(service) = service else { return Some(Observed { service: None, pods: Vec::new(), current }) };
        let pods = selected_pods(view, &key.namespace, selector(service.spec.as_ref()?)?);
        Some(Observed { service: Some(service), pods, current })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let Some(service) = &observed.service else {
            let ours = |endpoints: &&Endpoints| {
                endpoints.metadata.labels.as_ref().is_some_and(|l| l.get(MANAGED_BY).is_some_and(|by| by == MANAGER))
            };
            return observed.current.as_ref().filter(ours).map(Action::delete).map(Plan::from).unwrap_or_default();
        };
        let mut wanted = desired(service, &observed.pods);
        let Some(current) = &observed.current else {
            let time = last_change(observed.pods.iter().filter(|pod| is_in(&wanted, pod)), Some(service));
            tell_last_change(&mut wanted.metadata.annotations, time);
            return Plan::from(Action::create(&wanted));
        };
        let same = current.subsets.as_deref().unwrap_or_default() == wanted.subsets.as_deref().unwrap_or_default();
        let capacity = |endpoints: &Endpoints| {
            endpoints.metadata.annotations.as_ref().and_then(|all| all.get(OVER_CAPACITY).cloned())
        };
        if same && current.metadata.labels == wanted.metadata.labels && capacity(current) == capacity(&wanted) {
            return Plan::nothing();
        }
        let mut updated = current.clone();
        let changed = observed.pods.iter().filter(|pod| address_of(current, pod) != address_of(&wanted, pod));
        let time = last_change(changed.filter(|pod| is_in(&wanted, pod)), None);
        updated.subsets = wanted.subsets;
        updated.metadata.labels = wanted.metadata.labels;
        let annotations = updated.metadata.annotations.get_or_insert_default();
        annotations.remove(OVER_CAPACITY);
        annotations.extend(wanted.metadata.annotations.unwrap_or_default());
        tell_last_change(&mut updated.metadata.annotations, time);
        Plan::from(Action::update(&updated))
    }
}

/// Returns the pod's address in the Endpoints, and whether it is listed as ready.
fn address_of<'a>(endpoints: &'a Endpoints, pod: &Pod) -> Option<(bool, &'a EndpointAddress)> {
    let of_pod = |address: &&EndpointAddress| {
        address.target_ref.as_ref().is_some_and(|target| target.uid.is_some() && target.uid == pod.metadata.uid)
    };
    let in_subset = |subset: &'a EndpointSubset| {
        let ready = subset.addresses.iter().flatten().find(of_pod).map(|address| (true, address));
        ready.or_else(|| subset.not_ready_addresses.iter().flatten().find(of_pod).map(|address| (false, address)))
    };
    endpoints.subsets.iter().flatten().find_map(in_subset)
}

fn is_in(endpoints: &Endpoints, pod: &Pod) -> bool {
    address_of(endpoints, pod).is_some()
}

fn desired(service: &Service, pods: &[Pod]) -> Endpoints {
    let family_v6 =
        service.spec.as_ref().and_then(|spec| spec.ip_families.as_ref()?.first()).is_some_and(|f| f == "IPv6");
    let mut by_ports: BTreeMap<Vec<Port>, Vec<(bool, EndpointAddress)>> = BTreeMap::new();
    let all = publishes_not_ready(service);
    for pod in pods.iter().filter(|pod| may_serve(pod) && (all || !pods::is_terminating(pod))) {
        let Some(ip) = pod_ips(pod).into_iter().find(|ip| ip.contains(':') == family_v6) else { continue };
        let address = EndpointAddress {
            ip,
            hostname: hostname(pod, service),
            node_name: Some(pods::node_name(pod).to_owned()).filter(|name| !name.is_empty()),
            target_ref: Some(target_ref(pod)),
        };
        by_ports.entry(ports(service, pod)).or_default().push((all || pods::is_ready(pod), address));
    }
    let cut = truncate(&mut by_ports);
    Endpoints {
        metadata: metadata(service, cut),
        subsets: Some(by_ports.into_iter().map(subset).collect::<Vec<_>>()).filter(|all| !all.is_empty()),
    }
}

/// Keeps a thousand addresses, ready ones first.
fn truncate(by_ports: &mut BTreeMap<Vec<Port>, Vec<(bool, EndpointAddress)>>) -> bool {
    let total: usize = by_ports.values().map(Vec::len).sum();
    let mut room = MAX_ADDRESSES;
    for addresses in by_ports.values_mut() {
        addresses.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.ip.cmp(&b.1.ip)));
        addresses.truncate(room);
        room -= addresses.len();
    }
    by_ports.retain(|_, addresses| !addresses.is_empty());
    total > MAX_ADDRESSES
}

fn subset((ports, addresses): (Vec<Port>, Vec<(bool, EndpointAddress)>)) -> EndpointSubset {
    let (ready, not_ready): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|(ready, _)| *ready);
    let plain = |list: Vec<(bool, EndpointAddress)>| -> Option<Vec<EndpointAddress>> {
        let addresses: Vec<EndpointAddress> = list.into_iter().map(|(_, address)| address).collect();
        Some(addresses).filter(|all| !all.is_empty())
    };
    let port = |port: Port| EndpointPort {
        name: Some(port.name).filter(|name| !name.is_empty()),
        port: port.port,
        protocol: Some(port.protocol),
        app_protocol: port.app_protocol,
    };
    let ports: Vec<EndpointPort> = ports.into_iter().map(port).collect();
    EndpointSubset {
        addresses: plain(ready),
        not_ready_addresses: plain(not_ready),
        ports: Some(ports).filter(|p| !p.is_empty()),
    }
}

fn metadata(service: &Service, truncated: bool) -> ObjectMeta {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    labels.remove(HEADLESS_LABEL);
    if service.spec.as_ref().is_some_and(is_headless) {
        labels.insert(HEADLESS_LABEL.to_owned(), String::new());
    }
    ObjectMeta {
        name: service.metadata.name.clone(),
        namespace: service.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: truncated.then(|| BTreeMap::from([(OVER_CAPACITY.to_owned(), "truncated".to_owned())])),
        ..ObjectMeta::default()
    }
}
