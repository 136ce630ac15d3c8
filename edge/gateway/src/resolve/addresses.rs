//! Services of Gateways: the addresses of a Gateway, and the ports that the data half binds.
//!
//! A Gateway has one Service of type LoadBalancer without a selector. The cluster gives it an address like to every
//! other; the proxy of each node sends its ports to a port of that node, where the data half listens. So no process
//! needs a privileged port, Gateways never compete for one, and the client's address is kept.
//!
//! Invariant: a port that was allocated is stored in the Service (targetPort), and stays as long as the Service has it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use corten_meta::{Key, Value};
use corten_routing::Transport;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::certificates::Problem;
use super::gateways::Gateway;
use super::{CLASS, NAMESPACE, PortRange};
use crate::crds::GROUP;
use crate::objects::{GatewaySpec, Objects, Resource, ServiceSpec, Store};

/// The label of Services and EndpointSlices that this controller makes.
pub const OWNED_LABEL: &str = "corten.dev/edge";
/// The label with the name of a Gateway, as Gateway API defines it.
const NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
/// The longest name of a Service, and value of a label.
const NAME_LENGTH: usize = 63;

/// A Service that should exist.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedService {
    pub key: Key,
    pub ports: BTreeSet<WantedPort>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    owner: Option<Value>,
    address: Option<String>,
}

/// A port that clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WantedPort {
    pub port: u16,
    pub transport: Transport,
}

impl WantedPort {
    fn protocol(self) -> &'static str {
        match self.transport {
            Transport::Tcp => "TCP",
            Transport::Udp => "UDP",
        }
    }

    fn name(self) -> String {
        format!("{}-{}", self.protocol().to_lowercase(), self.port)
    }
}

/// Returns the key of a Gateway's Service.
pub fn service_of(gateway: &Resource<GatewaySpec>) -> Key {
    let name = format!("{}-{}", gateway.metadata.name, gateway.spec.gateway_class_name);
    Key::new(gateway.metadata.namespace.clone(), label_name(&name))
}

/// Returns the key of the Service of all Ingresses.
pub fn ingress_service() -> Key {
    Key::new(NAMESPACE.to_owned(), format!("ingress-{CLASS}"))
}

/// Returns a name that a Service may have: the name itself, or a part of it with a digest.
fn label_name(name: &str) -> String {
    let starts_well = name.starts_with(|first: char| first.is_ascii_lowercase());
    if name.len() <= NAME_LENGTH && starts_well && !name.contains('.') {
        return name.to_owned();
    }
    let digest = Sha256::digest(name.as_bytes());
    let digest: String = digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    let head: String = name.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
    format!("gateway-{head}-{digest}")
}

/// Returns the Service of a Gateway; None if no listener has a socket.
pub fn of_gateway(gateway: &Gateway<'_>) -> Option<WantedService> {
    let object = gateway.object;
    let bound = gateway.listeners.iter().filter(|listener| listener.is_bound());
    let ports: BTreeSet<WantedPort> =
        bound.map(|listener| WantedPort { port: listener.spec.port, transport: listener.transport() }).collect();
    if ports.is_empty() || gateway.unacceptable.is_some() {
        return None;
    }
    let mut labels = object.spec.infrastructure.labels.clone();
    labels.insert(OWNED_LABEL.to_owned(), "gateway".to_owned());
    labels.insert(NAME_LABEL.to_owned(), label_value(&object.metadata.name));
    let owner = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "Gateway", "name": object.metadata.name,
        "uid": object.metadata.uid, "controller": true, "blockOwnerDeletion": true,
    });
    Some(WantedService {
        key: service_of(object),
        ports,
        labels,
        annotations: object.spec.infrastructure.annotations.clone(),
        owner: Some(owner),
        address: requested(gateway).into_iter().next(),
    })
}

/// Returns the Service of all Ingresses.
pub fn of_ingresses(ports: BTreeSet<WantedPort>) -> WantedService {
    WantedService {
        key: ingress_service(),
        ports,
        labels: BTreeMap::from([(OWNED_LABEL.to_owned(), "ingress".to_owned())]),
        annotations: BTreeMap::new(),
        owner: None,
        address: None,
    }
}

fn label_value(name: &str) -> String {
    if name.len() <= NAME_LENGTH { name.to_owned() } else { label_name(name) }
}

/// Returns the addresses that a Gateway asks for.
fn requested(gateway: &Gateway<'_>) -> Vec<String> {
    let values = gateway.object.spec.addresses.iter().filter_map(|address| address.value.clone());
    values.filter(|value| !value.is_empty()).collect()
}

/// Returns the addresses of a Gateway.
pub fn assigned(objects: &Objects, gateway: &Gateway<'_>) -> Result<Vec<IpAddr>, Problem> {
    let addresses = of_service(objects, &service_of(gateway.object));
    let requested = requested(gateway);
    let unusable = |address: &String| !address.parse().is_ok_and(|address| addresses.contains(&address));
    if let Some(address) = requested.iter().find(|address| unusable(address)) {
        return Err(Problem::new("AddressNotUsable", format!("address {address} cannot be used")));
    }
    match addresses.is_empty() {
        true => Err(Problem::new("AddressNotAssigned", "the Service of the Gateway has no address yet")),
        false => Ok(addresses),
    }
}

