//! Assigns addresses to Services of type LoadBalancer in clusters without a cloud provider.
//!
//! Either an address of a pool, which the nodes announce: the pool of the configuration and the AddressPools. Or the
//! nodes' own addresses, for small clusters: every Ready node serves the Service's ports itself. Without either a
//! Service would stay pending forever.
//!
//! The finalizer is added before the first address is assigned, and removed after the addresses were, as upstream's
//! service controller does.
//!
//! Invariant: no port is taken that a node itself needs, and no address and port is given to two Services. The older
//! Service keeps its own. A Service keeps its addresses as long as they are valid.

mod allocation;
mod nodes;
mod pools;
mod request;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

pub use corten_api::AddressRange;
use corten_api::k8s_openapi::api::core::v1::{Namespace, Node, Service};
use corten_api::k8s_openapi::api::discovery::v1::EndpointSlice;
use corten_api::{ADDRESS_POOLS, AddressPool, LOAD_BALANCER_CLASS, NETWORK_GROUP, NETWORK_VERSION, Typed};
use corten_client::Change;
use corten_meta::{Key, Object, Value};
use jiff::Timestamp;
use serde_json::json;

use crate::runtime::{Action, Controller, Plan, ResourceType, View, Watch, key_of};
pub use pools::AddressPoolController;

const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The finalizer by which a Service outlives its deletion until its load balancer is deleted.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// The type of the condition of a Service without an address.
const CONDITION: &str = "network.corten.dev/AddressAssigned";
/// The name of the pool of the configuration, in messages.
const CONFIGURED_POOL: &str = "--load-balancer-pool";

/// The resource type of AddressPools.
const POOLS: ResourceType = ResourceType {
    group: NETWORK_GROUP,
    version: NETWORK_VERSION,
    kind: "AddressPool",
    plural: ADDRESS_POOLS,
    namespaced: false,
};

/// The source of addresses beside AddressPools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadBalancerAddresses {
    /// The nodes' own addresses, except for these ports, which the nodes need themselves.
    Nodes { kept_ports: BTreeSet<u16> },
    /// Ranges of addresses reserved for Services.
    Pool(Vec<AddressRange>),
}

impl LoadBalancerAddresses {
    /// Returns the configured pool; `None` if the nodes' own addresses are assigned.
    fn pool(&self) -> Option<AddressPool> {
        match self {
            LoadBalancerAddresses::Nodes { .. } => None,
            LoadBalancerAddresses::Pool(ranges) => Some(AddressPool::of_ranges(CONFIGURED_POOL, ranges.clone())),
        }
    }
}

/// The reason why a Service gets no address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    message: String,
    /// Whether the Service keeps the addresses that it has: the request has no meaning, and its addresses are valid.
    keeps_addresses: bool,
}

impl Refusal {
    fn new(message: impl Into<String>) -> Refusal {
        Refusal { message: message.into(), keeps_addresses: false }
    }

    fn of_request(message: impl Into<String>) -> Refusal {
        Refusal { message: message.into(), keeps_addresses: true }
    }
}

pub struct ServiceLoadBalancerController {
    pub addresses: LoadBalancerAddresses,
    /// Whether the API server has AddressPools.
    pub has_pools: bool,
    /// The ranges that no pool may have: the pod CIDRs.
    pub reserved: Vec<AddressRange>,
}

pub struct Observed {
    service: Service,
    /// The other Services that this controller serves, the oldest first.
    others: Vec<Service>,
    nodes: Vec<Node>,
    /// The nodes with a serving endpoint.
    serving_nodes: BTreeSet<String>,
    /// The pools that are valid, in the order in which they are tried.
    pools: Vec<AddressPool>,
    namespace_labels: BTreeMap<String, String>,
}

impl Controller for ServiceLoadBalancerController {
    type Observed = Observed;

    const NAME: &'static str = "service-controller";
    /// One worker: the address of a Service depends on those of the others.
    const WORKERS: usize = 1;

    fn watches(&self) -> Vec<Watch> {
        let mut watches = vec![
            Watch::mapped::<Service>(of_service),
            Watch::mapped::<Node>(of_node),
            Watch::mapped::<EndpointSlice>(of_slice),
        ];
        if self.has_pools {
            watches.push(Watch { resource: POOLS, keys: of_pool });
            watches.push(Watch::read::<Namespace>());
        }
        watches
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let service: Service = view.typed(key).filter(|service| is_ours(service) || is_finalized(service))?;
        let mut others: Vec<Service> = view.all("");
        others.retain(|other| is_ours(other) && key_of(other) != *key);
        others.sort_by_key(age);
        let serving_nodes = if is_local(&service) { serving_nodes(view, key) } else { BTreeSet::new() };
        let pools = pools::usable(self.addresses.pool(), &self.pools(view), &self.reserved);
        let namespace: Option<Namespace> = self.has_pools.then(|| view.typed(&Key::new("", &key.namespace))).flatten();
        let namespace_labels = namespace.and_then(|namespace| namespace.metadata.labels).unwrap_or_default();
        Some(Observed { service, others, nodes: view.all(""), serving_nodes, pools, namespace_labels })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        match is_ours(&observed.service) {
            true => self.ensure(observed, now),
            false => release(&observed.service),
        }
    }
}

