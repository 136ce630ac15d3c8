//! The data that the DNS keeps of Services and EndpointSlices.

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// A named port; names are lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    pub protocol: String,
    pub number: u16,
}

impl Port {
    fn new(name: Option<&String>, protocol: Option<&String>, number: i32) -> Option<Port> {
        Some(Port {
            name: name.map(|name| name.to_ascii_lowercase()).unwrap_or_default(),
            protocol: protocol.map_or("tcp".to_owned(), |protocol| protocol.to_ascii_lowercase()),
            number: u16::try_from(number).ok()?,
        })
    }
}

/// The target of a Service's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// Its virtual addresses.
    Virtual { addresses: Vec<IpAddr>, ports: Vec<Port> },
    /// Its endpoints.
    Headless,
    /// Another name.
    External(String),
}

impl Service {
    /// Reads a Service from its object; returns `None` while it has no address yet.
    pub fn from_object(service: &core::Service) -> Option<Service> {
        let spec = service.spec.as_ref()?;
        if spec.type_.as_deref() == Some("ExternalName") {
            return spec.external_name.clone().filter(|name| !name.is_empty()).map(Service::External);
        }
        if spec.cluster_ip.as_deref() == Some("None") {
            return Some(Service::Headless);
        }
        let all = spec.cluster_ips.iter().flatten();
        let mut addresses: Vec<IpAddr> = all.filter_map(|address| address.parse().ok()).collect();
        if addresses.is_empty() {
            addresses.extend(spec.cluster_ip.iter().filter_map(|address| address.parse::<IpAddr>().ok()));
        }
        let ports = spec.ports.iter().flatten();
        let ports = ports.filter_map(|port| Port::new(port.name.as_ref(), port.protocol.as_ref(), port.port));
        (!addresses.is_empty()).then(|| Service::Virtual { addresses, ports: ports.collect() })
    }
}

/// A ready endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: IpAddr,
    pub hostname: Option<String>,
}

impl Endpoint {
    /// Returns its label below the Service's name: the host name, else the address with dashes.
    pub fn label(&self) -> String {
        match &self.hostname {
            Some(hostname) => hostname.clone(),
            None => self.address.to_string().replace(['.', ':'], "-"),
        }
    }
}

/// The ready endpoints of one EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    pub service: String,
    pub ports: Vec<Port>,
    pub endpoints: Vec<Endpoint>,
}

impl Endpoints {
    /// Reads endpoints from an object; returns `None` if it is of no Service or of address type FQDN.
    pub fn from_object(slice: &discovery::EndpointSlice) -> Option<Endpoints> {
        let service = slice.metadata.labels.as_ref()?.get(SERVICE_NAME_LABEL)?.clone();
        if slice.address_type == "FQDN" {
            return None;
        }
        let ports = slice.ports.iter().flatten();
        let ports = ports.filter_map(|port| Port::new(port.name.as_ref(), port.protocol.as_ref(), port.port?));
        let endpoints = slice.endpoints.iter().flatten().filter(|endpoint| is_ready(endpoint));
        Some(Endpoints { service, ports: ports.collect(), endpoints: endpoints.flat_map(endpoint_addresses).collect() })
    }
}

/// Reports whether an endpoint is ready. Not-ready addresses of a Service that publishes them are ready in its slices.
fn is_ready(endpoint: &discovery::Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

fn endpoint_addresses(endpoint: &discovery::Endpoint) -> impl Iterator<Item = Endpoint> {
    let hostname = endpoint.hostname.as_ref().map(|hostname| hostname.to_ascii_lowercase());
    let addresses = endpoint.addresses.iter().filter_map(|address| address.parse().ok());
    addresses.map(move |address| Endpoint { address, hostname: hostname.clone() })
}