/// Returns the addresses of a Service that this controller made.
pub fn of_service(objects: &Objects, key: &Key) -> Vec<IpAddr> {
    let Some(service) = objects.services.get(key).filter(|service| is_owned(service)) else { return Vec::new() };
    let entries = service.status["loadBalancer"]["ingress"].as_array();
    entries.into_iter().flatten().filter_map(|entry| entry["ip"].as_str()?.parse().ok()).collect()
}

/// Reports whether this controller made a Service.
pub fn is_owned(service: &Resource<ServiceSpec>) -> bool {
    service.metadata.labels.contains_key(OWNED_LABEL) && service.spec.selector.is_empty()
}

/// Returns the ports that the data half binds for a Service, by the ports of clients.
pub fn bind_ports(services: &Store<ServiceSpec>, key: &Key) -> BTreeMap<WantedPort, u16> {
    let Some(service) = services.get(key).filter(|service| is_owned(service)) else { return BTreeMap::new() };
    let port = |port: &crate::objects::ServicePort| {
        let transport = if port.protocol == "UDP" { Transport::Udp } else { Transport::Tcp };
        let bound = port.target_port.as_u64().and_then(|number| u16::try_from(number).ok())?;
        Some((WantedPort { port: port.port, transport }, bound))
    };
    service.spec.ports.iter().filter_map(port).collect()
}

/// A Service to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocated {
    pub key: Key,
    pub object: Value,
    pub ports: BTreeMap<WantedPort, u16>,
}

/// Returns the wanted Services with their ports: those that they have, and free ones of the range for new ports. A port
/// that no free one is left for is missing.
pub fn allocate(services: &Store<ServiceSpec>, wanted: &[WantedService], range: PortRange) -> Vec<Allocated> {
    let owned = services.iter().filter(|(_, service)| is_owned(service));
    let mut taken: BTreeSet<u16> = owned.flat_map(|(key, _)| bind_ports(services, key).into_values()).collect();
    let mut allocated = Vec::new();
    for service in wanted {
        let current = bind_ports(services, &service.key);
        let mut ports = BTreeMap::new();
        for port in &service.ports {
            let free = || candidates(&service.key, *port, range).find(|number| !taken.contains(number));
            if let Some(number) = current.get(port).copied().or_else(free) {
                taken.insert(number);
                ports.insert(*port, number);
            }
        }
        if !ports.is_empty() {
            let object = service_object(service, &ports);
            allocated.push(Allocated { key: service.key.clone(), object, ports });
        }
    }
    allocated
}

/// Returns the ports of the range, beginning at a place that the Service decides: a port that was just given up still
/// has connections that end, so the next Service should not get it.
fn candidates(service: &Key, port: WantedPort, range: PortRange) -> impl Iterator<Item = u16> {
    let digest = Sha256::digest(format!("{service} {}", port.name()).as_bytes());
    let seed = digest.iter().take(4).fold(0_u32, |seed, byte| (seed << 8) | u32::from(*byte));
    let size = u32::from(range.last - range.first) + 1;
    let first = range.first + u16::try_from(seed % size).unwrap_or_default();
    (first..=range.last).chain(range.first..first)
}

fn service_object(service: &WantedService, ports: &BTreeMap<WantedPort, u16>) -> Value {
    let port = |(port, bound): (&WantedPort, &u16)| json!({"name": port.name(), "port": port.port, "protocol": port.protocol(), "targetPort": bound});
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service.key.name,
            "namespace": service.key.namespace,
            "labels": service.labels,
            "annotations": service.annotations,
        },
        "spec": {
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "allocateLoadBalancerNodePorts": false,
            "ipFamilyPolicy": "PreferDualStack",
            "ports": ports.iter().map(port).collect::<Vec<_>>(),
            "loadBalancerIP": service.address,
        },
    });
    if let Some(owner) = &service.owner {
        object["metadata"]["ownerReferences"] = json!([owner]);
    }
    object
}

/// Returns the EndpointSlices of a Service, one for each family: the nodes whose data half is ready.
pub fn slices(objects: &Objects, service: &Allocated) -> Vec<Value> {
    [("IPv4", true), ("IPv6", false)]
        .into_iter()
        .filter_map(|(family, ipv4)| slice(objects, service, family, ipv4))
        .collect()
}

fn slice(objects: &Objects, service: &Allocated, family: &str, ipv4: bool) -> Option<Value> {
    let endpoint = |(name, node): (&String, &crate::objects::DataNode)| {
        let address = node.addresses.iter().find(|address| address.is_ipv4() == ipv4)?;
        let conditions = json!({"ready": true, "serving": true, "terminating": false});
        Some(json!({"addresses": [address.to_string()], "nodeName": name, "conditions": conditions}))
    };
    let endpoints: Vec<Value> = objects.nodes.iter().filter_map(endpoint).collect();
    if endpoints.is_empty() && !ipv4 {
        return None;
    }
    let port =
        |(port, bound): (&WantedPort, &u16)| json!({"name": port.name(), "port": bound, "protocol": port.protocol()});
    let name = format!("{}-{}", service.key.name, family.to_lowercase());
    let mut slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": service.key.namespace,
            "labels": {
                "kubernetes.io/service-name": service.key.name,
                "endpointslice.kubernetes.io/managed-by": "corten-edge",
                OWNED_LABEL: "nodes",
            },
        },
        "addressType": family,
        "endpoints": endpoints,
        "ports": service.ports.iter().map(port).collect::<Vec<_>>(),
    });
    if let Some(stored) = objects.services.get(&service.key) {
        slice["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Service", "name": service.key.name, "uid": stored.metadata.uid,
        }]);
    }
    Some(slice)
}