impl ServiceLoadBalancerController {
    fn pools(&self, view: &dyn View) -> Vec<Value> {
        match self.has_pools {
            true => view.list(POOLS, "").iter().map(|pool| pool.value()).collect(),
            false => Vec::new(),
        }
    }

    /// Assigns the addresses of a Service.
    fn ensure(&self, observed: &Observed, now: Timestamp) -> Plan {
        let service = &observed.service;
        let mut plan = Plan::nothing();
        if !is_finalized(service) {
            let finalizers = finalizers(service).chain([FINALIZER.to_owned()]).collect();
            plan.push(patch_finalizers(service, finalizers, json!({})));
        }
        let current = ingress(service);
        let (addresses, refusal) = match self.addresses_of(observed) {
            Ok(addresses) => (addresses, None),
            Err(refusal) if refusal.keeps_addresses => (current.clone(), Some(refusal.message)),
            Err(refusal) => (Vec::new(), Some(refusal.message)),
        };
        let mut status = json!({});
        if addresses != current {
            let entry = |ip: &IpAddr| json!({"ip": ip.to_string(), "ipMode": "VIP"});
            let entries: Vec<Value> = addresses.iter().map(entry).collect();
            status["loadBalancer"] = json!({"ingress": entries});
        }
        if let Some(conditions) = conditions(service, refusal.as_deref(), now) {
            status["conditions"] = conditions;
        }
        let is_changed = status != json!({});
        if is_changed {
            plan.push(Action::patch_status(service, json!({"status": status})));
        }
        match refusal {
            Some(message) => plan.push(Action::warning(service, "SyncLoadBalancerFailed", message)),
            None if addresses != current && !addresses.is_empty() => {
                plan.push(Action::normal(service, "EnsuredLoadBalancer", "Ensured load balancer"));
            }
            None => {}
        }
        plan
    }

    /// Returns the addresses of a Service: those of a pool that serves it, else the nodes' own.
    fn addresses_of(&self, observed: &Observed) -> Result<Vec<IpAddr>, Refusal> {
        let request = request::Request::of(&observed.service)?;
        match &self.addresses {
            LoadBalancerAddresses::Nodes { kept_ports } if allocation::is_for_nodes(observed, &request) => {
                nodes::addresses(observed, kept_ports)
            }
            _ => allocation::addresses(observed, &request),
        }
    }
}

/// Removes the addresses and the finalizer of a Service that is deleted, or is of another type now.
fn release(service: &Service) -> Plan {
    let kept = finalizers(service).filter(|name| name != FINALIZER).collect();
    let mut status = json!({"loadBalancer": null});
    let has_condition = own_condition(service).is_some();
    if has_condition {
        status["conditions"] = other_conditions(service).into();
    }
    let mut plan = Plan::nothing();
    plan.push(Action::normal(service, "DeletingLoadBalancer", "Deleting load balancer"));
    plan.push(patch_finalizers(service, kept, json!({"status": status})));
    plan.push(Action::normal(service, "DeletedLoadBalancer", "Deleted load balancer"));
    plan
}

/// Returns a patch of the finalizers, and of more, through the status as upstream's role permits. The precondition is
/// the resourceVersion, because the list replaces those of other writers.
fn patch_finalizers(service: &Service, finalizers: Vec<String>, mut patch: Value) -> Action {
    corten_meta::set(&mut patch, "/metadata/finalizers", json!(finalizers));
    corten_meta::set(&mut patch, "/metadata/resourceVersion", json!(service.metadata.resource_version));
    Action::patch_status(service, patch)
}

/// Reports whether this controller serves the Service: not if it names another load balancer class.
fn is_ours(service: &Service) -> bool {
    is_of_type(service) && is_of_class(service) && service.metadata.deletion_timestamp.is_none()
}

fn is_of_type(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"))
}

fn is_of_class(service: &Service) -> bool {
    let class = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_deref());
    class.is_none_or(|class| class == LOAD_BALANCER_CLASS)
}

/// Reports whether the Service has our finalizer. One of another class has that of another controller.
fn is_finalized(service: &Service) -> bool {
    is_of_class(service) && finalizers(service).any(|name| name == FINALIZER)
}

fn finalizers(service: &Service) -> impl Iterator<Item = String> {
    service.metadata.finalizers.clone().unwrap_or_default().into_iter()
}

