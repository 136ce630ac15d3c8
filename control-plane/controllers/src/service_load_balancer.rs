//! Assigns addresses to Services of type LoadBalancer in clusters without a cloud provider.
//!
//! Either the nodes' own addresses, for small clusters: every Ready node serves the Service's ports itself. Or an
//! address of a pool, which the nodes announce. Without either a Service would stay pending forever.
//!
//! Invariant: no port is taken that a node itself needs, and no address and port is given to two Services. The older
//! Service keeps its own.

use std::collections::BTreeSet;
use std::net::IpAddr;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, Service};
use corten_api::k8s_openapi::api::discovery::v1::EndpointSlice;
use corten_client::Change;
use corten_meta::{Key, Object, Value};
use jiff::Timestamp;
use serde_json::json;

use crate::runtime::{Action, Controller, Plan, ResourceType, View, Watch, key_of};

const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The source of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadBalancerAddresses {
    /// The nodes' own addresses, except for these ports, which the nodes need themselves.
    Nodes { kept_ports: BTreeSet<u16> },
    /// Ranges of addresses reserved for Services.
    Pool(Vec<AddressRange>),
}

/// A range of addresses, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

impl AddressRange {
    /// Parses `192.0.2.10-192.0.2.20` or a single address.
    pub fn parse(text: &str) -> Option<AddressRange> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last): (IpAddr, IpAddr) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first.is_ipv4() == last.is_ipv4() && first <= last).then_some(AddressRange { first, last })
    }

    /// Returns the first and the last address.
    pub fn bounds(&self) -> (IpAddr, IpAddr) {
        (self.first, self.last)
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && self.first <= address && address <= self.last
    }

    fn addresses(self) -> impl Iterator<Item = IpAddr> {
        std::iter::successors(Some(self.first), |address| match address {
            IpAddr::V4(address) => address.to_bits().checked_add(1).map(|bits| std::net::Ipv4Addr::from(bits).into()),
            IpAddr::V6(address) => address.to_bits().checked_add(1).map(|bits| std::net::Ipv6Addr::from(bits).into()),
        })
        .take_while(move |address| *address <= self.last)
    }
}

pub struct ServiceLoadBalancerController {
    pub addresses: LoadBalancerAddresses,
}

pub struct Observed {
    service: Service,
    /// The other Services that this controller serves, the oldest first.
    others: Vec<Service>,
    nodes: Vec<Node>,
    /// The nodes with a serving endpoint.
    serving_nodes: BTreeSet<String>,
}

impl Controller for ServiceLoadBalancerController {
    type Observed = Observed;

    fn name(&self) -> &'static str {
        "service-controller"
    }

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::mapped::<Service>(of_service),
            Watch::mapped::<Node>(of_node),
            Watch::mapped::<EndpointSlice>(of_slice),
        ]
    }

    /// One worker: the address of a Service depends on those of the others.
    fn workers(&self) -> usize {
        1
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let service: Service = view.typed(key).filter(is_ours)?;
        let mut others: Vec<Service> = view.all("");
        others.retain(|other| is_ours(other) && key_of(other) != *key);
        others.sort_by_key(age);
        let serving_nodes = if is_local(&service) { serving_nodes(view, key) } else { BTreeSet::new() };
        Some(Observed { service, others, nodes: view.all(""), serving_nodes })
    }

    fn reconcile(&self, observed: &Observed, _: Timestamp) -> Plan {
        let wanted = match &self.addresses {
            LoadBalancerAddresses::Nodes { kept_ports } => of_nodes(observed, kept_ports),
            LoadBalancerAddresses::Pool(ranges) => of_pool(observed, ranges),
        };
        let service = &observed.service;
        let current = ingress(service);
        let mut plan = Plan::nothing();
        let addresses = match wanted {
            Ok(addresses) => addresses,
            Err(why) => {
                if current.is_empty() {
                    plan.push(Action::warning(service, "SyncLoadBalancerFailed", why));
                }
                Vec::new()
            }
        };
        if addresses == current {
            return if addresses.is_empty() { plan } else { Plan::nothing() };
        }
        let entries: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip.to_string(), "ipMode": "VIP"})).collect();
        plan.push(Action::patch_status(service, json!({"status": {"loadBalancer": {"ingress": entries}}})));
        if !addresses.is_empty() {
            plan.push(Action::normal(service, "EnsuredLoadBalancer", "Ensured load balancer"));
        }
        plan
    }
}

