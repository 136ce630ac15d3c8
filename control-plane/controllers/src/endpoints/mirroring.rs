//! EndpointSlice mirroring: copies Endpoints that a user wrote for a Service without a selector to EndpointSlices.
//!
//! One slice per IP family and set of ports. The controller never writes slices of another manager, nor mirrors
//! Endpoints that opt out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use corten_api::k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use super::slices::{Group, MANAGED_BY, SERVICE_NAME, of_managed_slice, slice_ports};
use super::{LAST_CHANGE, Port};
use crate::metrics;
use crate::runtime::{Action, Controller, Count, Plan, ResourceType, View, Watch, decode};
use crate::workload::owner;

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER_RECORD: &str = "control-plane.alpha.kubernetes.io/leader";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The most addresses of one set of ports that are mirrored.
const MAX_ENDPOINTS: usize = 1000;

pub struct EndpointSliceMirroringController;

pub struct Observed {
    /// The Endpoints to mirror; none if there is nothing to mirror any more.
    endpoints: Option<Endpoints>,
    slices: Vec<EndpointSlice>,
}

impl Controller for EndpointSliceMirroringController {
    type Observed = Observed;

    const NAME: &'static str = "endpointslicemirroring-controller";
    const COMPONENT: &'static str = "endpoint-slice-mirroring-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Endpoints>(), Watch::own::<Service>(), Watch::mapped::<EndpointSlice>(of_slice)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let service: Option<Service> = view.typed(key);
        let selects = service.as_ref().is_none_or(|s| s.spec.as_ref().is_some_and(|spec| spec.selector.is_some()));
        let endpoints: Option<Endpoints> = view.typed(key).filter(|one| !selects && is_mirrored(one));
        let ours = |labels: &BTreeMap<String, String>| {
            labels.get(SERVICE_NAME) == Some(&key.name) && labels.get(MANAGED_BY).is_some_and(|by| by == MANAGER)
        };
        let all = view.labelled(ResourceType::of::<EndpointSlice>(), &key.namespace, (SERVICE_NAME, &key.name));
        let mut slices: Vec<EndpointSlice> =
            all.iter().filter(|slice| ours(&slice.header.labels)).filter_map(decode).collect();
        slices.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        Some(Observed { endpoints, slices })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let mut plan = Plan::nothing();
        let Some(endpoints) = &observed.endpoints else {
            plan.actions.extend(observed.slices.iter().map(Action::delete));
            return plan;
        };
        let mut wanted = desired(endpoints, &mut plan);
        count(&mut plan, observed, &wanted);
        let mut spare = Vec::new();
        for slice in &observed.slices {
            match wanted.remove(&(slice.address_type.clone(), slice_ports(slice))) {
                Some(fresh) => update(&mut plan, slice, fresh),
                None => spare.push(slice),
            }
        }
        for ((family, _), fresh) in wanted {
            // A slice that would be deleted is rewritten instead: one write, and proxies see no gap.
            match spare.iter().position(|slice| slice.address_type == family) {
                Some(place) => update(&mut plan, spare.remove(place), fresh),
                None if endpoints.metadata.deletion_timestamp.is_none() => plan.push(Action::create(&fresh)),
                None => {}
            }
        }
        plan.actions.extend(spare.into_iter().map(Action::delete));
        plan.count_changes(&metrics::MIRROR_CHANGES, ResourceType::of::<EndpointSlice>());
        plan.counts.push(Count::took(&metrics::MIRROR_SECONDS, []));
        plan
    }
}

/// Counts the changes of this reconcile, and the actual and desired slices.
fn count(plan: &mut Plan, observed: &Observed, wanted: &BTreeMap<Group, EndpointSlice>) {
    fn all<'a>(slices: impl Iterator<Item = &'a EndpointSlice>) -> BTreeMap<(String, Vec<Port>), &'a Endpoint> {
        let of = |slice: &'a EndpointSlice| {
            let place = move |one: &'a Endpoint| ((one.addresses.concat(), slice_ports(slice)), one);
            slice.endpoints.iter().flatten().map(place)
        };
        slices.flat_map(of).collect()
    }
    let (before, after) = (all(observed.slices.iter()), all(wanted.values()));
    let added = after.keys().filter(|place| !before.contains_key(*place)).count();
    let removed = before.keys().filter(|place| !after.contains_key(*place)).count();
    let updated = after.iter().filter(|(place, one)| before.get(*place).is_some_and(|old| old != *one)).count();
    for (family, number) in [
        (&metrics::MIRROR_ADDED, added),
        (&metrics::MIRROR_UPDATED, updated),
        (&metrics::MIRROR_REMOVED, removed),
        (&metrics::MIRROR_ENDPOINTS, after.len()),
        (&metrics::MIRROR_SLICES, wanted.len()),
        (&metrics::MIRROR_DESIRED, wanted.len()),
    ] {
        plan.count(family, [], number as f64);
    }
}