fn is_local(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.external_traffic_policy.as_deref() == Some("Local"))
}

/// Sorts by creation time, then by name.
fn age(service: &Service) -> (Option<Timestamp>, Key) {
    (service.metadata.creation_timestamp.as_ref().map(|time| time.0), key_of(service))
}

fn ingress(service: &Service) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let entries = status.into_iter().flat_map(|status| status.ingress.iter().flatten());
    entries.filter_map(|entry| entry.ip.as_deref()?.parse().ok()).collect()
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    number: i32,
    protocol: String,
}

fn ports(service: &Service) -> BTreeSet<Port> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let port = |port: &corten_api::k8s_openapi::api::core::v1::ServicePort| Port {
        number: port.port,
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
    };
    ports.map(port).collect()
}

/// Returns our condition of a Service.
fn own_condition(service: &Service) -> Option<Value> {
    let all = service.to_value();
    let conditions = all.pointer("/status/conditions").and_then(Value::as_array)?;
    conditions.iter().find(|one| one["type"] == CONDITION).cloned()
}

fn other_conditions(service: &Service) -> Vec<Value> {
    let all = service.to_value();
    let conditions = all.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    conditions.into_iter().filter(|one| one["type"] != CONDITION).collect()
}

/// Returns the conditions of a Service if ours changes. A Service that never was without an address has none.
fn conditions(service: &Service, refusal: Option<&str>, now: Timestamp) -> Option<Value> {
    let old = own_condition(service);
    if old.is_none() && refusal.is_none() {
        return None;
    }
    let (status, reason, message) = match refusal {
        Some(message) => ("False", "NoAddress", message),
        None => ("True", "Assigned", ""),
    };
    let same = |field: &str, value: &str| old.as_ref().is_some_and(|old| old[field] == value);
    if same("status", status) && same("message", message) {
        return None;
    }
    let since = match &old {
        Some(old) if old["status"] == status => old["lastTransitionTime"].clone(),
        _ => corten_meta::time::rfc3339(now).into(),
    };
    let mut all = other_conditions(service);
    all.push(json!({"type": CONDITION, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since}));
    Some(all.into())
}

fn serving_nodes(view: &dyn View, key: &Key) -> BTreeSet<String> {
    let mut slices = view.list(ResourceType::of::<EndpointSlice>(), &key.namespace);
    slices.retain(|slice| slice.header.labels.get(SERVICE_NAME) == Some(&key.name));
    let endpoints = slices
        .iter()
        .filter_map(crate::runtime::decode::<EndpointSlice>)
        .flat_map(|slice| slice.endpoints.unwrap_or_default());
    endpoints
        .filter(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true))
        .filter_map(|endpoint| endpoint.node_name)
        .collect()
}

/// Returns all Services: a change of one may unblock others.
fn of_service(view: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys = vec![change.key.clone()];
    let was_ours = change.old.as_ref().is_some_and(is_load_balancer);
    if was_ours || change.new.as_ref().is_some_and(is_load_balancer) {
        let all: Vec<Service> = view.all("");
        keys.extend(all.iter().filter(|one| is_ours(one) && ingress(one).is_empty()).map(key_of));
    }
    keys.dedup();
    keys
}

fn is_load_balancer(object: &std::sync::Arc<Object>) -> bool {
    object.value().pointer("/spec/type").is_some_and(|kind| kind == "LoadBalancer")
}

/// Returns all Services if a node changed, but not for a heartbeat.
fn of_node(view: &dyn View, change: &Change) -> Vec<Key> {
    let facts = |object: &Option<std::sync::Arc<Object>>| {
        let node: Node = crate::runtime::decode(object.as_ref()?)?;
        Some((nodes::serves(&node), nodes::node_addresses(&node)))
    };
    if facts(&change.old) == facts(&change.new) {
        return Vec::new();
    }
    all_ours(view)
}

/// Returns all Services if the spec of a pool changed.
fn of_pool(view: &dyn View, change: &Change) -> Vec<Key> {
    let spec = |object: &Option<std::sync::Arc<Object>>| object.as_ref().map(|object| object.value()["spec"].clone());
    if spec(&change.old) == spec(&change.new) {
        return Vec::new();
    }
    all_ours(view)
}

fn all_ours(view: &dyn View) -> Vec<Key> {
    let all: Vec<Service> = view.all("");
    all.iter().filter(|one| is_ours(one)).map(key_of).collect()
}

fn of_slice(_: &dyn View, change: &Change) -> Vec<Key> {
    let name = change.object().and_then(|slice| slice.header.labels.get(SERVICE_NAME));
    name.map(|name| Key::new(change.key.namespace.clone(), name.clone())).into_iter().collect()
}