/// Reports whether this controller serves the Service: not if it names another load balancer class.
fn is_ours(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    let is_type = spec.is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"));
    is_type
        && spec.is_some_and(|spec| spec.load_balancer_class.is_none())
        && service.metadata.deletion_timestamp.is_none()
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

fn ports(service: &Service) -> BTreeSet<(String, i32)> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports.map(|port| (port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), port.port)).collect()
}

fn families(service: &Service) -> (bool, bool) {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.clone()).unwrap_or_default();
    let has = |family: &str| families.iter().any(|one| one == family);
    (has("IPv4") || families.is_empty(), has("IPv6"))
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

fn of_nodes(observed: &Observed, kept: &BTreeSet<u16>) -> Result<Vec<IpAddr>, String> {
    let service = &observed.service;
    let wanted = ports(service);
    if let Some((_, port)) = wanted.iter().find(|(_, port)| u16::try_from(*port).is_ok_and(|port| kept.contains(&port)))
    {
        return Err(format!(
            "port {port} of the nodes is in use by the nodes themselves; choose another, or give the cluster a pool of addresses"
        ));
    }
    let older = observed.others.iter().filter(|other| age(other) < age(service));
    for other in older {
        if let Some((protocol, port)) = ports(other).intersection(&wanted).next() {
            return Err(format!("port {port}/{protocol} of the nodes is in use by Service {}", key_of(other)));
        }
    }
    let (ipv4, ipv6) = families(service);
    let local = is_local(service);
    let mut addresses: Vec<IpAddr> = observed
        .nodes
        .iter()
        .filter(|node| serves(node) && (!local || observed.serving_nodes.contains(node.name())))
        .flat_map(node_addresses)
        .filter(|address| if address.is_ipv4() { ipv4 } else { ipv6 })
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

fn serves(node: &Node) -> bool {
    let excluded = node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED));
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.filter(|one| one.type_ == "Ready").any(|one| one.status == "True");
    ready && !excluded && node.metadata.deletion_timestamp.is_none()
}

fn node_addresses(node: &Node) -> Vec<IpAddr> {
    let addresses = || node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let of = |kind: &str| -> Vec<IpAddr> {
        addresses().filter(|one| one.type_ == kind).filter_map(|one| one.address.parse().ok()).collect()
    };
    let external = of("ExternalIP");
    if external.is_empty() { of("InternalIP") } else { external }
}

/// Returns the address that a Service has, else the requested one, else the first free one.
fn of_pool(observed: &Observed, ranges: &[AddressRange]) -> Result<Vec<IpAddr>, String> {
    let service = &observed.service;
    let (ipv4, _) = families(service);
    let of_family = |address: &IpAddr| address.is_ipv4() == ipv4;
    let in_pool = |address: &IpAddr| ranges.iter().any(|range| range.contains(*address));
    let own = ingress(service).into_iter().find(|address| in_pool(address) && of_family(address));
    // Of two Services with one address the older keeps it.
    let taken: BTreeSet<IpAddr> =
        observed.others.iter().filter(|other| own.is_none() || age(other) < age(service)).flat_map(ingress).collect();
    let requested =
        service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref()).filter(|text| !text.is_empty());
    if let Some(requested) = requested {
        let address: IpAddr = requested.parse().map_err(|_| format!("{requested:?} is no address"))?;
        return match in_pool(&address) {
            false => Err(format!("{address} is not in the pool of addresses")),
            true if taken.contains(&address) => Err(format!("{address} is in use by another Service")),
            true => Ok(vec![address]),
        };
    }
    if let Some(own) = own.filter(|own| !taken.contains(own)) {
        return Ok(vec![own]);
    }
    let free = ranges.iter().flat_map(|range| range.addresses()).filter(of_family).find(|one| !taken.contains(one));
    free.map(|address| vec![address]).ok_or_else(|| "no address of the pool is free".to_owned())
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
        Some((serves(&node), node_addresses(&node)))
    };
    if facts(&change.old) == facts(&change.new) {
        return Vec::new();
    }
    let all: Vec<Service> = view.all("");
    all.iter().filter(|one| is_ours(one)).map(key_of).collect()
}

fn of_slice(_: &dyn View, change: &Change) -> Vec<Key> {
    let name = change.object().and_then(|slice| slice.header.labels.get(SERVICE_NAME));
    name.map(|name| Key::new(change.key.namespace.clone(), name.clone())).into_iter().collect()
}