fn of_slice(_: &dyn View, change: &Change) -> Vec<Key> {
    of_managed_slice(change, MANAGER)
}

fn is_mirrored(endpoints: &Endpoints) -> bool {
    let skipped = endpoints.metadata.labels.as_ref().and_then(|all| all.get(SKIP_MIRROR)).is_some_and(|v| v == "true");
    let elects = endpoints.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(LEADER_RECORD));
    !skipped && !elects
}

/// Returns the desired slices; records an event for addresses that could not be mirrored.
fn desired(endpoints: &Endpoints, plan: &mut Plan) -> BTreeMap<Group, EndpointSlice> {
    let (mut invalid, mut beyond) = (0, 0);
    let mut wanted: BTreeMap<Group, BTreeMap<String, Endpoint>> = BTreeMap::new();
    let mut taken: BTreeMap<Vec<Port>, usize> = BTreeMap::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports = ports_of(subset);
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let rest = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        for (address, ready) in ready.chain(rest) {
            let Ok(ip) = address.ip.parse::<IpAddr>() else {
                invalid += 1;
                continue;
            };
            let count = taken.entry(ports.clone()).or_default();
            if *count >= MAX_ENDPOINTS {
                beyond += 1;
                continue;
            }
            *count += 1;
            let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
            let group = wanted.entry((family.to_owned(), ports.clone())).or_default();
            group.entry(identity(ip, address)).or_insert_with(|| endpoint(ip, address, ready));
        }
    }
    plan.count(&metrics::MIRROR_SKIPPED, [], f64::from(invalid + beyond));
    if invalid > 0 {
        let message = format!("Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices");
        plan.push(Action::warning(endpoints, "InvalidIPAddress", message));
    }
    if beyond > 0 {
        let message = format!(
            "A max of {MAX_ENDPOINTS} addresses can be mirrored to EndpointSlices per Endpoints subset. {} addresses were skipped",
            beyond + invalid
        );
        plan.push(Action::warning(endpoints, "TooManyAddressesToMirror", message));
    }
    let slice = |(group, list): (Group, BTreeMap<String, Endpoint>)| {
        let slice = new_slice(endpoints, &group, list.into_values().collect());
        (group, slice)
    };
    wanted.into_iter().map(slice).collect()
}

fn ports_of(subset: &EndpointSubset) -> Vec<Port> {
    let port = |port: &corten_api::k8s_openapi::api::core::v1::EndpointPort| Port {
        name: port.name.clone().unwrap_or_default(),
        port: port.port,
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        app_protocol: port.app_protocol.clone(),
    };
    let mut ports: Vec<Port> = subset.ports.iter().flatten().map(port).collect();
    ports.sort_unstable();
    ports
}

fn identity(ip: IpAddr, address: &EndpointAddress) -> String {
    let target = address.target_ref.as_ref().and_then(|target| target.uid.as_deref()).unwrap_or_default();
    format!("{ip}/{}/{target}", address.hostname.as_deref().unwrap_or_default())
}

fn endpoint(ip: IpAddr, address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

fn new_slice(endpoints: &Endpoints, (family, ports): &Group, list: Vec<Endpoint>) -> EndpointSlice {
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), endpoints.name().to_owned());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| key != LAST_CHANGE && key != LAST_APPLIED);
    let port = |port: &Port| EndpointPort {
        name: Some(port.name.clone()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone()),
        app_protocol: port.app_protocol.clone(),
    };
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", endpoints.name())),
            namespace: endpoints.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations).filter(|all| !all.is_empty()),
            owner_references: Some(vec![owner::controller_reference(endpoints)]),
            ..ObjectMeta::default()
        },
        address_type: family.clone(),
        endpoints: Some(list),
        ports: Some(ports.iter().map(port).collect()),
    }
}

fn update(plan: &mut Plan, slice: &EndpointSlice, fresh: EndpointSlice) {
    let mut updated = slice.clone();
    updated.endpoints = fresh.endpoints;
    updated.ports = fresh.ports;
    updated.metadata.labels = fresh.metadata.labels;
    updated.metadata.annotations = fresh.metadata.annotations;
    if updated != *slice {
        plan.push(Action::update(&updated));
    }
}
